//! The rules of a step table, checked by every backend before anything changes.

use super::{BackendError, BackendOptions};
use crate::step::{MAX_DECODE_ROWS, MAX_SEGMENT_ROWS, PAGE_TOKENS, Segment, SegmentKind, SlotId, Step};

/// Checks `step` against the rules of [`crate::step`]. `consumed` tells how many tokens a slot's state has seen.
///
/// # Errors
/// [`BackendError::BadStep`] naming the segment and the rule.
pub fn check_step(
    step: &Step<'_>,
    options: &BackendOptions,
    vocab: usize,
    consumed: impl Fn(SlotId) -> u32,
) -> Result<(), BackendError> {
    let mut taken = vec![false; options.slots];
    let mut rows = 0;
    for (i, segment) in step.segments.iter().enumerate() {
        let refuse = |rule: String| Err(BackendError::BadStep(format!("segment {i}: {rule}")));
        match taken.get_mut(segment.slot) {
            None => return refuse(format!("slot {} of {}", segment.slot, options.slots)),
            Some(true) => return refuse(format!("slot {} is in the step twice", segment.slot)),
            Some(t) => *t = true,
        }
        if segment.tokens.is_empty() {
            return refuse("no tokens".into());
        }
        if let Some(token) = segment.tokens.iter().find(|&&t| t as usize >= vocab) {
            return refuse(format!("token {token} of a vocabulary of {vocab}"));
        }
        if segment.position != consumed(segment.slot) {
            let seen = consumed(segment.slot);
            return refuse(format!("starts at position {}, but its slot has consumed {seen}", segment.position));
        }
        if let Some(page) = segment.pages.iter().find(|&&p| p as usize >= options.pages) {
            return refuse(format!("page {page} of {}", options.pages));
        }
        if let Err(rule) = check_segment(segment, options) {
            return refuse(rule);
        }
        rows += match segment.kind {
            SegmentKind::Decode => segment.tokens.len(),
            SegmentKind::Prompt => usize::from(segment.sample.is_some()),
        };
    }
    if rows > MAX_DECODE_ROWS {
        return Err(BackendError::BadStep(format!("{rows} rows to sample, at most {MAX_DECODE_ROWS}")));
    }
    Ok(())
}

fn check_segment(segment: &Segment<'_>, options: &BackendOptions) -> Result<(), String> {
    let end = segment.position as usize + segment.tokens.len();
    let mut needed = end;
    match (&segment.sample, segment.kind) {
        (None, SegmentKind::Decode) => return Err("a decode segment must sample".into()),
        (None, SegmentKind::Prompt) if !end.is_multiple_of(PAGE_TOKENS) => {
            return Err(format!("a prompt chunk ends at {end}, not at a multiple of {PAGE_TOKENS}"));
        }
        (None, SegmentKind::Prompt) => {}
        (_, SegmentKind::Decode) if segment.tokens.len() > MAX_SEGMENT_ROWS => {
            return Err(format!("{} decode rows, at most {MAX_SEGMENT_ROWS} of one slot", segment.tokens.len()));
        }
        (Some(spec), _) => {
            if spec.budget == 0 {
                return Err("a budget of 0 tokens".into());
            }
            if spec.draft_depth > options.draft_max {
                return Err(format!("draft depth {} of at most {}", spec.draft_depth, options.draft_max));
            }
            needed += spec.draft_depth;
        }
    }
    let room = segment.pages.len() * PAGE_TOKENS;
    if room < needed {
        return Err(format!("its pages hold {room} tokens, it needs {needed}"));
    }
    Ok(())
}

/// Refuses an image of the wrong size.
///
/// # Errors
/// [`BackendError::BadStep`] with both sizes.
pub fn check_size(what: &str, expected: usize, found: usize) -> Result<(), BackendError> {
    if expected == found {
        return Ok(());
    }
    Err(BackendError::BadStep(format!("a {what} image of {found} bytes, expected {expected}")))
}
