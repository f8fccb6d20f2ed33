//! Text to token ids and back: tokenizer, chat template, streaming detokenizer.

mod alphabet;
mod detokenizer;
mod guard;
mod python;
mod spec;
mod split;
mod template;
mod tokenizer;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use spec::{TokenKind, TokenizerError, TokenizerSpec};
pub use template::{Chat, ChatTemplate, Prompt, TemplateError, parse_arguments};
pub use tokenizer::{ControlTokens, Tokenizer};
