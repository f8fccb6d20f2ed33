//! The tokens so far, as the penalties see them.

use std::collections::HashMap;

use super::SamplingParams;

/// Which tokens a conversation has seen, and how often each was generated. Holds only what the active penalties need.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Bit set over token ids: in the prompt or generated. `None` without a repetition penalty.
    seen: Option<Vec<u32>>,
    /// How often each token was generated. `None` without a presence or frequency penalty.
    counts: Option<HashMap<u32, u32>>,
}

impl History {
    /// What `params` needs to know of `prompt` and `output`. Costs nothing where no penalty is active.
    #[must_use]
    pub fn new(params: &SamplingParams, prompt: &[u32], output: &[u32]) -> Self {
        let mut history = Self {
            seen: params.penalises_repetition().then(Vec::new),
            counts: params.penalises_counts().then(HashMap::new),
        };
        if let Some(seen) = &mut history.seen {
            for &token in prompt {
                insert(seen, token);
            }
        }
        if params.needs_history() {
            for &token in output {
                history.push(token);
            }
        }
        history
    }

    /// A token was generated, or a draft accepted.
    pub fn push(&mut self, token: u32) {
        if let Some(seen) = &mut self.seen {
            insert(seen, token);
        }
        if let Some(counts) = &mut self.counts {
            *counts.entry(token).or_default() += 1;
        }
    }

    /// Applies the repetition, frequency and presence penalties to `logits`.
    pub(super) fn penalise(&self, logits: &mut [f32], params: &SamplingParams) {
        for (word, &bits) in self.seen.iter().flatten().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let token = word * 32 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(logit) = logits.get_mut(token) {
                    if *logit > 0.0 {
                        *logit /= params.repetition_penalty;
                    } else {
                        *logit *= params.repetition_penalty;
                    }
                }
            }
        }
        for (&token, &count) in self.counts.iter().flatten() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= params.frequency_penalty * count as f32 + params.presence_penalty;
            }
        }
    }
}

fn insert(seen: &mut Vec<u32>, token: u32) {
    let word = token as usize / 32;
    if word >= seen.len() {
        seen.resize(word + 1, 0);
    }
    seen[word] |= 1 << (token % 32);
}
