//! What is on disk, in memory: for finding the conversation that a prompt goes on from, and for keeping to the limits.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use super::head::{Head, PartRecord};
use super::part::Key;
use crate::step::PAGE_TOKENS;

/// Name of a conversation on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(crate) u64);

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Conversations and parts on disk.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(super) conversations: HashMap<Id, Entry>,
    /// Every part that a head names.
    parts: HashMap<Key, PartRecord>,
    /// Parts that a save under way counts on.
    pins: HashMap<Key, usize>,
}

/// A conversation on disk.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(super) head: Head,
    /// When it was written or gone on from.
    pub(super) used: SystemTime,
}

impl Index {
    pub(super) fn insert(&mut self, id: Id, head: Head, used: SystemTime) {
        for part in &head.about.parts {
            self.parts.insert(part.key, part.clone());
        }
        self.conversations.insert(id, Entry { head, used });
    }

    /// The conversation of this model that `prompt` can go on from the furthest, and from where: all of it, or a snapshot in
    /// what the two have in common. Every token is compared.
    pub(super) fn best(&self, identity: Key, prompt: &[u32]) -> Option<(Id, usize)> {
        let own = self.conversations.iter().filter(|(_, e)| e.head.about.identity == identity);
        own.filter_map(|(&id, e)| Some((id, reach(&e.head.tokens, &e.head.snapshots(), prompt)?)))
            .max_by_key(|&(id, at)| (at, id.0))
    }

    pub(super) fn part(&self, key: Key) -> Option<&PartRecord> {
        self.parts.get(&key)
    }

    /// Keeps `keys` from being dropped until [`Self::unpin`].
    pub(super) fn pin(&mut self, keys: &[Key]) {
        keys.iter().for_each(|&key| *self.pins.entry(key).or_default() += 1);
    }

    pub(super) fn unpin(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(n) = self.pins.get_mut(key) {
                *n -= 1;
                if *n == 0 {
                    self.pins.remove(key);
                }
            }
        }
    }

    /// Bytes of all parts; a part that several conversations share counts once.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.values().map(|part| part.bytes).sum()
    }

    /// Bytes of a conversation's parts.
    pub(super) fn bytes_of(head: &Head) -> u64 {
        head.about.parts.iter().map(|part| part.bytes).sum()
    }

    /// The conversation that was used longest ago; `newest` only if there is no other.
    pub(super) fn oldest(&self, newest: Option<Id>) -> Option<Id> {
        self.conversations.iter().min_by_key(|&(&id, e)| (Some(id) == newest, e.used, id.0)).map(|(&id, _)| id)
    }

    /// Forgets the parts that no conversation names and no save counts on, and returns them.
    pub(super) fn drop_unused(&mut self) -> Vec<Key> {
        let named: HashSet<Key> =
            self.conversations.values().flat_map(|e| e.head.about.parts.iter().map(|part| part.key)).collect();
        let pins = &self.pins;
        let unused = self.parts.keys().filter(|key| !named.contains(key) && !pins.contains_key(key)).copied();
        let unused: Vec<Key> = unused.collect();
        unused.iter().for_each(|key| drop(self.parts.remove(key)));
        unused
    }
}

/// Where `prompt` can go on: after all of `tokens`, or at the deepest of `snapshots` in what the two have in common. At least
/// one token of the prompt must be left to compute.
pub(crate) fn reach(tokens: &[u32], snapshots: &[usize], prompt: &[u32]) -> Option<usize> {
    let usable = &prompt[..prompt.len().saturating_sub(1)];
    let common = tokens.iter().zip(usable).take_while(|(a, b)| a == b).count();
    if common == tokens.len() && common > 0 {
        return Some(common);
    }
    debug_assert!(snapshots.iter().all(|at| at.is_multiple_of(PAGE_TOKENS)));
    snapshots.iter().copied().filter(|&at| at <= common).max()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::super::head::tests::head;
    use super::*;

    #[test]
    fn a_prompt_goes_on_from_all_of_a_conversation_or_from_a_snapshot_inside_it() {
        let tokens: Vec<u32> = (0..200).collect();
        let with = |change: usize| (0..250).map(|i| i + u32::from(i as usize == change)).collect::<Vec<u32>>();
        assert_eq!(reach(&tokens, &[64, 128], &with(230)), Some(200));
        assert_eq!(reach(&tokens, &[64, 128], &with(199)), Some(128));
        assert_eq!(reach(&tokens, &[64, 128], &with(127)), Some(64));
        assert_eq!(reach(&tokens, &[64, 128], &with(63)), None);
        assert_eq!(reach(&tokens, &[64, 128], &tokens), Some(128), "one token must be left");
        assert_eq!(reach(&tokens, &[], &[]), None);
    }

    #[test]
    fn other_models_are_not_gone_on_from_and_parts_leave_with_the_last_that_names_them() {
        let (mine, other) = (Key([1; 16]), Key([2; 16]));
        let mut index = Index::default();
        let then = SystemTime::UNIX_EPOCH;
        index.insert(Id(1), head(mine, "a", (0..100).collect()), then + Duration::from_secs(5));
        index.insert(Id(2), head(other, "b", (0..120).collect()), then);
        assert_eq!(index.best(mine, &(0..150).collect::<Vec<_>>()), Some((Id(1), 100)));
        assert_eq!(index.best(Key([3; 16]), &(0..150).collect::<Vec<_>>()), None);
        assert_eq!((index.bytes(), index.oldest(None), index.oldest(Some(Id(2)))), (9, Some(Id(2)), Some(Id(1))));
        index.conversations.remove(&Id(1));
        assert!(index.drop_unused().is_empty(), "the other one names the same parts");
        index.pin(&[Key([1; 16])]);
        index.conversations.remove(&Id(2));
        assert_eq!(index.drop_unused().len(), 2);
        index.unpin(&[Key([1; 16])]);
        assert_eq!((index.drop_unused().len(), index.bytes()), (1, 0));
    }
}
