//! From a segment's logits to its next tokens: drafts as long as they are what is drawn, then one token more.

use std::borrow::Cow;

use crate::sampling::{Distribution, History, SamplingError, logprobs};
use crate::step::{SampleSpec, Sampled};

/// What came out of a segment's rows.
#[derive(Debug)]
pub(super) struct Accepted {
    /// Drafts taken and consumed.
    pub(super) accepted: usize,
    /// The accepted drafts, then the newly chosen token.
    pub(super) tokens: Vec<Sampled>,
    /// The history after all of `tokens`, for the draft head.
    pub(super) history: History,
}

/// Walks over `rows` (the logits after each token of the segment). `drafts[j]` was proposed to follow row j. `position` is
/// that of the token which row 0 chooses.
/// `usable` are the tokens that may ever be chosen, as a bit set; `None` where all may.
///
/// # Errors
/// When a row's logits leave nothing to choose from.
pub(super) fn accept(
    spec: &SampleSpec<'_>,
    rows: &[&[f32]],
    drafts: &[u32],
    position: u32,
    usable: Option<&[u32]>,
) -> Result<Accepted, SamplingError> {
    let params = spec.params;
    let mut history = History::new(params, spec.prompt, spec.output);
    let mut tokens = Vec::with_capacity(rows.len());
    for (j, logits) in rows.iter().enumerate() {
        let at = position + j as u32;
        let mask = intersection(spec.masks.get(j).and_then(|m| m.as_deref()), usable);
        let p = Distribution::new(logits, params, &history, mask.as_deref())?;
        let token = p.sample(params.seed, at);
        tokens.push(Sampled { token, logprobs: params.logprobs.map(|n| logprobs(logits, usable, token, n)) });
        history.push(token);
        let over = spec.end_tokens.contains(&token) || tokens.len() >= spec.budget as usize;
        if drafts.get(j) != Some(&token) || over {
            break;
        }
    }
    Ok(Accepted { accepted: tokens.len() - 1, tokens, history })
}

/// Tokens that both bit sets hold; `None` is all of them.
fn intersection<'a>(a: Option<&'a [u32]>, b: Option<&'a [u32]>) -> Option<Cow<'a, [u32]>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.iter().zip(b).map(|(a, b)| a & b).collect()),
        (one, other) => one.or(other).map(Cow::Borrowed),
    }
}
