//! Weights in the order in which tensor-core lanes want them: same bits as in the GGUF file, other places.
//!
//! A tile is 16 outputs by 256 inputs; `cuda/tiles/tile.cuh` describes its planes and `cuda/tiles/*.cuh` read what the files here
//! write. Rows and columns past the matrix's end are zero.

mod blocks32;
mod floats;
mod kquants;
mod planes;

use openjet_engine::quant::TensorType;
use rayon::prelude::*;

/// Outputs that a tile spans.
pub const TILE_ROWS: usize = 16;
/// Inputs that a tile spans.
pub const TILE_COLUMNS: usize = 256;

/// How a tile's bytes are to be read; the values of `WeightType` in `cuda/tiles/tile.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(non_camel_case_types, missing_docs, reason = "these are the formats' own names")]
pub enum WeightType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 4,
    Q5_1 = 5,
    Q8_0 = 6,
    Q2_K = 7,
    Q3_K = 8,
    Q4_K = 9,
    Q5_K = 10,
    Q6_K = 11,
    IQ4_NL = 12,
    IQ4_XS = 13,
}

impl WeightType {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 14] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    /// The tile format of a tensor type. BF16 becomes F16 with a power of two for each row of a tile, which keeps its bits.
    #[must_use]
    pub const fn of(ty: TensorType) -> Self {
        match ty {
            TensorType::F32 => Self::F32,
            TensorType::F16 | TensorType::BF16 => Self::F16,
            TensorType::Q4_0 => Self::Q4_0,
            TensorType::Q4_1 => Self::Q4_1,
            TensorType::Q5_0 => Self::Q5_0,
            TensorType::Q5_1 => Self::Q5_1,
            TensorType::Q8_0 => Self::Q8_0,
            TensorType::Q2_K => Self::Q2_K,
            TensorType::Q3_K => Self::Q3_K,
            TensorType::Q4_K => Self::Q4_K,
            TensorType::Q5_K => Self::Q5_K,
            TensorType::Q6_K => Self::Q6_K,
            TensorType::IQ4_NL => Self::IQ4_NL,
            TensorType::IQ4_XS => Self::IQ4_XS,
        }
    }

    /// Bytes of a tile.
    #[must_use]
    pub const fn tile_bytes(self) -> usize {
        match self {
            Self::F32 => 16_448,
            Self::F16 => 8_256,
            Self::Q4_0 | Self::Q4_K | Self::IQ4_NL => 2_304,
            Self::Q4_1 => 2_560,
            Self::Q5_0 | Self::Q5_K => 2_816,
            Self::Q5_1 => 3_072,
            Self::Q8_0 => 4_352,
            Self::Q2_K => 1_344,
            Self::Q3_K => 1_760,
            // 96 of them unused: on the GPU, tiles begin at lines of its cache.
            Self::Q6_K => 3_456,
            Self::IQ4_XS => 2_176,
        }
    }
}

/// Bytes that a matrix of `rows` outputs and `columns` inputs takes on the device.
#[must_use]
pub const fn repacked_bytes(ty: TensorType, rows: usize, columns: usize) -> usize {
    rows.div_ceil(TILE_ROWS) * columns.div_ceil(TILE_COLUMNS) * WeightType::of(ty).tile_bytes()
}

/// Writes the tiles of `row_tiles` (16 rows each) of a matrix into `out`, in parallel.
///
/// `bytes` are the whole matrix's, rows of `columns` inputs one after the other without padding.
///
/// # Panics
/// If `out` is not the size of these tiles.
pub fn repack(ty: TensorType, bytes: &[u8], columns: usize, row_tiles: std::ops::Range<usize>, out: &mut [u8]) {
    let row_bytes = ty.row_bytes(columns);
    let tile_bytes = WeightType::of(ty).tile_bytes();
    let column_tiles = columns.div_ceil(TILE_COLUMNS);
    let line = column_tiles * tile_bytes;
    assert_eq!(out.len(), row_tiles.len() * line, "the output is not the size of {} lines of tiles", row_tiles.len());
    out.par_chunks_exact_mut(line).zip(row_tiles).for_each(|(out, row_tile)| {
        let row = |r: usize| bytes.get((row_tile * TILE_ROWS + r) * row_bytes..).and_then(|rest| rest.get(..row_bytes));
        let rows: [&[u8]; TILE_ROWS] = std::array::from_fn(|r| row(r).unwrap_or_default());
        for (column_tile, tile) in out.chunks_exact_mut(tile_bytes).enumerate() {
            let first = column_tile * TILE_COLUMNS;
            let parts = rows.map(|row| {
                let part = |column: usize| ty.row_bytes(column.min(columns)).min(row.len());
                &row[part(first)..part(first + TILE_COLUMNS)]
            });
            repack_tile(ty, &parts, tile);
        }
    });
}

/// Writes one tile; a row's bytes may be fewer than 256 columns' (or none): the rest is zero.
fn repack_tile(ty: TensorType, rows: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
    match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => floats::tile(ty, rows, tile),
        TensorType::Q4_0
        | TensorType::Q4_1
        | TensorType::Q5_0
        | TensorType::Q5_1
        | TensorType::Q8_0
        | TensorType::IQ4_NL => blocks32::tile(ty, rows, tile),
        TensorType::Q2_K
        | TensorType::Q3_K
        | TensorType::Q4_K
        | TensorType::Q5_K
        | TensorType::Q6_K
        | TensorType::IQ4_XS => kquants::tile(ty, rows, tile),
    }
}
