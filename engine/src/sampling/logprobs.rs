//! Log probabilities of a row, as the API reports them.

use super::filter;
use crate::step::Logprobs;

/// Natural-log probabilities of `chosen` and of the `n` most likely tokens under `logits` as the model gave them.
///
/// The logarithm of the sum of exponentials is formed in f64. A token outside the vocabulary has `-inf`.
#[must_use]
pub fn logprobs(logits: &[f32], chosen: u32, n: u8) -> Logprobs {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let log_sum = max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln();
    let log_prob = |logit: f32| (f64::from(logit) - log_sum) as f32;
    let mut top = if n == 0 { Vec::new() } else { filter::top_k(logits, usize::from(n)) };
    top.sort_unstable_by(filter::best_first);
    Logprobs {
        chosen: logits.get(chosen as usize).map_or(f32::NEG_INFINITY, |&l| log_prob(l)),
        top: top.into_iter().map(|(token, logit)| (token, log_prob(logit))).collect(),
    }
}
