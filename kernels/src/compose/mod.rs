//! The programs of a model: trunk and head of a decode step, and a prompt's pass.

mod blocks;
mod head;
mod ops;

use crate::args::{SettleArgs, SlotState};
use crate::device::{Device, DeviceError};
use crate::memory::{Memory, Shape, Work};
use crate::program::{Op, OpKind, Program, ProgramBuilder};
use crate::tuning::Tuning;
use crate::weights::Weights;

/// What a pass's rows are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Newest tokens and drafts to be verified.
    Decode,
    /// Tokens of a prompt, many at a time.
    Prompt,
    /// The tokens after a prompt's last multiple of 64: few, so their matmuls and attention are a decode step's.
    Tail,
    /// The draft head's, one row a segment; which draft they propose.
    Draft(u32),
}

/// Most rows of a step whose matmuls make their inputs themselves, where each block makes what it needs: for so few that is faster than
/// an op that makes them for all.
pub(crate) const FEW_ROWS: usize = 2;

/// Such a matmul has one tile of rows.
const _: () = assert!(FEW_ROWS <= 8);

/// What a decode step does.
#[derive(Debug)]
pub(crate) struct DecodePrograms {
    /// Its rows through the trunk.
    pub(crate) trunk: Program,
    /// Head, sampling, acceptance, the draft head's cells and its drafts.
    pub(crate) head: Program,
}

/// All programs of a model.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Steps of at most [`FEW_ROWS`] rows, ...
    few: DecodePrograms,
    /// ... and of more.
    many: DecodePrograms,
    /// A prompt's rows through the trunk, and the draft head's cells.
    pub(crate) prompt: Program,
    /// The same for a prompt's tail.
    pub(crate) tail: Program,
    /// For each slot: brings its state up to what was accepted.
    pub(crate) settle: Vec<Program>,
}

struct Composer<'a> {
    shape: &'a Shape,
    weights: &'a Weights,
    memory: &'a Memory,
    ops: ProgramBuilder,
    /// Whether there are at most [`FEW_ROWS`] rows.
    few: bool,
}

impl Programs {
    pub(crate) fn new(
        device: &Device,
        shape: &Shape,
        weights: &Weights,
        memory: &Memory,
        tuning: Tuning,
    ) -> Result<Self, DeviceError> {
        let composer = || Composer { shape, weights, memory, ops: ProgramBuilder::tuned(tuning), few: false };
        let decode = |few| -> Result<_, DeviceError> {
            let mut trunk = Composer { few, ..composer() };
            trunk.trunk(Pass::Decode);
            let mut head = Composer { few, ..composer() };
            head.head();
            Ok(DecodePrograms { trunk: trunk.ops.finish(device)?, head: head.ops.finish(device)? })
        };
        let prompt = |pass| {
            let mut prompt = composer();
            prompt.trunk(pass);
            prompt.prompt_end(pass);
            prompt.ops.finish(device)
        };
        let settle = (0..shape.slots).map(|slot| {
            let mut settle = composer();
            settle.settle(slot);
            settle.ops.finish(device)
        });
        Ok(Self {
            few: decode(true)?,
            many: decode(false)?,
            prompt: prompt(Pass::Prompt)?,
            tail: prompt(Pass::Tail)?,
            settle: settle.collect::<Result<_, _>>()?,
        })
    }

    /// Those of a step of `rows` rows.
    pub(crate) fn decode(&self, rows: usize) -> &DecodePrograms {
        if rows <= FEW_ROWS { &self.few } else { &self.many }
    }
}

/// The matmuls of a step without drafts, in its order.
pub(crate) fn matmuls(shape: &Shape, weights: &Weights, memory: &Memory) -> Vec<Op> {
    let composer = || Composer { shape, weights, memory, ops: ProgramBuilder::default(), few: false };
    let (mut trunk, mut head) = (composer(), composer());
    trunk.trunk(Pass::Decode);
    head.head();
    trunk.ops.matmuls().chain(head.ops.matmuls()).collect()
}

impl Pass {
    /// Whether the rows are a prompt's.
    fn reads(self) -> bool {
        matches!(self, Self::Prompt | Self::Tail)
    }
}
impl Composer<'_> {
    fn settle(&mut self, slot: usize) {
        let args = SettleArgs {
            state: self.memory.state.address() + (slot * self.shape.slot_floats() * 4) as u64,
            layer_stride: self.shape.layout.floats() as u64,
            slot: self.at(Work::SlotStates) + (slot * size_of::<SlotState>()) as u64,
            layers: self.shape.delta_layers as u32,
            reserved: 0,
            layout: self.shape.layout,
        };
        self.ops.then(OpKind::DeltanetSettle, args);
    }
}
