//! One op of a program, and what a matmul's jobs cost and get.

use bytemuck::{Pod, Zeroable};

use super::{MatmulArgs, MatmulJob, OpKind};
use crate::repack::{TILE_ROWS, WeightType};
use crate::shares::share_out;
use crate::tuning::Tuning;

/// An op as the device reads it; `Op` in `cuda/program.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(16))]
pub(crate) struct Op {
    pub(super) kind: u32,
    pub(super) min_draft: u32,
    pub(super) flags: u32,
    pub(super) next_matmul: u32,
    args: [u64; 32],
    /// A matmul's share of a block; stands in the list of shares behind the ops.
    share: [u32; 2],
    padding: [u32; 2],
}

const _: () = assert!(size_of::<Op>() == 288 && size_of::<MatmulArgs>() == 248 && size_of::<MatmulJob>() == 40);

/// `OP_BARRIER` and `OP_EARLY` in `cuda/program.cuh`.
pub(super) const BARRIER: u32 = 1;
pub(super) const EARLY: u32 = 2;

/// `NO_OP` in `cuda/program.cuh`.
pub(super) const NO_OP: u32 = u32::MAX;

impl Op {
    /// One that the next runs beside; `args` is its argument structure.
    pub(super) fn new(kind: OpKind, min_draft: u32, args: &impl Pod) -> Self {
        let mut op = Self { kind: kind as u32, min_draft, ..Self::zeroed() };
        let bytes = bytemuck::bytes_of(args);
        bytemuck::cast_slice_mut::<u64, u8>(&mut op.args)[..bytes.len()].copy_from_slice(bytes);
        op
    }

    /// The arguments, of an op whose arguments are `A`.
    fn args<A: Pod>(&self) -> &A {
        bytemuck::from_bytes(&bytemuck::cast_slice(&self.args)[..size_of::<A>()])
    }

    pub(super) fn args_mut<A: Pod>(&mut self) -> &mut A {
        bytemuck::from_bytes_mut(&mut bytemuck::cast_slice_mut(&mut self.args)[..size_of::<A>()])
    }

    pub(super) fn is_matmul(&self) -> bool {
        self.kind == OpKind::Matmul as u32
    }

    /// Where the shares of `blocks` blocks begin and end, in units (an output tile in one split of one job); zeros unless it is
    /// a matmul. The most costly share costs as little as it can.
    pub(crate) fn shares(&self, blocks: u32, tuning: &Tuning) -> Vec<u32> {
        if !self.is_matmul() {
            return vec![0; blocks as usize + 1];
        }
        let args: &MatmulArgs = self.args();
        let column_tiles = u64::from(args.inputs.div_ceil(256));
        // As `for_parts` in cuda/matmul.cuh cuts them.
        let cut = |job: &MatmulJob, split: u32| match split {
            _ if split == job.splits => column_tiles,
            split => column_tiles.div_ceil(2) * u64::from(split) / u64::from(job.splits) * 2,
        };
        let runs = args.jobs().iter().flat_map(|job| {
            let tile = tuning.tile(job.weight_type());
            (0..job.splits).map(move |split| (job.tiles(), (cut(job, split + 1) - cut(job, split)) * tile))
        });
        let runs: Vec<(u32, u64)> = runs.collect();
        share_out(&runs, tuning.part.into(), blocks)
    }

    /// Of a matmul: its inputs, and what its jobs are.
    pub(crate) fn matmul_kind(&self) -> (u32, Vec<JobKind>) {
        let args: &MatmulArgs = self.args();
        let kind = |&MatmulJob { ty, paired, outputs, splits, .. }: &MatmulJob| JobKind { ty, paired, outputs, splits };
        (args.inputs, args.jobs().iter().map(kind).collect())
    }

    /// Bytes of a matmul's weights.
    pub(crate) fn weight_bytes(&self) -> u64 {
        let args: &MatmulArgs = self.args();
        let tiles = |job: &MatmulJob| u64::from(args.inputs.div_ceil(256)) * u64::from(job.tiles());
        args.jobs().iter().map(|job| tiles(job) * job.weight_type().tile_bytes() as u64).sum()
    }
}

impl MatmulArgs {
    fn jobs(&self) -> &[MatmulJob] {
        &self.job[..self.jobs as usize]
    }
}

impl MatmulJob {
    fn weight_type(&self) -> WeightType {
        WeightType::ALL[self.ty as usize]
    }

    /// Output tiles.
    fn tiles(&self) -> u32 {
        (self.outputs << self.paired).div_ceil(TILE_ROWS as u32)
    }
}

/// What of a job decides how long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobKind {
    pub(crate) ty: u16,
    pub(crate) paired: u16,
    pub(crate) outputs: u32,
    pub(crate) splits: u32,
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceMatrix, ProgramBuilder};
    use super::*;

    /// 68 column tiles in runs of 12 and 14: a block of the shorter one gets more output tiles.
    #[test]
    fn runs_of_different_lengths_are_shared_out_by_their_lengths() {
        let down = DeviceMatrix { address: 0, ty: WeightType::Q4_K, rows: 5120, columns: 17_408, paired: false };
        let mut args = MatmulArgs { inputs: 17_408, jobs: 1, ..MatmulArgs::default() };
        args.job[0] = down.job(0, 5, 1);
        let mut program = ProgramBuilder::default();
        program.then(OpKind::Matmul, args);
        let shares = program.ops[0].shares(132, &Tuning::built_in(Some((9, 0))));
        let tiles_of = |run: u32| {
            let inside = shares.windows(2).filter(|share| share[0] / 320 == run && (share[1] - 1) / 320 == run);
            inside.map(|share| share[1] - share[0]).max()
        };
        assert_eq!([0, 1, 2, 3, 4].map(tiles_of), [14, 12, 12, 12, 12].map(Some));
    }
}
