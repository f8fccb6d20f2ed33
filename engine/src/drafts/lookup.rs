//! Prompt lookup: where a conversation repeats itself, what followed last time is a good draft.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// Tokens of the key under which a place is remembered.
const KEY: usize = 3;
/// A match must be at least this long before its continuation is proposed.
const MIN_MATCH: usize = 5;

/// An index of a conversation's tokens by every run of `KEY` of them.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    tokens: Vec<u32>,
    /// Where the latest occurrence of a key ends, before the last token.
    ends: HashMap<[u32; KEY], u32, RandomState>,
}

impl Lookup {
    /// Appends tokens; each costs one insertion.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.tokens.reserve(tokens.len());
        self.ends.reserve(tokens.len());
        for &token in tokens {
            // A key becomes findable when something follows it.
            if let Some(key) = self.tokens.last_chunk::<KEY>() {
                self.ends.insert(*key, self.tokens.len() as u32);
            }
            self.tokens.push(token);
        }
    }

    /// Tokens seen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Nothing was seen yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Up to `max` tokens that followed the latest earlier occurrence of the present end; empty where the common run is
    /// shorter than five tokens.
    #[must_use]
    pub fn propose(&self, max: usize) -> &[u32] {
        let Some(&end) = self.tokens.last_chunk::<KEY>().and_then(|key| self.ends.get(key)) else { return &[] };
        let end = end as usize;
        let run = self.tokens[..end].iter().rev().zip(self.tokens.iter().rev()).take_while(|(a, b)| a == b);
        if run.take(MIN_MATCH).count() < MIN_MATCH {
            return &[];
        }
        &self.tokens[end..self.tokens.len().min(end + max)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_run_is_continued_as_last_time() {
        let mut lookup = Lookup::default();
        lookup.extend(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(lookup.propose(4).is_empty());
        lookup.extend(&[2, 3, 4, 5, 6]);
        assert_eq!(lookup.propose(2), [7, 8]);
        assert_eq!(lookup.propose(9), [7, 8, 9, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn the_latest_occurrence_wins_and_short_matches_are_not_enough() {
        let mut lookup = Lookup::default();
        lookup.extend(&[1, 2, 3, 4, 5, 60, 1, 2, 3, 4, 5, 70, 1, 2, 3, 4, 5]);
        assert_eq!(lookup.propose(1), [70]);
        lookup.extend(&[9, 3, 4, 5]);
        assert!(lookup.propose(1).is_empty());
    }

    #[test]
    fn one_token_over_and_over_proposes_itself() {
        let mut lookup = Lookup::default();
        lookup.extend(&[7; 10]);
        assert_eq!(lookup.propose(3), [7]);
    }
}
