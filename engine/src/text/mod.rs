//! Text to token ids and back: tokenizer, chat template, streaming detokenizer.

mod alphabet;
mod detokenizer;
mod spec;
mod split;
mod tokenizer;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use spec::{TokenKind, TokenizerError, TokenizerSpec};
pub use tokenizer::{ControlTokens, Tokenizer};
