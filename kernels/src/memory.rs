//! Sizes of everything on the device, and the buffers themselves: all that is allocated beside the weights.

use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::model::ModelConfig;
use openjet_engine::step::{MAX_DECODE_ROWS, PAGE_TOKENS};

use crate::args::{
    AttentionArgs, CANDIDATE_BYTES, DeltaLayout, HEAD_DIM, KvFormat, PICK_BYTES, SLICE, SLICE_LIST, STATS_BYTES,
    SlotState,
};
use crate::device::{Buffer, Device, DeviceError, together};
use crate::program::{fragment_bytes, prompt_row_bytes};
use crate::table::{MAX_SEGMENTS, Row, StepResult};

/// Widest residual stream: of a row, its weights and a part that is added must fit in the shared memory of every card.
const MAX_WIDTH: usize = 7680;

/// Most value heads; `MAX_VALUE_HEADS` in `cuda/deltanet_decode.cuh`.
const MAX_VALUE_HEADS: usize = 1023;

/// Rows of a decode step.
pub(crate) const ROWS: usize = MAX_DECODE_ROWS;

/// Rows of a prompt's pass where there is memory for it: so many that weights are decoded seldom and work divides well among the
/// GPU's processors.
pub const PROMPT_ROWS: usize = 2048;
/// And where there is not.
pub(crate) const FEW_PROMPT_ROWS: usize = 512;

/// Rows of one segment of a decode step: what a slot keeps of its rows until the next step costs memory for each.
pub(crate) const SEGMENT_ROWS: usize = 24;

/// Runs that a matrix's inputs are cut into where its output is added to the residual stream: enough work for all SMs and, unless
/// that takes more than `MAX_SPLITS`, none of more than 7 pieces of 512, so that it divides evenly. A function of the shape alone,
/// since it decides the order of additions.
#[must_use]
pub fn splits(outputs: usize, inputs: usize) -> usize {
    let pieces = inputs.div_ceil(512);
    (1280 / outputs.div_ceil(16)).max(pieces.div_ceil(7)).clamp(1, MAX_SPLITS).min(pieces)
}

/// The same in a prompt's pass, where there is other work enough, and memory for a run's output is dear.
pub(crate) fn prompt_splits(outputs: usize, inputs: usize) -> usize {
    splits(outputs, inputs).min(MAX_PROMPT_SPLITS)
}

/// Most runs of any matrix.
const MAX_SPLITS: usize = 5;
/// And in a prompt's pass.
const MAX_PROMPT_SPLITS: usize = 4;

/// Sizes that the programs need, all from the model's shape and the options.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) config: ModelConfig,
    pub(crate) slots: usize,
    pub(crate) pages: usize,
    pub(crate) format: KvFormat,
    pub(crate) draft_max: usize,
    pub(crate) kv_layers: usize,
    pub(crate) layout: DeltaLayout,
    pub(crate) delta_layers: usize,
    /// Tokens that one slot's pages can hold.
    pub(crate) context: usize,
    /// Rows of a prompt's pass.
    pub(crate) prompt_rows: usize,
}

impl Shape {
    pub(crate) fn new(config: &ModelConfig, options: &BackendOptions, prompt_rows: usize) -> Result<Self, String> {
        let format = match options.kv {
            KvType::F32 => return Err("f32 cells are for the CPU; use f16, q8_0 or q4_0".into()),
            KvType::F16 => KvFormat::F16,
            KvType::Q8_0 => KvFormat::Q8_0,
            KvType::Q4_0 => KvFormat::Q4_0,
        };
        let draft_head = config.has_draft_head && options.draft_max > 0;
        let must = [
            (
                config.head_dim == HEAD_DIM,
                format!("heads of {} numbers, and the kernels are for {HEAD_DIM}", config.head_dim),
            ),
            (
                config.state_dim == 128,
                format!("a state of {} numbers a head, and the kernels are for 128", config.state_dim),
            ),
            (
                config.value_heads <= MAX_VALUE_HEADS,
                format!("{} value heads, and the kernels are for {MAX_VALUE_HEADS} at most", config.value_heads),
            ),
            (config.conv_taps == 4, format!("{} taps, and the kernels are for 4", config.conv_taps)),
            (config.hidden.is_multiple_of(256), format!("a width of {}, which is no multiple of 256", config.hidden)),
            (config.hidden <= MAX_WIDTH, format!("a width of {}, at most {MAX_WIDTH}", config.hidden)),
            (
                config.rope_freqs.len().is_multiple_of(32) && config.rope_freqs.len() <= 128,
                format!("{} rotary pairs, and the kernels are for 32, 64 or 128", config.rope_freqs.len()),
            ),
            (config.vocab <= SLICE * crate::args::MAX_SLICES, format!("a vocabulary of {}", config.vocab)),
            (
                options.draft_max <= crate::table::MAX_DRAFTS,
                format!("drafts of {} tokens, at most {}", options.draft_max, crate::table::MAX_DRAFTS),
            ),
            (options.slots <= MAX_SEGMENTS, format!("{} slots, at most {MAX_SEGMENTS}", options.slots)),
        ];
        if let Some((_, reason)) = must.into_iter().find(|(fits, _)| !fits) {
            return Err(format!("the CUDA backend can't run this: {reason}"));
        }
        let layout = DeltaLayout {
            key_heads: config.key_heads as u32,
            value_heads: config.value_heads as u32,
            rows: SEGMENT_ROWS as u32,
            reserved: 0,
        };
        Ok(Self {
            config: config.clone(),
            slots: options.slots,
            pages: options.pages,
            format,
            draft_max: if draft_head { options.draft_max } else { 0 },
            kv_layers: config.kv_layers() - usize::from(config.has_draft_head && !draft_head),
            layout,
            delta_layers: config.recurrent.iter().filter(|&&r| r).count(),
            context: (options.pages * PAGE_TOKENS).min(config.context.next_multiple_of(PAGE_TOKENS)),
            prompt_rows,
        })
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.format.page_bytes(self.kv_layers, self.config.kv_heads)
    }

    pub(crate) fn slices(&self) -> usize {
        self.config.vocab.div_ceil(SLICE)
    }

    pub(crate) fn attention_splits(&self) -> usize {
        AttentionArgs::splits_of(self.context)
    }

    /// Floats of one slot's recurrent state.
    pub(crate) fn slot_floats(&self) -> usize {
        self.delta_layers * self.layout.floats()
    }

    /// Bytes of one slot's state as it is saved: what is settled of each layer, and the draft head's hidden state.
    pub(crate) fn saved_bytes(&self) -> usize {
        (self.delta_layers * self.layout.settled_floats() + self.config.hidden) * 4
    }

    /// Bytes of the step table's buffer.
    fn table_bytes(&self) -> usize {
        // Rows, segments, pages, then penalties (two words for each token that a conversation can hold), bias, masks.
        let words = 8
            + self.prompt_rows * 4
            + MAX_SEGMENTS * 28
            + self.slots * (self.context / PAGE_TOKENS + 2 * self.context.min(self.config.vocab) + 4096);
        (words + ROWS * (self.config.vocab.div_ceil(32) + 1)) * 4
    }

    /// Name and bytes of every working buffer.
    fn work(&self) -> Vec<(Work, usize)> {
        let c = &self.config;
        let widest = c.hidden.max(c.ffn).max(c.inner()).max(c.heads * HEAD_DIM).max(2 * c.hidden);
        let inputs = fragment_bytes(ROWS, widest).max(prompt_row_bytes(self.prompt_rows, widest));
        let f32s = |n: usize| n * 4;
        vec![
            (Work::Table, self.table_bytes()),
            (Work::X, f32s(self.prompt_rows * c.hidden)),
            (Work::Parts, f32s((MAX_SPLITS * ROWS).max(MAX_PROMPT_SPLITS * self.prompt_rows) * c.hidden)),
            (Work::Hidden, f32s(self.prompt_rows * c.hidden)),
            (Work::Previous, f32s(self.prompt_rows * c.hidden)),
            (Work::Fragments, inputs),
            (Work::Squares, f32s(ROWS * c.hidden.div_ceil(256))),
            (Work::FragmentsB, inputs),
            (
                Work::A,
                f32s(self.prompt_rows * c.conv_channels().max(c.ffn).max(2 * c.heads * HEAD_DIM).max(2 * c.hidden)),
            ),
            (Work::B, f32s(self.prompt_rows * c.inner().max(c.ffn).max(c.kv_heads * HEAD_DIM))),
            (Work::C, f32s(self.prompt_rows * c.value_heads.max(c.kv_heads * HEAD_DIM))),
            (Work::D, f32s(self.prompt_rows * c.value_heads)),
            (Work::Mixed, f32s(self.prompt_rows * c.conv_channels())),
            (Work::Out, f32s(self.prompt_rows * c.inner().max(c.heads * HEAD_DIM))),
            (Work::Queries, self.prompt_rows * c.heads * HEAD_DIM * 2),
            (Work::Partial, f32s(AttentionArgs::partial_floats(ROWS, c.heads, self.context))),
            (Work::Chunks, f32s(self.layout.chunk_floats(self.prompt_rows, 1))),
            (Work::Logits, f32s(ROWS * c.vocab)),
            (Work::Adjusted, f32s(ROWS * c.vocab)),
            (Work::Stats, ROWS * self.slices() * STATS_BYTES),
            (Work::Candidates, ROWS * self.slices() * SLICE_LIST * CANDIDATE_BYTES),
            (Work::Picks, ROWS * PICK_BYTES),
            (Work::SlotStates, self.slots * size_of::<SlotState>()),
            (Work::Result, size_of::<StepResult>()),
            (Work::PendingHidden, f32s(self.slots * c.hidden)),
            (Work::LastX, f32s(self.slots * c.hidden)),
            (Work::DraftHidden, f32s(ROWS * c.hidden)),
            (Work::DraftRows, ROWS * size_of::<Row>()),
        ]
    }

    /// Bytes of the working buffers together.
    pub(crate) fn work_bytes(&self) -> usize {
        together(self.work().iter().map(|&(_, bytes)| bytes))
    }

    pub(crate) fn kv_bytes(&self) -> usize {
        self.pages * self.page_bytes()
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.slots * self.slot_floats() * 4
    }
}

/// A working buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Table,
    X,
    Parts,
    Hidden,
    Previous,
    Fragments,
    Squares,
    FragmentsB,
    A,
    B,
    C,
    D,
    Mixed,
    Out,
    Queries,
    Partial,
    Chunks,
    Logits,
    Adjusted,
    Stats,
    Candidates,
    Picks,
    SlotStates,
    Result,
    PendingHidden,
    LastX,
    DraftHidden,
    DraftRows,
}

/// Everything on the device beside the weights.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) kv: Buffer,
    pub(crate) state: Buffer,
    work: Vec<Buffer>,
}

impl Memory {
    pub(crate) fn allocate(device: &Device, shape: &Shape) -> Result<Self, DeviceError> {
        Ok(Self {
            kv: device.allocate(shape.kv_bytes())?,
            state: device.allocate(shape.state_bytes())?,
            work: device.allocate_together(&shape.work().iter().map(|&(_, bytes)| bytes).collect::<Vec<_>>())?,
        })
    }

    /// A working buffer; they stand in the order of [`Work`].
    pub(crate) fn of(&self, work: Work) -> &Buffer {
        &self.work[work as usize]
    }

    pub(crate) fn at(&self, work: Work) -> u64 {
        self.of(work).address()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_depend_on_the_shape_alone_and_leave_no_run_empty() {
        assert_eq!((splits(5120, 17_408), splits(5120, 6144), splits(256, 768), splits(256, 512)), (5, 4, 2, 1));
        for (outputs, inputs) in [(16, 256), (4096, 300), (40_000, 9000)] {
            assert!(splits(outputs, inputs) <= inputs.div_ceil(512).max(1));
        }
    }
}
