//! Token ids to text, as they come.

use std::sync::Arc;

use super::{TokenKind, Tokenizer};

/// Turns tokens into text one by one and never cuts a character: bytes are held back until it is whole.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// Print control tokens too.
    control: bool,
    /// The beginning of a character.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// `control`: print control tokens (`<|im_end|>`) too.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, control: bool) -> Self {
        Self { tokenizer, control, pending: Vec::new() }
    }

    /// The text that became whole with this token. Bytes that can't become a character any more are U+FFFD.
    pub fn push(&mut self, token: u32) -> Option<String> {
        match self.tokenizer.kind(token) {
            TokenKind::Normal | TokenKind::UserDefined => {}
            TokenKind::Control if self.control => {}
            TokenKind::Control | TokenKind::Unused => return None,
        }
        self.pending.extend_from_slice(self.tokenizer.token_bytes(token));
        let whole = whole_prefix(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..whole]).into_owned();
        self.pending.drain(..whole);
        (!text.is_empty()).then_some(text)
    }

    /// The end: U+FFFD if the last character is not whole.
    pub fn finish(&mut self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        (!text.is_empty()).then_some(text)
    }
}

/// Length of `bytes` without the beginning of a character at its end.
fn whole_prefix(bytes: &[u8]) -> usize {
    let unfinished = bytes.utf8_chunks().last().map_or(0, |chunk| {
        let tail = chunk.invalid();
        // `error_len` is `None` just where more bytes could make the tail a character.
        match std::str::from_utf8(tail) {
            Err(e) if e.valid_up_to() == 0 && e.error_len().is_none() => tail.len(),
            _ => 0,
        }
    });
    bytes.len() - unfinished
}
