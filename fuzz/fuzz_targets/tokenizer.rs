//! Any text through the shipped model's tokenizer: its tokens' bytes are the text again.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use openjet_engine::gguf::GgufFile;
use openjet_engine::text::{ControlTokens, Detokenizer, Tokenizer, TokenizerSpec};

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let file = GgufFile::from_bytes("shipped", &include_bytes!("../../assets/openjet-tiny-Q4_K_M.gguf")[..]);
    let file = file.expect("the shipped model is well-formed");
    let spec = TokenizerSpec::from_gguf(&file).expect("it has a tokenizer");
    Arc::new(Tokenizer::new(&spec).expect("it can be built"))
});

fuzz_target!(|text: &str| {
    let tokens = TOKENIZER.encode(text, ControlTokens::AsText);
    let mut detokenizer = Detokenizer::new(TOKENIZER.clone(), true);
    let mut back: String = tokens.iter().filter_map(|&token| detokenizer.push(token)).collect();
    back.extend(detokenizer.finish());
    // Normalisation may change a text once, but not twice.
    let again = TOKENIZER.encode(&back, ControlTokens::AsText);
    assert_eq!(tokens, again, "{text:?} came back as {back:?}");
});
