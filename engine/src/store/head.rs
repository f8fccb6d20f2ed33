//! The file that describes a conversation: who and what it is, its tokens, and which parts hold its bytes.
//!
//! Layout: [`MAGIC`], the description's length as u32, the description in JSON, the tokens as u32, and the BLAKE3 hash of
//! everything before it; numbers are little-endian.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::part::{GROUP_PAGES, Key, PartKind};
use crate::step::PAGE_TOKENS;

/// Begins every head; the digit is the format's version. Raise it when a head, a part, or a backend's images change.
const MAGIC: &[u8; 8] = b"OPENJET1";

/// Bytes of the hash at the end.
const HASH: usize = blake3::OUT_LEN;

/// A conversation on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) about: About,
    /// All tokens that the state at the end has seen.
    pub(crate) tokens: Vec<u32>,
}

/// What a head says of its conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct About {
    /// Model and layout that it belongs to.
    pub(crate) identity: Key,
    /// Key of the conversation that its requests were pinned to.
    pub(crate) session: Option<String>,
    /// Tells the cells that the model wrote itself from those of other conversations with the same tokens.
    pub(crate) lineage: u64,
    /// Tokens at the beginning whose cells have the bits of a cold read.
    pub(crate) read: usize,
    /// Where the answer of the last request begins.
    pub(crate) history: usize,
    pub(crate) parts: Vec<PartRecord>,
}

/// A part of a conversation, and how to know it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartRecord {
    pub(crate) kind: PartKind,
    pub(crate) key: Key,
    pub(crate) bytes: u64,
    /// BLAKE3 hash of its bytes, in hexadecimal.
    pub(crate) hash: String,
}

impl Head {
    /// The file's content.
    ///
    /// # Errors
    /// When the description can't be written as JSON.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let about = serde_json::to_vec(&self.about)?;
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&(about.len() as u32).to_le_bytes());
        out.extend_from_slice(&about);
        out.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        let hash = blake3::hash(&out);
        out.extend_from_slice(hash.as_bytes());
        Ok(out)
    }

    /// Reads a file's content.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let body = bytes.len().checked_sub(HASH).ok_or("it is too short")?;
        let (body, hash) = bytes.split_at(body);
        if blake3::hash(body).as_bytes()[..] != *hash {
            return Err("its bytes are not those that were written".into());
        }
        let rest = body.strip_prefix(MAGIC).ok_or("it is no conversation of this version")?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or("it is too short")?;
        let (about, tokens) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or("it is too short")?;
        let about: About = serde_json::from_slice(about).map_err(|error| error.to_string())?;
        let (tokens, left) = tokens.as_chunks::<4>();
        if !left.is_empty() {
            return Err("its tokens are cut off".into());
        }
        let head = Self { about, tokens: tokens.iter().map(|token| u32::from_le_bytes(*token)).collect() };
        head.check()?;
        Ok(head)
    }

    /// The parts must be those of the tokens, in order: all pages, some snapshots, the end.
    fn check(&self) -> Result<(), String> {
        let pages = self.tokens.len().div_ceil(PAGE_TOKENS);
        let (mut next, mut ends, mut seen) = (0, 0, HashSet::new());
        for part in &self.about.parts {
            match part.kind {
                PartKind::Pages { first, count } => {
                    if first != next || count == 0 || count > GROUP_PAGES {
                        return Err(format!("its pages from {first} on are out of order"));
                    }
                    next = first + count;
                }
                PartKind::Snapshot { at } if at == 0 || !at.is_multiple_of(PAGE_TOKENS) || at > self.about.read => {
                    return Err(format!("it has a snapshot at {at}, where none can be"));
                }
                PartKind::Snapshot { at } if !seen.insert(at) => return Err(format!("it has two snapshots at {at}")),
                PartKind::Snapshot { .. } => {}
                PartKind::End => ends += 1,
            }
        }
        if next != pages || ends != 1 || self.tokens.is_empty() || self.about.read > self.tokens.len() {
            return Err(format!("it describes {next} pages of {pages} and {ends} ends"));
        }
        Ok(())
    }

    /// Positions of the snapshots.
    pub(crate) fn snapshots(&self) -> Vec<usize> {
        let at = |part: &PartRecord| match part.kind {
            PartKind::Snapshot { at } => Some(at),
            _ => None,
        };
        self.about.parts.iter().filter_map(at).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A head of `tokens` tokens, of which the first page was read as prompt.
    pub(in crate::store) fn head(identity: Key, session: &str, tokens: Vec<u32>) -> Head {
        let pages = tokens.len().div_ceil(PAGE_TOKENS);
        let record = |kind, n: u8| PartRecord { kind, key: Key([n; 16]), bytes: 3, hash: "00".into() };
        let mut parts = vec![record(PartKind::Pages { first: 0, count: pages }, 1)];
        parts.extend([record(PartKind::Snapshot { at: 64 }, 2), record(PartKind::End, 3)]);
        let session = Some(session.to_owned());
        Head { about: About { identity, session, lineage: 7, read: 64, history: 70, parts }, tokens }
    }

    #[test]
    fn a_head_comes_back_and_no_damaged_byte_passes() {
        let head = head(Key([9; 16]), "s", (0..100).collect());
        let bytes = head.encode().unwrap();
        assert_eq!(Head::decode(&bytes).unwrap(), head);
        for i in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[i] ^= 1 << (i % 8);
            assert!(Head::decode(&damaged).is_err(), "byte {i}");
            assert!(Head::decode(&bytes[..i]).is_err(), "{i} bytes");
        }
    }

    #[test]
    fn parts_that_do_not_fit_the_tokens_are_refused() {
        let good = head(Key([9; 16]), "s", (0..100).collect());
        let refused = |change: fn(&mut Head)| {
            let mut head = good.clone();
            change(&mut head);
            Head::decode(&head.encode().unwrap()).unwrap_err()
        };
        assert!(refused(|h| h.tokens.extend(0..64)).contains("pages"));
        assert!(refused(|h| h.tokens.clear()).contains("pages"));
        assert!(refused(|h| h.about.parts.truncate(2)).contains("0 ends"));
        assert!(refused(|h| h.about.parts[1].kind = PartKind::Snapshot { at: 65 }).contains("65"));
        assert!(refused(|h| h.about.parts[1].kind = PartKind::Snapshot { at: 128 }).contains("128"));
        assert!(refused(|h| h.about.parts[0].kind = PartKind::Pages { first: 1, count: 1 }).contains("order"));
        assert!(refused(|h| h.about.read = 101).contains("pages"));
    }
}
