//! The tokens that stand between sections of a model's output.

use std::ops::Range;

pub(super) const THINK: &str = "<think>";
pub(super) const END_THINK: &str = "</think>";
pub(super) const TOOL_CALL: &str = "<tool_call>";
pub(super) const END_TOOL_CALL: &str = "</tool_call>";

const ALL: [&str; 4] = [THINK, END_THINK, TOOL_CALL, END_TOOL_CALL];

/// The first marker in `text`. None is the beginning of another.
pub(super) fn find_marker(text: &str) -> Option<(Range<usize>, &'static str)> {
    let found = text.match_indices('<').find_map(|(at, _)| {
        let marker = ALL.into_iter().find(|marker| text[at..].starts_with(marker))?;
        Some((at, marker))
    });
    found.map(|(at, marker)| (at..at + marker.len(), marker))
}

/// Bytes at the end of `text` that may become a marker.
pub(super) fn held_back(text: &str) -> usize {
    ALL.iter().map(|marker| overlap(text, marker)).max().unwrap_or(0)
}

/// Length of the longest end of `text` that is a beginning of `marker`, but not all of it.
pub(super) fn overlap(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len() - 1);
    (1..=longest).rev().find(|&n| text.as_bytes().ends_with(&marker.as_bytes()[..n])).unwrap_or(0)
}

/// `text` is a beginning of `whole`, but not all of it.
pub(super) fn starts(whole: &str, text: &str) -> bool {
    text.len() < whole.len() && whole.starts_with(text)
}
