//! The list of ops that the persistent kernel walks: mirrors `cuda/program.cuh` and the argument structures of the ops.
//!
//! Addresses are the device's own (see [`crate::device::Buffer::address`]).

mod op;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytemuck::{Pod, Zeroable};

use crate::args::{AttentionArgs, KvFormat};
use crate::device::{Buffer, Device, DeviceError};
use crate::repack::WeightType;
use crate::tuning::Tuning;
use op::{BARRIER, EARLY, NO_OP};
pub(crate) use op::{JobKind, Op};

/// Matrices that one matmul op can multiply with the same input.
pub const MAX_JOBS: usize = 4;
/// Bytes of 8 rows x 256 columns of a matmul's input; `FRAGMENT_BYTES` in `cuda/fragment.cuh`.
pub const FRAGMENT_BYTES: usize = 4640;

/// Bytes of a fragment buffer for `rows` rows of `columns` numbers.
#[must_use]
pub const fn fragment_bytes(rows: usize, columns: usize) -> usize {
    rows.div_ceil(8) * columns.div_ceil(256) * FRAGMENT_BYTES
}

/// Bytes of 128 rows x 256 columns of a prompt's rows; `PROMPT_TILE_BYTES` in `cuda/prompt_rows.cuh`.
pub(crate) const PROMPT_TILE_BYTES: usize = 128 * 256 * 2;

/// Bytes of prompt rows: `rows` rows of `columns` numbers, as in `cuda/prompt_rows.cuh`.
#[must_use]
pub const fn prompt_row_bytes(rows: usize, columns: usize) -> usize {
    let groups = rows.div_ceil(128);
    groups * columns.div_ceil(256) * PROMPT_TILE_BYTES + groups * 128 * 4
}

/// The ops, as `OpKind` in `cuda/program.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "each is described where its arguments are, in cuda/")]
pub enum OpKind {
    Embed,
    Norm,
    Pack,
    Matmul,
    Previous,
    PromptEnd,
    AttentionPrepare,
    AttentionDecode,
    AttentionMerge,
    AttentionPrompt,
    DeltanetDecode,
    DeltanetKeep,
    DeltanetSettle,
    DeltanetConvolvePrompt,
    DeltanetChunks,
    DeltanetScan,
    DeltanetFinish,
    SampleAdjust,
    SampleWeigh,
    SamplePick,
    SampleAccept,
    SampleLogprobs,
    PackPrompt,
    MatmulPrompt,
    Residual,
}

/// Embedding lookup.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are described in cuda/embed.cuh")]
pub struct EmbedArgs {
    pub weights: u64,
    pub tokens: u64,
    pub rows: u64,
    pub x: u64,
    pub ty: u32,
    pub width: u32,
    pub stride: u32,
    pub token_stride: u32,
}

/// Residual addition, RMS norm and the next matmul's input.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are described in cuda/norm.cuh")]
pub struct NormArgs {
    pub x: u64,
    pub parts: u64,
    pub weight: u64,
    pub normed: u64,
    pub fragments: u64,
    pub rows: u64,
    pub table: u64,
    pub last_x: u64,
    pub split_stride: u64,
    pub splits: u32,
    pub width: u32,
    pub stride: u32,
    pub part_stride: u32,
    pub normed_stride: u32,
    pub first_column_tile: u32,
    pub assign: u32,
    pub eps: f32,
    pub prompt: u32,
    pub second: u32,
    pub squares: u64,
}

/// Rows of f32 that become a matmul's input.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are described in cuda/pack.cuh")]
pub struct InputRows {
    pub x: u64,
    pub gate: u64,
    pub norm: u64,
    pub width: u32,
    pub stride: u32,
    pub gate_stride: u32,
    pub eps: f32,
}

impl InputRows {
    /// Rows of `width` floats, one behind the other, as they are.
    #[must_use]
    pub fn plain(x: u64, width: usize) -> Self {
        Self { x, width: width as u32, stride: width as u32, ..Self::default() }
    }
}

/// Writes a matmul's input.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are described in cuda/pack.cuh")]
pub struct PackArgs {
    pub from: InputRows,
    pub to: u64,
    pub rows: u64,
}

/// One matrix of a matmul op.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are described in cuda/matmul.cuh")]
pub struct MatmulJob {
    pub weights: u64,
    pub y: u64,
    pub ty: u16,
    pub paired: u16,
    pub outputs: u32,
    pub stride: u32,
    pub splits: u32,
    pub split_stride: u64,
}

/// Products of up to four matrices with one input.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are described in cuda/matmul.cuh")]
pub struct MatmulArgs {
    pub x: u64,
    /// Set by [`ProgramBuilder::finish`].
    pub x_map: u64,
    pub rows: u64,
    pub inputs: u32,
    pub jobs: u32,
    pub job: [MatmulJob; MAX_JOBS],
    pub squares: u64,
    pub eps: f32,
    pub reserved: u32,
    pub from: InputRows,
}

/// Hidden states of the positions before the rows'.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are described in cuda/pass.cuh")]
pub struct PreviousArgs {
    pub table: u64,
    pub hidden: u64,
    pub pending_hidden: u64,
    pub out: u64,
    pub width: u32,
    pub reserved: u32,
}

/// What a prompt's pass leaves behind.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are described in cuda/pass.cuh")]
pub struct PromptEndArgs {
    pub table: u64,
    pub slots: u64,
    pub x: u64,
    pub hidden: u64,
    pub last_x: u64,
    pub pending_hidden: u64,
    pub width: u32,
    pub reserved: u32,
}

/// A weight matrix on the device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMatrix {
    /// Where its tiles lie.
    pub address: u64,
    /// What they are.
    pub ty: WeightType,
    /// Outputs; a pair's are `silu(a) * b` of products with its two matrices.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Whether the tiles are a pair's (`repack_pair` made them).
    pub paired: bool,
}

impl DeviceMatrix {
    /// The job that multiplies it in `splits` runs of the inputs; `y` has room for `rows` rows of each run's.
    ///
    /// # Panics
    /// If a pair's inputs are to be cut: its outputs are made of whole sums.
    #[must_use]
    pub fn job(&self, y: u64, splits: usize, rows: usize) -> MatmulJob {
        assert!(!self.paired || splits == 1, "a pair in {splits} runs");
        MatmulJob {
            weights: self.address,
            y,
            ty: self.ty as u16,
            paired: self.paired.into(),
            outputs: self.rows as u32,
            stride: self.rows as u32,
            splits: splits as u32,
            split_stride: (rows * self.rows) as u64,
        }
    }
}

/// A program being written.
#[derive(Debug, Default)]
pub struct ProgramBuilder {
    ops: Vec<Op>,
    min_draft: u32,
    /// The table's where none is given.
    tuning: Option<Tuning>,
}

impl ProgramBuilder {
    /// One whose matmuls are shared out by these costs.
    #[must_use]
    pub fn tuned(tuning: Tuning) -> Self {
        Self::of(Vec::new(), tuning)
    }

    /// The same, of these ops.
    pub(crate) fn of(ops: Vec<Op>, tuning: Tuning) -> Self {
        Self { ops, min_draft: 0, tuning: Some(tuning) }
    }

    /// The matmuls of decode rows that no step leaves out.
    pub(crate) fn matmuls(self) -> impl Iterator<Item = Op> {
        self.ops.into_iter().filter(|op| op.is_matmul() && op.min_draft == 0)
    }

    /// A step whose draft depth is lower ends here.
    pub fn min_draft(&mut self, depth: u32) {
        self.min_draft = self.min_draft.max(depth);
    }

    /// Adds an op that runs at the same time as the one after it. `args` is the op's argument structure.
    pub fn along(&mut self, kind: OpKind, args: impl Pod) -> &mut Self {
        self.ops.push(Op::new(kind, self.min_draft, &args));
        self
    }

    /// Adds an op that runs at the same time as the one after it, and needs nothing of the one before: it does not wait for it.
    pub fn early(&mut self, kind: OpKind, args: impl Pod) -> &mut Self {
        self.along(kind, args);
        if let Some(op) = self.ops.last_mut() {
            op.flags |= EARLY;
        }
        self
    }

    /// Adds an op whose results the next one may read.
    pub fn then(&mut self, kind: OpKind, args: impl Pod) -> &mut Self {
        self.along(kind, args);
        if let Some(op) = self.ops.last_mut() {
            op.flags |= BARRIER;
        }
        self
    }

    /// Uploads it.
    ///
    /// # Errors
    /// When the device has no room or fails.
    pub fn finish(mut self, device: &Device) -> Result<Program, DeviceError> {
        let maps = self.map_inputs(device)?;
        let mut next = NO_OP;
        for (i, op) in self.ops.iter_mut().enumerate().rev() {
            op.next_matmul = next;
            if op.is_matmul() {
                next = i as u32;
            }
        }
        let tuning = self.tuning.unwrap_or_else(|| Tuning::built_in(device.capability()));
        let shares: Vec<u32> = self.ops.iter().flat_map(|op| op.shares(device.blocks(), &tuning)).collect();
        let bytes = [bytemuck::cast_slice(&self.ops), bytemuck::cast_slice(&shares)].concat();
        let ops = device.upload(&bytes)?;
        let counter = device.allocate(4)?;
        Ok(Program { device: device.clone(), ops, counter, _maps: maps, count: self.ops.len() as u32 })
    }

    /// Gives each matmul of a prompt the map of its input's tiles, and each attention of decode rows that of the pool's cells, where
    /// the device copies by such. Returns the maps by what they tell of.
    fn map_inputs(&mut self, device: &Device) -> Result<BTreeMap<u64, Buffer>, DeviceError> {
        let mut maps = BTreeMap::new();
        for op in &mut self.ops {
            let (tiles, bytes, to) = if op.kind == OpKind::MatmulPrompt as u32 {
                let args: &mut MatmulArgs = op.args_mut();
                (args.x, PROMPT_TILE_BYTES, &mut args.x_map)
            } else if op.kind == OpKind::AttentionDecode as u32 {
                let args: &mut AttentionArgs = op.args_mut();
                let Ok(format) = KvFormat::try_from(args.pool.format) else { continue };
                (args.pool.base, format.unit_bytes(), &mut args.cells_map)
            } else {
                continue;
            };
            let map = match maps.entry(tiles) {
                Entry::Occupied(map) => map.into_mut(),
                Entry::Vacant(place) => {
                    let Some(map) = device.map_tiles(tiles, bytes)? else { break };
                    place.insert(device.upload(bytemuck::cast_slice(&map))?)
                }
            };
            *to = map.address();
        }
        Ok(maps)
    }
}

/// A program on the device.
#[derive(Debug)]
pub struct Program {
    device: Device,
    ops: Buffer,
    counter: Buffer,
    /// What the ops lead to.
    _maps: BTreeMap<u64, Buffer>,
    count: u32,
}

impl Program {
    /// Ops in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it does nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Runs it on the step table at `table` and waits for the end.
    ///
    /// # Errors
    /// When the launch or the kernel fails.
    pub fn run(&self, table: &Buffer) -> Result<(), DeviceError> {
        self.start(table)?;
        self.device.finish()
    }

    /// Starts it, behind what was started before. The next [`Self::run`] waits for it and tells of its failure.
    ///
    /// # Errors
    /// When the launch fails.
    pub(crate) fn start(&self, table: &Buffer) -> Result<(), DeviceError> {
        self.device.start(self.ops.address(), self.count, table.address(), self.counter.address())
    }
}
