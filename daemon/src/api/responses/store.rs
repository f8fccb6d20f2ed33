//! Conversations that `previous_response_id` may go on from. They are in memory only, the latest ones.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::api::conversation::history::History;

/// Most conversations.
const ENTRIES: usize = 1024;

/// Most bytes of JSON of all of them together.
const BYTES: usize = 64 << 20;

/// The latest conversations by the id of their last response.
#[derive(Debug, Default)]
pub struct ResponseStore(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first, each with its size.
    entries: VecDeque<(String, History, usize)>,
    bytes: usize,
}

impl ResponseStore {
    /// Keeps a conversation; the oldest make room for it.
    pub fn put(&self, id: String, history: History) {
        let size = history.bytes();
        if size > BYTES {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += size;
        kept.entries.push_back((id, history, size));
        while kept.entries.len() > ENTRIES || kept.bytes > BYTES {
            let Some((.., size)) = kept.entries.pop_front() else { break };
            kept.bytes -= size;
        }
    }

    /// The conversation that ended in response `id`.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<History> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.entries.iter().rev().find(|(known, ..)| known == id).map(|(_, history, _)| history.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let store = ResponseStore::default();
        let history = |len: usize| {
            let mut history = History::default();
            history.user(&"x".repeat(len));
            history
        };
        for i in 0..=ENTRIES {
            store.put(i.to_string(), history(1));
        }
        assert!(store.get("0").is_none() && store.get("1").is_some());
        store.put("large".into(), history(BYTES - 1000));
        assert!(store.get("large").is_some() && store.get("1").is_none());
        store.put("too large".into(), history(BYTES));
        assert!(store.get("too large").is_none() && store.get("large").is_some());
    }
}
