//! Which token follows which, and where the draft head is wrong.

use serde::Serialize;

use super::blocks::Random;

/// Tokens before this one are bytes.
pub(super) const FIRST_ORDINARY: usize = 256;
/// So many tokens at the end are control tokens.
pub(super) const CONTROL_TOKENS: usize = 3;

/// The known text.
#[derive(Debug)]
pub(super) struct Chain {
    /// The token that a token follows; itself outside the cycle.
    pub(super) previous: Vec<u32>,
    /// What the draft head takes for it.
    pub(super) drafted: Vec<u32>,
    wrong: Vec<u32>,
}

/// What is written beside a model.
#[derive(Debug, Serialize)]
pub(super) struct Description {
    about: &'static str,
    /// The greedy successor of every token.
    pub(super) next: Vec<u32>,
    /// Successors that the draft head misses.
    pub(super) wrong_drafts: Vec<u32>,
}

impl Chain {
    pub(super) fn new(vocab: usize, acceptance: f64, seed: u64) -> Self {
        let mut random = Random::new(seed, u64::MAX, 0);
        let mut cycle: Vec<u32> = (FIRST_ORDINARY as u32..(vocab - CONTROL_TOKENS) as u32).collect();
        for i in (1..cycle.len()).rev() {
            cycle.swap(i, random.below(i + 1));
        }
        let mut previous: Vec<u32> = (0..vocab as u32).collect();
        for (i, &token) in cycle.iter().enumerate() {
            previous[token as usize] = cycle[(i + cycle.len() - 1) % cycle.len()];
        }
        let mut wrong: Vec<u32> = (0..vocab as u32).filter(|_| random.unit() >= acceptance).collect();
        // Wrong ones change places with each other, which one alone can't.
        if wrong.len() == 1 {
            wrong.clear();
        }
        let mut drafted = previous.clone();
        for (i, &token) in wrong.iter().enumerate() {
            drafted[token as usize] = previous[wrong[(i + wrong.len() - 1) % wrong.len()] as usize];
        }
        Self { previous, drafted, wrong }
    }

    pub(super) fn description(&self) -> Description {
        let mut next = vec![0; self.previous.len()];
        for (token, &previous) in self.previous.iter().enumerate() {
            next[previous as usize] = token as u32;
        }
        Description {
            about: "greedy decoding goes from token t to next[t]; fed with t, the draft head proposes another token exactly \
                    where next[t] is among wrong_drafts",
            next,
            wrong_drafts: self.wrong.clone(),
        }
    }
}
