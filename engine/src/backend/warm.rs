//! The first steps of a backend, before anybody waits for one.

use std::time::{Duration, Instant};

use super::{Backend, BackendError};
use crate::sampling::SamplingParams;
use crate::step::{MAX_SEGMENT_ROWS, PAGE_TOKENS, PageId, SampleSpec, Segment, SegmentKind, Step};

/// Tokens of a prompt after its last whole page, which go another way than those before.
const TAIL: usize = 4;

/// Runs a few steps of every kind on slot 0, so that what happens only once (code is loaded, a file's pages come into memory,
/// clocks rise) has happened before the first request: the end of a prompt, drafts of the draft head, a whole page of a prompt,
/// a plain row, drafts of others. Once `patience` is over no more begin: on a device that slow, one step is slow anyway.
///
/// The slot is as new afterwards. Pages keep what was written to them, and nobody reads it: a conversation writes its cells
/// first. `vocab` is the number of tokens, `context` the most tokens of a conversation.
///
/// # Errors
/// [`BackendError::Device`] when the device fails, or computes numbers that are not finite.
pub fn warm_up(
    backend: &mut dyn Backend,
    vocab: usize,
    context: usize,
    patience: Duration,
) -> Result<(), BackendError> {
    let mut text = Text::new(backend, vocab, context, Instant::now() + patience);
    let (depth, decode) = (backend.options().draft_max, SegmentKind::Decode);
    let drafts = text.run(backend, &text.words(TAIL), SegmentKind::Prompt, depth)?;
    text.run(backend, &text.followed_by(drafts), decode, 0)?;
    backend.reset_slot(0)?;
    text.position = 0;
    text.run(backend, &text.words(PAGE_TOKENS + TAIL), SegmentKind::Prompt, 0)?;
    text.run(backend, &text.words(1), decode, 0)?;
    text.run(backend, &text.words(MAX_SEGMENT_ROWS), decode, 0)?;
    backend.reset_slot(0)
}

/// What is read and written meanwhile.
struct Text {
    params: SamplingParams,
    pages: Vec<PageId>,
    /// Positions that there are.
    room: usize,
    vocab: usize,
    position: usize,
    newest: u32,
    /// When no more steps begin.
    until: Instant,
    begun: bool,
}

impl Text {
    fn new(backend: &dyn Backend, vocab: usize, context: usize, until: Instant) -> Self {
        let pages = backend.options().pages.min(2);
        Self {
            params: SamplingParams { temperature: 1.0, top_k: 20, top_p: 0.95, ..SamplingParams::default() },
            pages: (0..pages as PageId).collect(),
            room: context.min(pages * PAGE_TOKENS),
            vocab,
            position: 0,
            newest: 0,
            until,
            begun: false,
        }
    }

    /// The newest token and others.
    fn words(&self, n: usize) -> Vec<u32> {
        self.followed_by((1..n).map(|i| (i % self.vocab) as u32).collect())
    }

    fn followed_by(&self, drafts: Vec<u32>) -> Vec<u32> {
        std::iter::once(self.newest).chain(drafts).collect()
    }

    /// Runs a segment, with as many drafts to follow; nothing where there is no room or no time for it. Returns the drafts.
    fn run(
        &mut self,
        backend: &mut dyn Backend,
        tokens: &[u32],
        kind: SegmentKind,
        draft_depth: usize,
    ) -> Result<Vec<u32>, BackendError> {
        let late = self.begun && Instant::now() >= self.until;
        if late || self.position + tokens.len() + draft_depth > self.room {
            return Ok(Vec::new());
        }
        self.begun = true;
        let sample = SampleSpec {
            params: &self.params,
            prompt: &[],
            output: if kind == SegmentKind::Prompt { &[] } else { &tokens[..1] },
            end_tokens: &[],
            budget: tokens.len() as u32,
            masks: &[],
            draft_depth,
        };
        let position = self.position as u32;
        let segment = Segment { slot: 0, position, tokens, pages: &self.pages, kind, sample: Some(sample) };
        let output = backend.step(&Step { segments: vec![segment] })?.pop().unwrap_or_default();
        if let Some(error) = output.dead_end {
            return Err(BackendError::Device(format!(
                "the first steps went wrong, so the file or the device is bad: {error}"
            )));
        }
        self.position += if kind == SegmentKind::Prompt { tokens.len() } else { output.accepted + 1 };
        self.newest = output.tokens.last().map_or(0, |sampled| sampled.token);
        Ok(output.drafts)
    }
}
