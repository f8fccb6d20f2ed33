//! The step table: the rows that one pass through the model works on.
//!
//! A step holds one [`Segment`] for each slot that takes part. Its rows stand at consecutive positions of that slot's
//! conversation: a chunk of its prompt, or its newest token followed by draft tokens. How many segments there are, whose
//! and of what kind is data; the arithmetic of a row never depends on the other rows.

use crate::sampling::{SamplingError, SamplingParams};

/// Tokens in one page of the key-value pool. Prompt chunks end, and attention splits, at multiples of it.
pub const PAGE_TOKENS: usize = 64;

/// Most rows in one step after which a token is chosen: next tokens, drafts, and the last ones of prompts.
pub const MAX_DECODE_ROWS: usize = 72;

/// Most of them that one slot may have.
pub const MAX_SEGMENT_ROWS: usize = 24;

/// Index of a page in the key-value pool. A page holds [`PAGE_TOKENS`] cells of every attention layer, draft head included.
pub type PageId = u32;

/// Index of a place for a conversation's recurrent state in the backend.
pub type SlotId = usize;

/// All rows of one pass through the model.
#[derive(Debug, Default)]
pub struct Step<'a> {
    /// At most one segment for a slot.
    pub segments: Vec<Segment<'a>>,
}

/// The rows of one slot: `tokens[i]` stands at `position + i`.
#[derive(Debug)]
pub struct Segment<'a> {
    /// Whose recurrent state is advanced.
    pub slot: SlotId,
    /// Position of `tokens[0]`; the slot's state has consumed exactly the tokens before it.
    pub position: u32,
    /// Never empty.
    pub tokens: &'a [u32],
    /// The slot's pages in order: page `i` holds positions `64 i .. 64 i + 63`. Must cover the tokens and, for a segment
    /// that samples, `draft_depth` positions after the sampled token.
    pub pages: &'a [PageId],
    /// What the rows are.
    pub kind: SegmentKind,
    /// How to choose the next token after the last accepted row; `None` for a prompt chunk that is not the prompt's last.
    pub sample: Option<SampleSpec<'a>>,
}

/// What a segment's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Part of a prompt: every token is taken as it is. Starts anywhere, and ends at a multiple of [`PAGE_TOKENS`] unless it
    /// is the prompt's end.
    Prompt,
    /// The newest token, then drafts to be verified, wherever they come from.
    Decode,
}

/// How the next token of a segment is chosen.
#[derive(Debug)]
pub struct SampleSpec<'a> {
    /// Temperature, filters, penalties, seed.
    pub params: &'a SamplingParams,
    /// The request's prompt (repetition penalty).
    pub prompt: &'a [u32],
    /// What the request has generated so far, the newest token (`tokens[0]` of a decode segment) included.
    pub output: &'a [u32],
    /// Tokens that end the text: nothing is accepted after one.
    pub end_tokens: &'a [u32],
    /// Most tokens this step may yield, at least 1.
    pub budget: u32,
    /// For each row the tokens that may follow it, as a bit set over the vocabulary (bit `t % 32` of word `t / 32`);
    /// `None` where all may. Empty when no row is restricted.
    pub masks: &'a [Option<Vec<u32>>],
    /// Drafts that the draft head is to propose for the next step.
    pub draft_depth: usize,
}

/// What a step did for one segment, in the order of [`Step::segments`].
#[derive(Clone, Debug, Default)]
pub struct SegmentOutput {
    /// Draft rows that were accepted. The slot's state has consumed `accepted + 1` tokens of a decode segment, all tokens of
    /// a prompt segment.
    pub accepted: usize,
    /// The accepted drafts, then the newly chosen token, which is not yet consumed. An end token is always last here, also
    /// when it was a draft (it then counts as newly chosen). Empty where nothing was to be sampled.
    pub tokens: Vec<Sampled>,
    /// What the draft head proposes to follow, at most `draft_depth` tokens.
    pub drafts: Vec<u32>,
    /// Why nothing can follow the rows: this conversation can't go on.
    pub dead_end: Option<SamplingError>,
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Present when the request asked for log probabilities.
    pub logprobs: Option<Logprobs>,
}

/// Natural-log probabilities under the model's own distribution: before penalties, bias, temperature and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// Of the most likely tokens, best first, ties by lower id.
    pub top: Vec<(u32, f32)>,
}
