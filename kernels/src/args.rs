//! Arguments of the attention, `DeltaNet` and sampling ops, as the device takes them. Mirrors the structs of the same names in
//! `cuda/attention.cuh`, `cuda/deltanet.cuh` and `cuda/sample.cuh`, which say what each pointer leads to. Addresses are the
//! device's.

use bytemuck::{Pod, Zeroable};

/// Numbers of a query, key and value head.
pub const HEAD_DIM: usize = 256;
/// Numbers of a `DeltaNet` key and value head.
pub const STATE_DIM: usize = 128;
/// Taps of the convolution.
pub const TAPS: usize = 4;
/// Tokens of a slice of the vocabulary.
pub const SLICE: usize = 4096;
/// Slices of the largest vocabulary.
pub const MAX_SLICES: usize = 128;
/// Likely tokens that are listed of a slice.
pub const SLICE_LIST: usize = 256;
/// [`SampleArgs::draft`] of verified rows.
pub const NO_DRAFT: u32 = u32::MAX;

/// Format of the pool's cells; the values of `KvFormat` in `kv.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum KvFormat {
    /// Half precision.
    F16 = 0,
    /// Blocks of 32 signed bytes with an f16 scale.
    Q8_0 = 1,
    /// Blocks of 32 nibbles with an f16 scale, after a Hadamard rotation.
    Q4_0 = 2,
}

impl KvFormat {
    /// Bytes of one page's keys or values of one head.
    #[must_use]
    pub fn tile_bytes(self) -> usize {
        64 * match self {
            Self::F16 => 512,
            Self::Q8_0 => 256 + 16,
            Self::Q4_0 => 128 + 16,
        }
    }

    /// Bytes of cells that the device copies at once: a tile, or half a tile of f16. `Cells` in `cuda/attention_cells.cuh`.
    pub(crate) fn unit_bytes(self) -> usize {
        match self {
            Self::F16 => self.tile_bytes() / 2,
            Self::Q8_0 | Self::Q4_0 => self.tile_bytes(),
        }
    }

    /// Bytes of a page: all layers' keys and values.
    #[must_use]
    pub fn page_bytes(self, layers: usize, kv_heads: usize) -> usize {
        layers * 2 * kv_heads * self.tile_bytes()
    }
}

impl TryFrom<u32> for KvFormat {
    type Error = u32;

    fn try_from(number: u32) -> Result<Self, u32> {
        [Self::F16, Self::Q8_0, Self::Q4_0].into_iter().find(|&format| format as u32 == number).ok_or(number)
    }
}

/// The key-value pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct KvPool {
    pub base: u64,
    pub page_bytes: u64,
    pub layers: u32,
    pub kv_heads: u32,
    pub format: u32,
    pub reserved: u32,
}

/// Of `op_attention_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct AttentionArgs {
    pub table: u64,
    pub draft_rows: u64,
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub queries: u64,
    pub partial: u64,
    pub out: u64,
    pub fragments: u64,
    pub q_norm: u64,
    pub k_norm: u64,
    pub rope_turns: u64,
    pub pool: KvPool,
    /// Set by [`ProgramBuilder::finish`](crate::program::ProgramBuilder::finish).
    pub cells_map: u64,
    pub layer: u32,
    pub heads: u32,
    pub rope_pairs: u32,
    pub q_width: u32,
    pub kv_width: u32,
    pub out_width: u32,
    pub first_position: u32,
    pub splits: u32,
    pub draft: u32,
    pub cells_only: u32,
    pub rope_scale: f32,
    pub eps: f32,
}

impl AttentionArgs {
    /// Floats of `partial` for `rows` rows that see up to `context` tokens.
    #[must_use]
    pub fn partial_floats(rows: usize, heads: usize, context: usize) -> usize {
        rows * heads * Self::splits_of(context) * (HEAD_DIM + 4)
    }

    /// Splits of a context of so many tokens: of 4 pages up to 8,192 tokens, of 8 up to 65,536, then of 32.
    #[must_use]
    pub fn splits_of(context: usize) -> usize {
        match context.div_ceil(64) {
            pages @ ..=128 => pages.div_ceil(4),
            pages @ ..=1024 => 32 + (pages - 128).div_ceil(8),
            pages => 144 + (pages - 1024).div_ceil(32),
        }
    }
}

/// Shape of one layer's state of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DeltaLayout {
    /// Key heads.
    pub key_heads: u32,
    /// Value heads.
    pub value_heads: u32,
    /// Most rows of a segment of a decode step.
    pub rows: u32,
    /// Zero.
    pub reserved: u32,
}

impl DeltaLayout {
    /// Channels of the convolution.
    #[must_use]
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) as usize * STATE_DIM
    }

    /// Floats at the front of a layer's state that make up a settled state: memory, then the convolution's history.
    #[must_use]
    pub fn settled_floats(&self) -> usize {
        self.value_heads as usize * STATE_DIM * STATE_DIM + (TAPS - 1) * self.channels()
    }

    /// Floats of a layer's state, with what rows leave for the next step; a multiple of 4.
    #[must_use]
    pub fn floats(&self) -> usize {
        let (rows, key_heads, value_heads) = (self.rows as usize, self.key_heads as usize, self.value_heads as usize);
        let kept = rows * self.channels() + (2 * key_heads + value_heads) * rows * STATE_DIM + rows * value_heads;
        (self.settled_floats() + kept).next_multiple_of(4)
    }

    /// Floats of [`DeltaArgs::chunks`] for a prompt chunk of `rows` rows in `segments` segments.
    #[must_use]
    pub fn chunk_floats(&self, rows: usize, segments: usize) -> usize {
        let chunks = rows / 64 + 2 * segments;
        chunks * self.value_heads as usize * (2 * 64 * STATE_DIM + 64 * 64 + 64)
    }
}

/// Of `op_deltanet_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct DeltaArgs {
    pub table: u64,
    pub slots: u64,
    pub state: u64,
    pub slot_stride: u64,
    pub qkv: u64,
    pub alpha: u64,
    pub beta: u64,
    pub mixed: u64,
    pub out: u64,
    pub conv: u64,
    pub dt_bias: u64,
    pub a: u64,
    pub chunks: u64,
    pub layout: DeltaLayout,
    pub qkv_width: u32,
    pub gate_width: u32,
    pub out_width: u32,
    pub reserved: u32,
}

/// Of `op_deltanet_settle`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SettleArgs {
    pub state: u64,
    pub layer_stride: u64,
    pub slot: u64,
    pub layers: u32,
    pub reserved: u32,
    pub layout: DeltaLayout,
}

/// What the device keeps of a slot between steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SlotState {
    /// Rows of the last decode step that the recurrent state has still to take in.
    pub pending: u32,
    /// Which half of the doubled parts they are in.
    pub parity: u32,
}

/// Bytes of a slice's statistics, of a listed token and of a row's pick.
pub const STATS_BYTES: usize = 48;
/// See [`STATS_BYTES`].
pub const CANDIDATE_BYTES: usize = 8;
/// See [`STATS_BYTES`].
pub const PICK_BYTES: usize = 8;

/// Of `op_sample_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SampleArgs {
    pub table: u64,
    pub logits: u64,
    pub adjusted: u64,
    pub stats: u64,
    pub candidates: u64,
    pub picks: u64,
    pub slots: u64,
    pub result: u64,
    pub hidden: u64,
    pub pending_hidden: u64,
    pub draft_hidden: u64,
    pub draft_rows: u64,
    pub usable: u64,
    pub vocab: u32,
    pub draft: u32,
    pub draft_max: u32,
    pub hidden_width: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same numbers stand in the device code as static assertions.
    #[test]
    fn layout_is_that_of_the_device() {
        assert_eq!(size_of::<KvPool>(), 32);
        assert_eq!(size_of::<AttentionArgs>(), 184);
        assert_eq!(size_of::<DeltaArgs>(), 136);
        assert_eq!(size_of::<SettleArgs>(), 48);
        assert_eq!(size_of::<SlotState>(), 8);
        assert_eq!(size_of::<SampleArgs>(), 120);
    }

    #[test]
    fn splits_cover_the_context() {
        let cases = [(1, 1), (256, 1), (257, 2), (8192, 32), (8193, 33), (65_536, 144), (65_537, 145), (262_144, 240)];
        for (context, splits) in cases {
            assert_eq!(AttentionArgs::splits_of(context), splits, "{context}");
        }
    }

    #[test]
    fn state_of_the_27b_has_the_size_of_the_specification() {
        let layout = DeltaLayout { key_heads: 16, value_heads: 48, rows: 9, reserved: 0 };
        assert_eq!(layout.channels(), 10_240);
        assert_eq!(48 * 4 * layout.settled_floats(), 150_994_944 + 5_898_240);
        assert_eq!(layout.floats() - layout.settled_floats(), 9 * 10_240 + 9 * (2 * 2048 + 6144) + 9 * 48);
    }
}
