//! The accept test for draft tokens (Leviathan, Kalman, Matias: "Fast inference from transformers via speculative
//! decoding", ICML 2023; Chen et al.: "Accelerating large language model decoding with speculative sampling", 2023).

use super::Distribution;

/// What became of a draft token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the token.
    Accept,
    /// The token is to be drawn from [`residual`]; later drafts are void.
    Reject,
}

/// Decides on `draft`, which was drawn from `q` (one-hot where it is taken as certain), under the row's own distribution
/// `p`, with `u` in [0, 1): accepted with probability `min(1, p(draft) / q(draft))`.
///
/// The comparison `u q < p` is strict, so that a token that `p` excludes never passes; the product is exact in f64.
#[must_use]
pub fn verify(p: &Distribution, draft: u32, q: &Distribution, u: f32) -> Verdict {
    if f64::from(u) * f64::from(q.prob(draft)) < f64::from(p.prob(draft)) { Verdict::Accept } else { Verdict::Reject }
}

/// What the token is drawn from after a rejection: `max(0, p - q)`, normalised. Where nothing of it is left (p and q are
/// equal but for rounding, so that a rejection hardly ever happens) it is `p`.
#[must_use]
pub fn residual(p: &Distribution, q: &Distribution) -> Distribution {
    let mut q = q.iter().peekable();
    let rest: Vec<(u32, f64)> = p
        .iter()
        .map(|(token, prob)| {
            while q.next_if(|other| other.0 < token).is_some() {}
            let drafted = q.next_if(|other| other.0 == token).map_or(0.0, |other| other.1);
            (token, f64::from(prob) - f64::from(drafted))
        })
        .filter(|&(_, rest)| rest > 0.0)
        .collect();
    if rest.is_empty() { p.clone() } else { Distribution::normalised(rest) }
}
