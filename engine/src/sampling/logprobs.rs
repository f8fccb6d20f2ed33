//! Log probabilities of a row, as the API reports them.

use std::borrow::Cow;

use super::distribution::forbid;
use super::filter;
use crate::step::Logprobs;

/// Natural-log probabilities of `chosen` and of the `n` most likely tokens under `logits` as the model gave them.
///
/// `usable` are the tokens that the vocabulary has, as a bit set; the others, and tokens past its end, have `-inf` and are not
/// listed. The logarithm of the sum of exponentials is formed in f64.
#[must_use]
pub fn logprobs(logits: &[f32], usable: Option<&[u32]>, chosen: u32, n: u8) -> Logprobs {
    let mut logits = Cow::Borrowed(logits);
    if let Some(usable) = usable {
        forbid(logits.to_mut(), usable);
    }
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let log_sum = max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln();
    let log_prob = |logit: f32| (f64::from(logit) - log_sum) as f32;
    let mut top = if n == 0 { Vec::new() } else { filter::top_k(&logits, usize::from(n)) };
    top.sort_unstable_by(filter::best_first);
    Logprobs {
        chosen: logits.get(chosen as usize).map_or(f32::NEG_INFINITY, |&l| log_prob(l)),
        top: top.into_iter().map(|(token, logit)| (token, log_prob(logit))).collect(),
    }
}
