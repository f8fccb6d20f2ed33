//! The distribution that a row's token is drawn from.

use std::borrow::Cow;

use super::filter::{self, Scored};
use super::philox::uniform;
use super::{History, SamplingParams, all_finite};

/// Probabilities of the tokens that may come next; all others have 0.
///
/// Tokens stand in ascending order, each with a probability above 0; the probabilities sum to 1 within rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    tokens: Vec<u32>,
    probs: Vec<f32>,
}

/// Why logits yield no distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    /// A logit is NaN or infinite.
    #[error("the logits are not finite")]
    NotFinite,
    /// The mask holds no token that the vocabulary has.
    #[error("no token is allowed")]
    NothingAllowed,
}

impl Distribution {
    /// All probability on one token: the greedy choice.
    #[must_use]
    pub fn one_hot(token: u32) -> Self {
        Self { tokens: vec![token], probs: vec![1.0] }
    }

    /// What the sampler makes of a row's `logits` (one for each token of the vocabulary), in the order that
    /// [`SamplingParams`] states. `mask` is a bit set of the tokens that are allowed (bit `t % 32` of word `t / 32`);
    /// tokens past its end are not.
    ///
    /// The arithmetic is f64 from the temperature on; each filter works on what the one before it kept.
    ///
    /// # Errors
    /// [`SamplingError`] where there is nothing to draw from.
    pub fn new(
        logits: &[f32],
        params: &SamplingParams,
        history: &History,
        mask: Option<&[u32]>,
    ) -> Result<Self, SamplingError> {
        if !all_finite(logits) {
            return Err(SamplingError::NotFinite);
        }
        let logits = adjust(logits, params, history, mask);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            return Err(SamplingError::NothingAllowed);
        }
        if params.temperature == 0.0 {
            let best = logits.iter().position(|&l| l == max).unwrap_or_default();
            return Ok(Self::one_hot(best as u32));
        }

        // Relative to the best token, whose weight is exactly 1. Dividing keeps 0 / T = 0 for the smallest of temperatures.
        let weight = |logit: f32| ((f64::from(logit) - f64::from(max)) / f64::from(params.temperature)).exp();
        let k = params.top_k as usize;
        let mut weights: Vec<Scored<f64>> = if k == 0 || k >= logits.len() {
            logits.iter().enumerate().map(|(id, &l)| (id as u32, weight(l))).collect()
        } else {
            filter::top_k(&logits, k).into_iter().map(|(id, l)| (id, weight(l))).collect()
        };
        if params.top_p < 1.0 {
            filter::top_p(&mut weights, f64::from(params.top_p));
        }
        if params.min_p > 0.0 {
            filter::min_p(&mut weights, f64::from(params.min_p));
        }
        weights.sort_unstable_by_key(|w| w.0);
        Ok(Self::normalised(weights))
    }

    /// `weights` in ascending order of tokens, scaled to sum to 1; what rounds to 0 is left out.
    fn normalised(weights: Vec<Scored<f64>>) -> Self {
        let total: f64 = weights.iter().map(|w| w.1).sum();
        let (tokens, probs) = weights
            .into_iter()
            .map(|(token, weight)| (token, (weight / total) as f32))
            .filter(|&(_, prob)| prob > 0.0)
            .unzip();
        Self { tokens, probs }
    }

    /// Probability of a token, 0 for those that can't come.
    #[must_use]
    pub fn prob(&self, token: u32) -> f32 {
        self.tokens.binary_search(&token).map_or(0.0, |i| self.probs[i])
    }

    /// The tokens that can come, in ascending order, with their probabilities.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, f32)> + '_ {
        self.tokens.iter().copied().zip(self.probs.iter().copied())
    }

    /// Draws the token at `position`: every token arrives after a time of its own, exponentially distributed with its
    /// probability as the rate, and the first one is taken; of equals the lowest. Times are those of unit rate, by
    /// uniform numbers of (seed, position, token), divided by the rate, in f64.
    #[must_use]
    pub fn sample(&self, seed: u64, position: u32) -> u32 {
        let (mut chosen, mut speed) = (self.tokens.first().copied().unwrap_or_default(), 0.0);
        for (token, prob) in self.iter() {
            let (u, prob) = (uniform(seed, position, token), f64::from(prob));
            // The time is at least u: most tokens are too late in any case.
            if prob > speed * u {
                let this = prob / -(-u).ln_1p();
                if this > speed {
                    (chosen, speed) = (token, this);
                }
            }
        }
        chosen
    }
}

/// Penalties, bias and mask; borrows where there are none.
fn adjust<'a>(logits: &'a [f32], params: &SamplingParams, history: &History, mask: Option<&[u32]>) -> Cow<'a, [f32]> {
    let mut logits = Cow::Borrowed(logits);
    if params.needs_history() {
        history.penalise(logits.to_mut(), params);
    }
    for &(token, bias) in &params.logit_bias {
        if let Some(logit) = logits.to_mut().get_mut(token as usize) {
            *logit += bias;
        }
    }
    if let Some(mask) = mask {
        forbid(logits.to_mut(), mask);
    }
    logits
}

/// Takes tokens that a bit set doesn't hold out of the running.
pub(super) fn forbid(logits: &mut [f32], allowed: &[u32]) {
    for (id, logit) in logits.iter_mut().enumerate() {
        if allowed.get(id / 32).is_none_or(|word| word >> (id % 32) & 1 == 0) {
            *logit = f32::NEG_INFINITY;
        }
    }
}
