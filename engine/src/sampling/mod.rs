//! From logits to a token: penalties, bias, masks, temperature, filters, counter-based random numbers, and the accept test
//! for drafts.
//!
//! A row's logits become a [`Distribution`] p, the same one whether the row is verified or sampled plainly. Where a draft
//! token d was drawn from q, [`verify`] decides on it; after a rejection the token comes from [`residual`], after the last
//! acceptance (or without drafts) from p itself. Greedy decoding is the case where p has one token; it has no path of its
//! own.

mod distribution;
mod filter;
mod history;
mod logprobs;
mod params;
mod philox;
mod speculative;

pub use distribution::{Distribution, SamplingError};
pub use history::History;
pub use logprobs::logprobs;
pub use params::{InvalidParam, MAX_TOP_LOGPROBS, SamplingParams};
pub use philox::{Purpose, uniform};
pub use speculative::{Verdict, residual, verify};

/// Whether every logit is a finite number. Where one is not, the conversation's state is spoilt.
#[must_use]
pub fn all_finite(logits: &[f32]) -> bool {
    // No early exit: the loop over a chunk then runs on vectors.
    logits.chunks(1024).all(|chunk| chunk.iter().fold(true, |ok, l| ok & l.is_finite()))
}
