//! Texts that were encoded before, and their tokens: a conversation comes back with every turn, and only what is new in it is work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

/// Bytes of it all; some two million tokens.
const BUDGET: usize = 16 << 20;
/// Bytes of what an entry takes beside its text and tokens, about.
const ENTRY: usize = 128;
/// Shorter texts are encoded as fast as they are found.
const SHORTEST: usize = 64;

/// Encoded texts, the most recently used ones. A text is found by comparing all of it.
pub(super) struct Segments(Mutex<Known>);

struct Known {
    texts: LruCache<Box<str>, Arc<[u32]>>,
    bytes: usize,
    budget: usize,
}

impl Segments {
    pub(super) fn new() -> Self {
        Self::with_budget(BUDGET)
    }

    fn with_budget(budget: usize) -> Self {
        Self(Mutex::new(Known { texts: LruCache::unbounded(), bytes: 0, budget }))
    }

    /// The tokens of `text`, from `encode` if they are not known.
    pub(super) fn get(&self, text: &str, encode: impl FnOnce() -> Vec<u32>) -> Arc<[u32]> {
        if text.len() < SHORTEST {
            return encode().into();
        }
        // A statement of its own, so that others are not kept waiting by `encode`.
        let known = self.known().texts.get(text).cloned();
        known.unwrap_or_else(|| {
            let tokens: Arc<[u32]> = encode().into();
            self.known().keep(text, &tokens);
            tokens
        })
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        let mut known = self.known();
        known.texts.clear();
        known.bytes = 0;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn keep(&mut self, text: &str, tokens: &Arc<[u32]>) {
        let bytes = bytes(text, tokens);
        // One text may not drive out most of the others.
        if bytes > self.budget / 4 {
            return;
        }
        if self.texts.put(text.into(), Arc::clone(tokens)).is_none() {
            self.bytes += bytes;
        }
        while self.bytes > self.budget {
            let Some((text, tokens)) = self.texts.pop_lru() else { return };
            self.bytes -= self::bytes(&text, &tokens);
        }
    }
}

fn bytes(text: &str, tokens: &[u32]) -> usize {
    ENTRY + text.len() + size_of_val(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(n: u32) -> String {
        format!("{n:>100}")
    }

    /// Asks for the tokens of a text and says whether they had to be made.
    fn made(segments: &Segments, n: u32) -> bool {
        let mut made = false;
        let tokens = segments.get(&text(n), || {
            made = true;
            vec![n; 10]
        });
        assert_eq!(tokens[..], [n; 10]);
        made
    }

    #[test]
    fn a_text_is_encoded_once_until_it_is_forgotten() {
        let segments = Segments::new();
        assert!(made(&segments, 1) && made(&segments, 2));
        assert!(!made(&segments, 1) && !made(&segments, 2));
        segments.clear();
        assert!(made(&segments, 1));
        assert_eq!(segments.known().bytes, ENTRY + 100 + 40);
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let segments = Segments::with_budget(5 * (ENTRY + 100 + 40));
        (0..5).for_each(|n| assert!(made(&segments, n)));
        assert!(!made(&segments, 0));
        assert!(made(&segments, 5));
        assert!(!made(&segments, 0) && made(&segments, 1));
        assert_eq!(segments.known().bytes, 5 * (ENTRY + 100 + 40));
        // A text that is larger than a quarter of it all is not kept.
        let large = "x".repeat(1000);
        segments.get(&large, Vec::new);
        assert_eq!(segments.known().texts.len(), 5);
    }
}
