//! From logits to a token: penalties, bias, masks, temperature, filters, and a draw by counter-based random numbers.
//!
//! A row's logits become a [`Distribution`] p, and [`Distribution::sample`] draws the token at its position from p, whether
//! the row is verified or sampled plainly. A draft stands if it is that token. So neither drafts nor their depth change a
//! text. Greedy decoding is the case where p has one token; it has no path of its own.
//!
//! The draft head draws from its own q by the same numbers. Since these are the tokens' own, p and q mostly yield the same
//! token where they are alike: with a chance of at least (1 - d) / (1 + d), where d is their total variation distance, and
//! no draft could do better than 1 - d (Daliri, Musco, Suresh: "Coupling without communication and drafter-invariant
//! speculative decoding", arXiv 2408.07978).

mod distribution;
mod filter;
mod history;
mod logprobs;
mod params;
mod philox;

pub use distribution::{Distribution, SamplingError};
pub use history::History;
pub use logprobs::logprobs;
pub use params::{InvalidParam, MAX_TOP_LOGPROBS, SamplingParams};

/// Whether every logit is a finite number. Where one is not, the conversation's state is spoilt.
#[must_use]
pub fn all_finite(logits: &[f32]) -> bool {
    // No early exit: the loop over a chunk then runs on vectors.
    logits.chunks(1024).all(|chunk| chunk.iter().fold(true, |ok, l| ok & l.is_finite()))
}
