//! The step table as the device sees it: one buffer of 32-bit words, uploaded per step. Mirrors `cuda/table.cuh`.

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};
use openjet_engine::sampling::{SamplingError, SamplingParams};
use openjet_engine::step::{Logprobs, MAX_DECODE_ROWS, SampleSpec, Segment, SegmentKind};

/// Most segments of a step.
pub const MAX_SEGMENTS: usize = 64;
/// Deepest draft of the draft head.
pub const MAX_DRAFTS: usize = 16;
/// Most alternatives reported with a chosen token.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// What a [`Row`] is; the values of `RowKind` in `table.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RowKind {
    /// Takes no part.
    Idle = 0,
    /// The newest token of a conversation or a draft.
    Decode = 1,
    /// A token of a prompt, in a prompt chunk's table.
    Prompt = 2,
    /// The last token of a prompt, in a decode step's table: only sampled.
    PromptLast = 3,
    /// A row of the draft head.
    Draft = 4,
}

/// One row of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Row {
    /// Its token.
    pub token: u32,
    /// The token's position in its conversation.
    pub position: u32,
    /// Index of its segment.
    pub segment: u32,
    /// A [`RowKind`].
    pub kind: u32,
}

/// One slot's rows. Offsets count words from the start of the buffer; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct SegmentEntry {
    /// Whose state is advanced.
    pub slot: u32,
    /// Index of its first row.
    pub first_row: u32,
    /// Number of its rows.
    pub rows: u32,
    /// 0 prompt, 1 newest token and drafts.
    pub kind: u32,
    /// Position of the first row.
    pub position: u32,
    /// Page ids, in order.
    pub pages_offset: u32,
    /// Number of page ids.
    pub pages: u32,
    /// 1 where a token is chosen after the last accepted row.
    pub samples: u32,
    /// End tokens.
    pub end_offset: u32,
    /// Number of end tokens.
    pub ends: u32,
    /// Most tokens to yield.
    pub budget: u32,
    /// Drafts that the draft head is to propose.
    pub draft_depth: u32,
    /// Pairs (token, times generated), ascending by token. 0 times: only in the prompt.
    pub penalty_offset: u32,
    /// Number of pairs.
    pub penalties: u32,
    /// Pairs (token, f32), ascending by token.
    pub bias_offset: u32,
    /// Number of pairs.
    pub biases: u32,
    /// One word a row: the offset of its bit set over the vocabulary, 0 where everything is allowed.
    pub mask_offset: u32,
    /// Most likely tokens to keep; 0 keeps all.
    pub top_k: u32,
    /// 0 for none, else 1 + alternatives.
    pub logprobs: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 is none.
    pub repetition_penalty: f32,
    /// 0 is none.
    pub presence_penalty: f32,
    /// 0 is none.
    pub frequency_penalty: f32,
    /// Zero.
    pub reserved: u32,
    /// Of the random numbers.
    pub seed: u64,
}

/// The buffer's first words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TableHeader {
    /// Number of rows.
    pub rows: u32,
    /// Number of segments.
    pub segments: u32,
    /// Zeros.
    pub reserved: [u32; 2],
    /// Length of the whole buffer in words.
    pub words: u32,
    /// Deepest draft that a segment asks for.
    pub draft_depth: u32,
    /// Segments with a temperature above 0.
    pub draws: u32,
    /// Segments whose log probabilities are wanted.
    pub logprobs: u32,
}

/// What a step did for a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SegmentResult {
    /// Draft rows that were accepted.
    pub accepted: u32,
    /// The newly chosen token.
    pub token: u32,
    /// Drafts proposed to follow it.
    pub drafts: u32,
    /// [`FLAG_NOT_FINITE`] or [`FLAG_NOTHING_ALLOWED`] where no token can follow; nothing else counts then.
    pub flags: u32,
    /// The proposals.
    pub draft: [u32; MAX_DRAFTS],
}

/// A logit of a row is not finite.
pub const FLAG_NOT_FINITE: u32 = 1;
/// No token may follow a row.
pub const FLAG_NOTHING_ALLOWED: u32 = 2;

impl SegmentResult {
    /// Why the segment can't go on.
    #[must_use]
    pub fn error(&self) -> Option<SamplingError> {
        match self.flags {
            0 => None,
            FLAG_NOTHING_ALLOWED => Some(SamplingError::NothingAllowed),
            _ => Some(SamplingError::NotFinite),
        }
    }
}

/// Log probabilities of the token that was chosen after a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RowLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// How many alternatives follow.
    pub alternatives: u32,
    /// The most likely tokens, best first.
    pub token: [u32; MAX_TOP_LOGPROBS],
    /// Their log probabilities.
    pub logprob: [f32; MAX_TOP_LOGPROBS],
}

impl From<&RowLogprobs> for Logprobs {
    fn from(row: &RowLogprobs) -> Self {
        let n = (row.alternatives as usize).min(MAX_TOP_LOGPROBS);
        Self { chosen: row.chosen, top: row.token[..n].iter().copied().zip(row.logprob[..n].iter().copied()).collect() }
    }
}

/// Everything that the host reads back after a step.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct StepResult {
    /// By segment.
    pub segment: [SegmentResult; MAX_SEGMENTS],
    /// By row.
    pub logprobs: [RowLogprobs; MAX_DECODE_ROWS],
}

/// What a segment does in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of its rows.
    Rows,
    /// Of a prompt whose rows ran in a chunk's launch, only the last row, to be sampled.
    LastRow,
}

/// Builds the buffer for a launch. Keeps its allocations between steps.
#[derive(Debug, Default)]
pub struct TableBuilder {
    rows: Vec<Row>,
    segments: Vec<SegmentEntry>,
    data: Vec<u32>,
    buffer: Vec<u32>,
}

/// Where the segments are, in words.
pub(crate) const SEGMENTS_OFFSET: usize = size_of::<TableHeader>() / 4;
/// Where the rows are, in words: known beforehand, so behind room for all segments.
pub(crate) const ROWS_OFFSET: usize = SEGMENTS_OFFSET + MAX_SEGMENTS * size_of::<SegmentEntry>() / 4;

impl TableBuilder {
    /// The words of a table of `segments`. Offsets in it are final, so it is to be uploaded whole.
    ///
    /// The caller has checked the step: segments have rows and pages enough, at most [`MAX_SEGMENTS`] of them.
    pub fn build(&mut self, segments: &[(&Segment<'_>, Part)]) -> &[u32] {
        self.rows.clear();
        self.segments.clear();
        self.data.clear();
        let count: usize = segments.iter().map(|(s, part)| if *part == Part::Rows { s.tokens.len() } else { 1 }).sum();
        let data_offset = ROWS_OFFSET + count * size_of::<Row>() / 4;
        for &(segment, part) in segments {
            self.push(segment, part, data_offset);
        }
        let header = TableHeader {
            rows: count as u32,
            segments: segments.len() as u32,
            reserved: [0; 2],
            words: (data_offset + self.data.len()) as u32,
            draft_depth: self.segments.iter().map(|s| s.draft_depth).max().unwrap_or(0),
            draws: self.segments.iter().filter(|s| s.samples == 1 && s.temperature > 0.0).count() as u32,
            logprobs: self.segments.iter().filter(|s| s.logprobs > 0).count() as u32,
        };
        self.buffer.clear();
        self.buffer.extend_from_slice(bytemuck::cast_slice(&[header]));
        for segment in &self.segments {
            self.buffer.extend_from_slice(bytemuck::cast_slice(std::slice::from_ref(segment)));
        }
        self.buffer.resize(ROWS_OFFSET, 0);
        self.buffer.extend_from_slice(bytemuck::cast_slice(&self.rows));
        self.buffer.extend_from_slice(&self.data);
        &self.buffer
    }

    fn push(&mut self, segment: &Segment<'_>, part: Part, data_offset: usize) {
        let index = self.segments.len() as u32;
        let first_row = self.rows.len() as u32;
        let skipped = if part == Part::Rows { 0 } else { segment.tokens.len() - 1 };
        let (kind, row_kind) = match (segment.kind, part) {
            (SegmentKind::Prompt, Part::Rows) => (0, RowKind::Prompt),
            (SegmentKind::Prompt, Part::LastRow) => (0, RowKind::PromptLast),
            (SegmentKind::Decode, _) => (1, RowKind::Decode),
        };
        for (i, &token) in segment.tokens.iter().enumerate().skip(skipped) {
            let position = segment.position + i as u32;
            self.rows.push(Row { token, position, segment: index, kind: row_kind as u32 });
        }
        let mut entry = SegmentEntry {
            slot: segment.slot as u32,
            first_row,
            rows: (segment.tokens.len() - skipped) as u32,
            kind,
            position: segment.position + skipped as u32,
            pages_offset: self.append(segment.pages.iter().copied(), data_offset),
            pages: segment.pages.len() as u32,
            top_p: 1.0,
            repetition_penalty: 1.0,
            ..SegmentEntry::default()
        };
        if let Some(spec) = &segment.sample {
            self.sampling(spec, &mut entry, data_offset);
        }
        self.segments.push(entry);
    }

    fn sampling(&mut self, spec: &SampleSpec<'_>, entry: &mut SegmentEntry, data_offset: usize) {
        let params = spec.params;
        entry.samples = 1;
        entry.end_offset = self.append(spec.end_tokens.iter().copied(), data_offset);
        entry.ends = spec.end_tokens.len() as u32;
        entry.budget = spec.budget;
        entry.draft_depth = spec.draft_depth as u32;
        let seen = penalised(params, spec.prompt, spec.output);
        entry.penalties = seen.len() as u32;
        entry.penalty_offset = self.append(seen.into_iter().flat_map(|(token, times)| [token, times]), data_offset);
        let mut bias = params.logit_bias.clone();
        bias.sort_by_key(|b| b.0);
        entry.biases = bias.len() as u32;
        entry.bias_offset =
            self.append(bias.into_iter().flat_map(|(token, bias)| [token, bias.to_bits()]), data_offset);
        if spec.masks.iter().any(Option::is_some) {
            let words: Vec<u32> = (0..entry.rows as usize)
                .map(|row| spec.masks.get(row).and_then(Option::as_ref))
                .map(|mask| mask.map_or(0, |mask| self.append(mask.iter().copied(), data_offset)))
                .collect();
            entry.mask_offset = self.append(words.into_iter(), data_offset);
        }
        entry.top_k = params.top_k;
        entry.logprobs = params.logprobs.map_or(0, |n| 1 + u32::from(n).min(MAX_TOP_LOGPROBS as u32));
        entry.temperature = params.temperature;
        entry.top_p = params.top_p;
        entry.min_p = params.min_p;
        entry.repetition_penalty = params.repetition_penalty;
        entry.presence_penalty = params.presence_penalty;
        entry.frequency_penalty = params.frequency_penalty;
        entry.seed = params.seed;
    }

    /// Offset of `words`, which end up in the buffer; 0 where there are none.
    fn append(&mut self, words: impl Iterator<Item = u32>, data_offset: usize) -> u32 {
        let start = self.data.len();
        self.data.extend(words);
        if self.data.len() == start { 0 } else { (data_offset + start) as u32 }
    }
}

/// The tokens that the active penalties look at, with the times that each was generated.
fn penalised(params: &SamplingParams, prompt: &[u32], output: &[u32]) -> BTreeMap<u32, u32> {
    let mut times = BTreeMap::new();
    let repetition = params.repetition_penalty != 1.0;
    if repetition {
        times.extend(prompt.iter().map(|&token| (token, 0)));
    }
    if repetition || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
        for &token in output {
            *times.entry(token).or_default() += 1;
        }
    }
    times
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::mem::offset_of;

    use super::*;

    /// The same numbers stand in `table.cuh` as static assertions.
    #[test]
    fn layout_is_that_of_the_device() {
        assert_eq!(size_of::<Row>(), 16);
        assert_eq!(size_of::<SegmentEntry>(), 112);
        assert_eq!((offset_of!(SegmentEntry, temperature), offset_of!(SegmentEntry, seed)), (76, 104));
        assert_eq!(size_of::<TableHeader>(), 32);
        assert_eq!(size_of::<SegmentResult>(), 80);
        assert_eq!(size_of::<RowLogprobs>(), 168);
        assert_eq!(size_of::<StepResult>(), 64 * 80 + 72 * 168);
    }

    fn entry(words: &[u32], i: usize) -> SegmentEntry {
        let at = SEGMENTS_OFFSET + i * 28;
        bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[at..at + 28]))
    }

    #[test]
    fn table_holds_rows_pages_and_sampling() {
        let params = SamplingParams {
            temperature: 0.7,
            repetition_penalty: 1.1,
            logit_bias: vec![(9, 1.5), (3, -2.0)],
            seed: 0x1_0000_0002,
            logprobs: Some(2),
            ..SamplingParams::default()
        };
        let spec = SampleSpec {
            params: &params,
            prompt: &[7, 5, 5],
            output: &[5, 8, 5],
            end_tokens: &[40, 41],
            budget: 6,
            masks: &[None, Some(vec![0xF0, 1])],
            draft_depth: 4,
        };
        let decode = Segment {
            slot: 3,
            position: 130,
            tokens: &[5, 6],
            pages: &[11, 2, 9],
            kind: SegmentKind::Decode,
            sample: Some(spec),
        };
        let prompt =
            Segment { slot: 1, position: 0, tokens: &[1, 2, 3], pages: &[4], kind: SegmentKind::Prompt, sample: None };
        let mut builder = TableBuilder::default();
        let words = builder.build(&[(&prompt, Part::LastRow), (&decode, Part::Rows)]);
        assert_eq!(words[..8], [3, 2, 0, 0, words.len() as u32, 4, 1, 1]);
        let rows: &[Row] = bytemuck::cast_slice(&words[ROWS_OFFSET..ROWS_OFFSET + 12]);
        assert_eq!(rows[0], Row { token: 3, position: 2, segment: 0, kind: RowKind::PromptLast as u32 });
        assert_eq!(rows[2], Row { token: 6, position: 131, segment: 1, kind: RowKind::Decode as u32 });
        let (first, second) = (entry(words, 0), entry(words, 1));
        assert_eq!((first.slot, first.rows, first.position, first.samples), (1, 1, 2, 0));
        assert_eq!((second.slot, second.first_row, second.rows, second.kind), (3, 1, 2, 1));
        let list = |offset: u32, n: u32| words[offset as usize..(offset + n) as usize].to_vec();
        assert_eq!(list(second.pages_offset, second.pages), [11, 2, 9]);
        assert_eq!(list(second.end_offset, second.ends), [40, 41]);
        assert_eq!(list(second.penalty_offset, 2 * second.penalties), [5, 2, 7, 0, 8, 1]);
        assert_eq!(list(second.bias_offset, 2 * second.biases), [3, (-2f32).to_bits(), 9, 1.5f32.to_bits()]);
        let masks = list(second.mask_offset, 2);
        assert_eq!(masks[0], 0);
        assert_eq!(list(masks[1], 2), [0xF0, 1]);
        assert_eq!((second.seed, second.logprobs, second.temperature), (0x1_0000_0002, 3, 0.7));
    }

    #[test]
    fn tokens_are_listed_only_for_active_penalties() {
        let plain = SamplingParams::default();
        assert!(penalised(&plain, &[1], &[2]).is_empty());
        let frequency = SamplingParams { frequency_penalty: 0.5, ..plain };
        assert_eq!(penalised(&frequency, &[1], &[2, 2]).into_iter().collect::<Vec<_>>(), [(2, 2)]);
    }
}
