//! Bytes and kind of every token.

use std::collections::HashMap;

use super::alphabet;
use super::spec::{TokenKind, TokenizerError};

/// A checked vocabulary.
#[derive(Debug)]
pub(super) struct Vocabulary {
    /// All tokens' bytes, one after the other.
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
    /// Control and user-defined tokens.
    added: Vec<u32>,
}

impl Vocabulary {
    /// Checks spellings and types: kinds are known, no token is empty or there twice, and every byte has its own.
    pub(super) fn new(tokens: &[&str], types: &[i32]) -> Result<Self, TokenizerError> {
        if tokens.len() != types.len() {
            return Err(TokenizerError::Lengths { tokens: tokens.len(), types: types.len() });
        }
        let mut vocabulary = Self {
            bytes: Vec::with_capacity(tokens.iter().map(|t| t.len()).sum()),
            ends: Vec::with_capacity(tokens.len()),
            kinds: Vec::with_capacity(tokens.len()),
            added: Vec::new(),
        };
        let mut first: HashMap<&str, u32> = HashMap::with_capacity(tokens.len());
        for (id, (&text, &found)) in tokens.iter().zip(types).enumerate() {
            let kind = TokenKind::from_id(found).ok_or(TokenizerError::Type { id, found })?;
            match kind {
                TokenKind::Normal => {
                    for character in text.chars() {
                        let byte = alphabet::byte(character);
                        let unknown = || TokenizerError::Alphabet { id, text: text.into(), character };
                        vocabulary.bytes.push(byte.ok_or_else(unknown)?);
                    }
                }
                TokenKind::Control | TokenKind::UserDefined => {
                    vocabulary.bytes.extend_from_slice(text.as_bytes());
                    vocabulary.added.push(id as u32);
                }
                TokenKind::Unused => vocabulary.bytes.extend_from_slice(text.as_bytes()),
            }
            vocabulary.ends.push(vocabulary.bytes.len());
            vocabulary.kinds.push(kind);
            if kind != TokenKind::Unused {
                if text.is_empty() {
                    return Err(TokenizerError::Empty { id });
                }
                if let Some(first) = first.insert(text, id as u32) {
                    return Err(TokenizerError::Duplicate { id, first, text: text.into() });
                }
            }
        }
        for (byte, &character) in (0..=255).zip(alphabet::CHARS.iter()) {
            let token = first.get(character.encode_utf8(&mut [0; 4]) as &str);
            if token.is_none_or(|&id| vocabulary.kind(id) != TokenKind::Normal) {
                return Err(TokenizerError::MissingByte { byte, character });
            }
        }
        Ok(vocabulary)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// A token's bytes, none for an id outside the vocabulary.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends.get(id - 1).copied().unwrap_or(self.bytes.len()) };
        let end = self.ends.get(id).copied().unwrap_or(self.bytes.len());
        &self.bytes[start..end]
    }

    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    /// Control or user-defined tokens, with their bytes.
    pub(super) fn of_kind(&self, kind: TokenKind) -> impl Iterator<Item = (u32, &[u8])> + Clone {
        self.added.iter().copied().filter(move |&id| self.kind(id) == kind).map(|id| (id, self.bytes(id)))
    }
}
