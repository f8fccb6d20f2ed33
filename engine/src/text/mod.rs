//! Text to token ids and back: tokenizer, chat template, streaming detokenizer, and the parser of what a model writes.

mod alphabet;
mod detokenizer;
mod guard;
mod output;
mod python;
mod segments;
mod spec;
mod split;
mod template;
mod tokenizer;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use output::{CallCounts, OutputEvent, OutputParser, OutputPart, ToolSchemas};
pub(crate) use output::{Conversion, conversion};
pub use spec::{TokenKind, TokenizerError, TokenizerSpec};
pub use template::{Chat, ChatTemplate, Prompt, TemplateError};
pub use tokenizer::{ControlTokens, Tokenizer};
