//! The tokenizer against golden ids of both vocabularies, hostile vocabularies, and streamed text.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "support/vocabularies.rs"]
mod vocabularies;

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use openjet_engine::text::{ControlTokens, Detokenizer, TokenKind, Tokenizer, TokenizerError, TokenizerSpec};
use proptest::prelude::*;
use serde_json::Value;
use vocabularies::{Released, spelled};

static TINY: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(vocabularies::tiny()));
static RELEASED: LazyLock<Arc<Tokenizer>> =
    LazyLock::new(|| Arc::new(Tokenizer::new(&Released::load().spec()).unwrap()));

fn golden(json: &str) -> Vec<(String, Vec<u32>)> {
    let golden: Value = serde_json::from_str(json).unwrap();
    let ids = |case: &Value| case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    golden["cases"].as_array().unwrap().iter().map(|c| (c["text"].as_str().unwrap().to_owned(), ids(c))).collect()
}

fn bytes(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect()
}

#[test]
fn golden_ids_of_the_small_vocabulary() {
    let cases = golden(include_str!("fixtures/golden/tokenizer-tiny.json"));
    assert_eq!(cases.len(), 80);
    for (text, ids) in cases {
        assert_eq!(TINY.encode(&text, ControlTokens::Match), ids, "{text:?}");
    }
}

#[test]
fn golden_ids_of_the_released_vocabulary() {
    let cases = golden(include_str!("fixtures/golden/tokenizer-qwen.json"));
    assert!(cases.len() > 50, "{}", cases.len());
    for (text, ids) in cases {
        assert_eq!(RELEASED.encode(&text, ControlTokens::Match), ids, "{text:?}");
    }
}

#[test]
fn vectors_with_added_tokens() {
    for (text, ids) in [
        (
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n",
            vec![248045, 846, 198, 5834, 248046, 198, 248045, 74455, 198, 248068, 198],
        ),
        (
            "<tool_call>\n<function=get>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            vec![
                248058, 198, 27, 1628, 27362, 29, 198, 27, 15704, 23478, 29, 198, 16, 198, 510, 15704, 29, 198, 510,
                1628, 29, 198, 248059,
            ],
        ),
        ("naïve café e\u{301}", vec![3267, 36328, 571, 50203, 3825]),
        ("日本語テスト", vec![247359, 181801]),
    ] {
        assert_eq!(RELEASED.encode(text, ControlTokens::Match), ids, "{text:?}");
    }
}

/// The counts that the specification of the released vocabulary states.
#[test]
fn merges_derived_from_ranks_are_as_many_as_stated() {
    let released = Released::load();
    assert_eq!((released.spec().merges.len(), released.unreachable), (247_556, 232));
}

#[test]
fn control_tokens_are_text_where_asked() {
    let text = "<|im_end|><think>";
    let [end, think] = ["<|im_end|>", "<think>"].map(|t| TINY.added_token(t).unwrap());
    assert_eq!(TINY.encode(text, ControlTokens::Match), [end, think]);
    let as_text = TINY.encode(text, ControlTokens::AsText);
    assert!(!as_text.contains(&end) && as_text.last() == Some(&think));
    assert_eq!(bytes(&TINY, &as_text), text.as_bytes());
}

#[test]
fn end_tokens_are_the_files_own_and_the_familys() {
    let texts: Vec<_> =
        RELEASED.end_tokens().iter().map(|&t| RELEASED.token_bytes(t).escape_ascii().to_string()).collect();
    assert_eq!(texts, ["<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]);
    assert_eq!(RELEASED.kind(248_100), TokenKind::Unused);
    assert_eq!(RELEASED.kind(u32::MAX), TokenKind::Unused);
    assert!(RELEASED.token_bytes(u32::MAX).is_empty());
    assert_eq!(RELEASED.token_bytes(248_319), b"[PAD248319]");
}

fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), false);
    let mut text = String::new();
    for &id in ids {
        text.extend(detokenizer.push(id));
    }
    text.extend(detokenizer.finish());
    text
}

#[test]
fn characters_are_streamed_whole() {
    let text = "👩‍👩‍👧‍👦 日本語 한국어 नमस्ते ﬁ é\u{0}\r\n";
    for tokenizer in [&*TINY, &*RELEASED] {
        let ids = tokenizer.encode(text, ControlTokens::AsText);
        assert_eq!(stream(tokenizer, &ids), text);
        assert!(!stream(tokenizer, &ids).contains('\u{fffd}'));
    }
    // The small vocabulary spells an emoji in single bytes: nothing may come before the last of them.
    let ids = TINY.encode("日", ControlTokens::AsText);
    assert_eq!(ids.len(), 3);
    let mut detokenizer = Detokenizer::new(Arc::clone(&TINY), false);
    let out: Vec<_> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    assert_eq!(out, [None, None, Some("日".into())]);
    assert_eq!(detokenizer.finish(), None);
}

#[test]
fn bytes_that_are_no_character_become_replacements() {
    let byte = |b: u8| (0..8192).find(|&id| TINY.token_bytes(id) == [b]).unwrap();
    // A lone continuation byte; a lead byte followed by ASCII; a truncated end.
    assert_eq!(stream(&TINY, &[byte(0x80), byte(b'a')]), "\u{fffd}a");
    assert_eq!(stream(&TINY, &[byte(0xe6), byte(b'a')]), "\u{fffd}a");
    assert_eq!(stream(&TINY, &[byte(b'a'), byte(0xe6), byte(0x97)]), "a\u{fffd}");
    assert_eq!(stream(&TINY, &[byte(0xf0), byte(0x9f), byte(0xf0), byte(0x9f), byte(0x98), byte(0x80)]), "\u{fffd}😀");
}

#[test]
fn control_tokens_are_printed_only_on_request() {
    let ids = TINY.encode("a<|im_end|><think>", ControlTokens::Match);
    assert_eq!(stream(&TINY, &ids), "a<think>");
    let mut detokenizer = Detokenizer::new(Arc::clone(&TINY), true);
    let text: String = ids.iter().filter_map(|&id| detokenizer.push(id)).collect();
    assert_eq!(text, "a<|im_end|><think>");
    assert_eq!(detokenizer.push(u32::MAX), None);
}

proptest! {
    #[test]
    fn any_normalised_text_comes_back(text in r"(\PC|[ \t\r\n]{1,4}|\p{M}|'s|[<>|/]|think){0,60}") {
        use unicode_normalization::UnicodeNormalization as _;
        let nfc: String = text.nfc().collect();
        for tokenizer in [&*TINY, &*RELEASED] {
            let ids = tokenizer.encode(&text, ControlTokens::AsText);
            prop_assert_eq!(bytes(tokenizer, &ids), nfc.as_bytes());
            prop_assert_eq!(stream(tokenizer, &ids), nfc.clone());
        }
    }

    /// Any tokens in any order: what is streamed is what all bytes together decode to.
    #[test]
    fn streaming_equals_decoding_at_once(ids in prop::collection::vec(0u32..8192, 0..60)) {
        let printed: Vec<u32> = ids.iter().copied().filter(|&id| matches!(TINY.kind(id), TokenKind::Normal | TokenKind::UserDefined)).collect();
        prop_assert_eq!(stream(&TINY, &ids), String::from_utf8_lossy(&bytes(&TINY, &printed)).into_owned());
    }
}

/// A vocabulary of the 256 bytes and a few more tokens.
struct Small {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<&'static str>,
}

impl Small {
    fn new() -> Self {
        let mut tokens: Vec<String> = (0..=255).map(|b| spelled(&[b])).collect();
        tokens.extend(["ab", "abc", "<|end|>"].map(String::from));
        let mut types = vec![1; 258];
        types.push(3);
        Self { tokens, types, merges: vec!["a b", "ab c"] }
    }

    fn build(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(&TokenizerSpec {
            model: "gpt2",
            pre: "qwen2",
            tokens: self.tokens.iter().map(String::as_str).collect(),
            token_types: self.types.clone(),
            merges: self.merges.clone(),
            eos: 258,
            bos: None,
            chat_template: None,
        })
    }
}

#[test]
fn hostile_vocabularies_are_refused_by_name() {
    assert_eq!(Small::new().build().unwrap().encode("abcab", ControlTokens::Match), [257, 256]);
    let error = |change: &dyn Fn(&mut Small)| {
        let mut small = Small::new();
        change(&mut small);
        small.build().unwrap_err().to_string()
    };
    for (change, message) in [
        (
            &(|s: &mut Small| s.tokens[200] = "xyz".into()) as &dyn Fn(&mut Small),
            "no token stands for byte 0xc8 ('È' in the byte alphabet)",
        ),
        (&|s| s.types[200] = 5, "no token stands for byte 0xc8 ('È' in the byte alphabet)"),
        (&|s| s.tokens[257] = "ab".into(), "token 257 is \"ab\", the same as token 256"),
        (&|s| s.tokens[256] = "a b".into(), "token 256 is \"a b\"; its character ' ' stands for no byte"),
        (&|s| s.tokens[258] = String::new(), "token 258 is empty"),
        (&|s| s.types[256] = 6, "token 256 has type 6 in tokenizer.ggml.token_type, expected 1 to 5"),
        (&|s| s.types.truncate(9), "tokenizer.ggml.tokens has 259 entries, but tokenizer.ggml.token_type has 9"),
        (&|s| s.merges.push("abc abc"), "merge 2 is \"abc abc\", but there is no token \"abcabc\""),
        (&|s| s.merges.push("c ab"), "merge 2 is \"c ab\", but there is no token \"cab\""),
        (&|s| s.merges[1] = "zz a", "merge 1 is \"zz a\", but there is no token \"zz\""),
        (&|s| s.merges[0] = "ab", "merge 0 is \"ab\", expected two tokens with one space between them"),
        (&|s| s.merges[0] = "a  b", "merge 0 is \"a  b\", expected two tokens with one space between them"),
        (&|s| s.tokens.clear(), "tokenizer.ggml.tokens has 0 entries, but tokenizer.ggml.token_type has 259"),
        (
            &|s| (s.tokens.truncate(258), s.types.truncate(258)).1,
            "tokenizer.ggml.eos_token_id is 258, but there are only 258 tokens",
        ),
    ] {
        assert_eq!(error(change), message);
    }
    let small = Small::new();
    let spec = |model, pre| TokenizerSpec {
        model,
        pre,
        tokens: small.tokens.iter().map(String::as_str).collect(),
        token_types: small.types.clone(),
        merges: vec![],
        eos: 258,
        bos: None,
        chat_template: None,
    };
    let message = |model, pre| Tokenizer::new(&spec(model, pre)).unwrap_err().to_string();
    assert_eq!(
        message("llama", "qwen35"),
        "tokenizer.ggml.model is \"llama\"; OpenJet knows \"gpt2\" (byte-level BPE)"
    );
    assert_eq!(message("gpt2", "llama3"), "tokenizer.ggml.pre is \"llama3\"; OpenJet knows qwen35 and qwen2");
}

/// Long runs that make a backtracking pattern matcher or a quadratic merge slow.
#[test]
fn long_runs_take_linear_time() {
    let start = Instant::now();
    for unit in [" ", "\n", "a", "!", "é", " \n", "<|im_", "日"] {
        let text = unit.repeat(200_000) + "x";
        let ids = TINY.encode(&text, ControlTokens::Match);
        assert_eq!(bytes(&TINY, &ids), text.as_bytes());
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

/// Best of five, so that a busy machine does not decide it.
#[test]
fn loading_is_quick() {
    let time = |spec: &TokenizerSpec<'_>| {
        let build = |_| {
            let start = Instant::now();
            Tokenizer::new(spec).unwrap();
            start.elapsed()
        };
        (0..5).map(build).min().unwrap()
    };
    let file = vocabularies::tiny_file();
    let tiny = time(&TokenizerSpec::from_gguf(&file).unwrap());
    println!("8,192 tokens: {tiny:?}; 248,320 tokens: {:?}", time(&Released::load().spec()));
    assert!(tiny.as_millis() < 100, "{tiny:?}");
}
