//! The parts of a conversation, and their names.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::step::PAGE_TOKENS;

/// Pages in one part; the last part of a conversation may have fewer.
pub(crate) const GROUP_PAGES: usize = 16;

/// What a part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartKind {
    /// Cells of consecutive pages.
    Pages { first: usize, count: usize },
    /// The recurrent state after so many tokens, a multiple of a page.
    Snapshot { at: usize },
    /// The recurrent state after all tokens.
    End,
}

/// Name of a part, made of what decides its bits: model and layout, the tokens up to its end, and, for what the model wrote
/// itself, which conversation it was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) [u8; 16]);

impl Key {
    fn of(hasher: &blake3::Hasher) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(key)
    }

    /// A key for these texts.
    pub(crate) fn new(texts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for text in texts {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
        Self::of(&hasher)
    }

    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut key = [0; 16];
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(key))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("a key is 32 hexadecimal digits"))
    }
}

/// The parts of a conversation: groups of pages, snapshots at these positions, the end. What lies within the first `read`
/// tokens has the bits of a cold read, so that conversations share it; the rest is `lineage`'s own.
pub(crate) fn parts(
    identity: Key,
    lineage: u64,
    tokens: &[u32],
    read: usize,
    snapshots: &[usize],
) -> Vec<(PartKind, Key)> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&identity.0);
    let mut hashed = 0;
    // Prefixes are hashed in ascending order, each token once.
    let mut key = |tag: u8, end: usize| {
        hasher.update(bytemuck::cast_slice(&tokens[hashed..end]));
        hashed = end;
        let mut hasher = hasher.clone();
        hasher.update(&[tag]);
        hasher.update(&if end <= read { 0 } else { lineage }.to_le_bytes());
        Key::of(&hasher)
    };
    let group = GROUP_PAGES * PAGE_TOKENS;
    let mut wanted: Vec<(usize, u8, PartKind)> = (0..tokens.len().div_ceil(group))
        .map(|i| {
            let end = ((i + 1) * group).min(tokens.len());
            let count = end.div_ceil(PAGE_TOKENS) - i * GROUP_PAGES;
            (end, 0, PartKind::Pages { first: i * GROUP_PAGES, count })
        })
        .collect();
    wanted.extend(snapshots.iter().map(|&at| (at, 1, PartKind::Snapshot { at })));
    wanted.push((tokens.len(), 2, PartKind::End));
    wanted.sort_by_key(|&(end, tag, _)| (end, tag));
    wanted.into_iter().map(|(end, tag, kind)| (kind, key(tag, end))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn conversations_share_what_was_read_and_nothing_that_was_written() {
        let identity = Key([1; 16]);
        let tokens: Vec<u32> = (0..3000).collect();
        let mine = parts(identity, 1, &tokens, 2048, &[1024, 2048]);
        let other = parts(identity, 2, &tokens, 2048, &[2048]);
        let keys = |parts: &[(PartKind, Key)]| parts.iter().map(|(_, key)| *key).collect::<Vec<_>>();
        let shared: Vec<_> = mine.iter().filter(|(_, key)| keys(&other).contains(key)).map(|(kind, _)| *kind).collect();
        let group = |first| PartKind::Pages { first, count: 16 };
        assert_eq!(shared, [group(0), group(16), PartKind::Snapshot { at: 2048 }]);
        assert_eq!(mine.last().unwrap().0, PartKind::End);
        // Another model shares nothing, and no two parts have one name.
        let foreign = keys(&parts(Key([2; 16]), 1, &tokens, 2048, &[1024, 2048]));
        assert!(keys(&mine).iter().all(|key| !foreign.contains(key)));
        let mut names = keys(&mine);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), mine.len());
        // One token more, and the pages that it lies in are others.
        let longer: Vec<u32> = (0..3001).collect();
        let longer = keys(&parts(identity, 1, &longer, 2048, &[]));
        assert_eq!(mine.iter().filter(|(_, key)| longer.contains(key)).count(), 2);
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let key = Key::new(&[b"a", b"b"]);
        assert_eq!(Key::parse(&key.to_string()), Some(key));
        assert_ne!(key, Key::new(&[b"ab", b""]));
        assert_eq!(Key::parse("xy"), None);
        assert_eq!(Key::parse(&"é".repeat(16)), None);
    }
}
