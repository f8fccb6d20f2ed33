//! What a model file says about its tokenizer.

use crate::gguf::{GgufError, GgufFile};

/// The tokenizer's part of a model file, as it stands there.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerSpec<'a> {
    /// `tokenizer.ggml.model`; `gpt2` stands for byte-level BPE.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: name of the pattern by which text is cut before merging.
    pub pre: &'a str,
    /// Spelling of each token: in the byte alphabet, or literal for control and user-defined tokens.
    pub tokens: Vec<&'a str>,
    /// What each token is: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused.
    pub token_types: Vec<i32>,
    /// Pairs that merge, `left right`, best first.
    pub merges: Vec<&'a str>,
    /// Token that ends a turn.
    pub eos: u32,
    /// Token that begins a text, where the file has one. It is never prepended; templates may print it.
    pub bos: Option<u32>,
    /// Source of the chat template, where the file has one.
    pub chat_template: Option<&'a str>,
}

impl<'a> TokenizerSpec<'a> {
    /// Reads the tokenizer's keys.
    ///
    /// # Errors
    /// A key that is missing or of the wrong type.
    pub fn from_gguf(file: &'a GgufFile) -> Result<Self, GgufError> {
        Ok(Self {
            model: file.get("tokenizer.ggml.model")?,
            pre: file.get("tokenizer.ggml.pre")?,
            tokens: file.get("tokenizer.ggml.tokens")?,
            token_types: file.get("tokenizer.ggml.token_type")?,
            merges: file.get("tokenizer.ggml.merges")?,
            eos: file.get("tokenizer.ggml.eos_token_id")?,
            bos: file.get_opt("tokenizer.ggml.bos_token_id")?,
            chat_template: file.get_opt("tokenizer.chat_template")?,
        })
    }
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Text, reached by merging.
    Normal,
    /// Structure: ends a turn, for example. Not printed, and never read out of what a user typed.
    Control,
    /// Matched in any text, and printed.
    UserDefined,
    /// A filler that must never be generated.
    Unused,
}

impl TokenKind {
    /// The kind of a number in `tokenizer.ggml.token_type`.
    pub(super) fn from_id(id: i32) -> Option<Self> {
        match id {
            1 => Some(Self::Normal),
            3 => Some(Self::Control),
            4 => Some(Self::UserDefined),
            2 | 5 => Some(Self::Unused),
            _ => None,
        }
    }
}

/// Why a file's tokenizer can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TokenizerError {
    #[error("tokenizer.ggml.model is {found:?}; OpenJet knows \"gpt2\" (byte-level BPE)")]
    Model { found: String },
    #[error("tokenizer.ggml.pre is {found:?}; OpenJet knows {}", known.join(" and "))]
    Pre { found: String, known: Vec<&'static str> },
    #[error("tokenizer.ggml.tokens has {tokens} entries, but tokenizer.ggml.token_type has {types}")]
    Lengths { tokens: usize, types: usize },
    #[error("token {id} has type {found} in tokenizer.ggml.token_type, expected 1 to 5")]
    Type { id: usize, found: i32 },
    #[error("token {id} is empty")]
    Empty { id: usize },
    #[error("token {id} is {text:?}, the same as token {first}")]
    Duplicate { id: usize, first: u32, text: String },
    #[error("token {id} is {text:?}; its character {character:?} stands for no byte")]
    Alphabet { id: usize, text: String, character: char },
    #[error("no token stands for byte {byte:#04x} ({character:?} in the byte alphabet)")]
    MissingByte { byte: u8, character: char },
    #[error("merge {rank} is {text:?}, expected two tokens with one space between them")]
    MergeForm { rank: usize, text: String },
    #[error("merge {rank} is {text:?}, but there is no token {missing:?}")]
    MergeToken { rank: usize, text: String, missing: String },
    #[error("{key} is {id}, but there are only {tokens} tokens")]
    SpecialId { key: &'static str, id: u32, tokens: usize },
    #[error("the tokenizer can't be built: {0}")]
    Build(String),
}
