//! The vocabularies of the tests: the small model's, and the released one rebuilt from its ranks.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::path::Path;

use openjet_engine::gguf::GgufFile;
use openjet_engine::text::{Tokenizer, TokenizerSpec};

pub(crate) fn tiny_file() -> GgufFile {
    GgufFile::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/openjet-tiny-Q4_K_M.gguf")).unwrap()
}

pub(crate) fn tiny() -> Tokenizer {
    Tokenizer::new(&TokenizerSpec::from_gguf(&tiny_file()).unwrap()).unwrap()
}

/// Control (3) and user-defined (4) tokens of the released vocabulary, from id 248044 on.
const ADDED: [(&str, i32); 33] = [
    ("<|endoftext|>", 3),
    ("<|im_start|>", 3),
    ("<|im_end|>", 3),
    ("<|object_ref_start|>", 3),
    ("<|object_ref_end|>", 3),
    ("<|box_start|>", 3),
    ("<|box_end|>", 3),
    ("<|quad_start|>", 3),
    ("<|quad_end|>", 3),
    ("<|vision_start|>", 3),
    ("<|vision_end|>", 3),
    ("<|vision_pad|>", 3),
    ("<|image_pad|>", 3),
    ("<|video_pad|>", 3),
    ("<tool_call>", 4),
    ("</tool_call>", 4),
    ("<|fim_prefix|>", 3),
    ("<|fim_middle|>", 3),
    ("<|fim_suffix|>", 3),
    ("<|fim_pad|>", 3),
    ("<|repo_name|>", 3),
    ("<|file_sep|>", 3),
    ("<tool_response>", 4),
    ("</tool_response>", 4),
    ("<think>", 4),
    ("</think>", 4),
    ("<|audio_start|>", 3),
    ("<|audio_end|>", 3),
    ("<tts_pad>", 3),
    ("<tts_text_bos>", 3),
    ("<tts_text_eod>", 3),
    ("<tts_text_bos_single>", 3),
    ("<|audio_pad|>", 3),
];

/// The released vocabulary in a file's form.
pub(crate) struct Released {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
    /// Tokens that no merge yields.
    pub(crate) unreachable: usize,
}

impl Released {
    /// Reads the ranks, lines of base64 and number, and derives the merges from them: a token is what merging by lower ranks
    /// leaves as two parts.
    pub(crate) fn load() -> Self {
        let packed = include_bytes!("../fixtures/qwen3_6.tiktoken.zst");
        let text = String::from_utf8(zstd::decode_all(&packed[..]).unwrap()).unwrap();
        let ranked: Vec<Vec<u8>> = text
            .lines()
            .enumerate()
            .map(|(id, line)| {
                let (token, rank) = line.split_once(' ').unwrap();
                assert_eq!(rank.parse(), Ok(id));
                base64(token)
            })
            .collect();
        let ranks: HashMap<&[u8], usize> = ranked.iter().enumerate().map(|(id, t)| (t.as_slice(), id)).collect();
        let mut merges = Vec::new();
        let mut unreachable = 0;
        for (id, token) in ranked.iter().enumerate().filter(|(_, t)| t.len() > 1) {
            match parts(token, id, &ranks)[..] {
                [left, right] => merges.push(format!("{} {}", spelled(left), spelled(right))),
                _ => unreachable += 1,
            }
        }
        let mut tokens: Vec<String> = ranked.iter().map(|t| spelled(t)).collect();
        let mut types = vec![1; tokens.len()];
        tokens.extend(ADDED.iter().map(|(text, _)| (*text).to_owned()));
        types.extend(ADDED.iter().map(|(_, ty)| *ty));
        for id in tokens.len()..248_320 {
            tokens.push(format!("[PAD{id}]"));
            types.push(5);
        }
        Self { tokens, types, merges, unreachable }
    }

    pub(crate) fn spec(&self) -> TokenizerSpec<'_> {
        TokenizerSpec {
            model: "gpt2",
            pre: "qwen35",
            tokens: self.tokens.iter().map(String::as_str).collect(),
            token_types: self.types.clone(),
            merges: self.merges.iter().map(String::as_str).collect(),
            eos: 248_046,
            bos: None,
            chat_template: None,
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{text} is not base64"),
    };
    let bits = text.trim_end_matches('=').bytes().map(digit);
    let (mut out, mut held, mut count) = (Vec::new(), 0_u32, 0);
    for six in bits {
        held = held << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((held >> count) as u8);
        }
    }
    out
}

/// Merges the bytes of `token` by ranks below `limit`, lowest first, until none applies.
fn parts<'a>(token: &'a [u8], limit: usize, ranks: &HashMap<&[u8], usize>) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    loop {
        let candidates = (0..ends.len().saturating_sub(2)).filter_map(|i| {
            let rank = *ranks.get(&token[ends[i]..ends[i + 2]])?;
            (rank < limit).then_some((rank, i))
        });
        match candidates.min() {
            Some((_, i)) => ends.remove(i + 1),
            None => return ends.windows(2).map(|w| &token[w[0]..w[1]]).collect(),
        };
    }
}

/// Bytes in the byte alphabet.
pub(crate) fn spelled(bytes: &[u8]) -> String {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let others: Vec<u8> = (0..=255).filter(|&b| !printable(b)).collect();
    let character = |&b: &u8| match others.iter().position(|&o| o == b) {
        Some(i) => char::from_u32(0x100 + i as u32).unwrap(),
        None => char::from(b),
    };
    bytes.iter().map(character).collect()
}
