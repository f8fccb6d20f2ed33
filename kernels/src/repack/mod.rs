//! Weights in the order in which tensor-core lanes want them: same bits as in the GGUF file, other places.
//!
//! A tile is 16 outputs by 256 inputs; `cuda/tiles/tile.cuh` describes its planes and `cuda/tiles/*.cuh` read what the files here
//! write. Rows and columns past the matrix's end are zero.
//!
//! Two matrices of one type and shape can be paired: a tile then has 8 rows of the first, and below them the same 8 of the second, so
//! that whoever multiplies a tile has both products of an output.

mod blocks32;
mod floats;
mod kquants;
mod planes;

use std::ops::Range;

use openjet_engine::quant::TensorType;
use rayon::prelude::*;

/// Outputs that a tile spans.
pub const TILE_ROWS: usize = 16;
/// Outputs that a tile of a pair spans, of each of the two matrices.
pub const PAIR_ROWS: usize = TILE_ROWS / 2;
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

/// Bytes that two matrices of `rows` outputs and `columns` inputs each take as a pair.
#[must_use]
pub const fn repacked_pair_bytes(ty: TensorType, rows: usize, columns: usize) -> usize {
    repacked_bytes(ty, rows.div_ceil(PAIR_ROWS) * TILE_ROWS, columns)
}

/// Writes the tiles of `row_tiles` (16 rows each) of a matrix into `out`, in parallel.
///
/// `bytes` are the whole matrix's, rows of `columns` inputs one after the other without padding.
///
/// # Panics
/// If `out` is not the size of these tiles.
pub fn repack(ty: TensorType, bytes: &[u8], columns: usize, row_tiles: Range<usize>, out: &mut [u8]) {
    repack_rows(ty, columns, row_tiles, out, |row_tile, r| (bytes, row_tile * TILE_ROWS + r));
}

/// Likewise, of two matrices as a pair; a row tile has 8 rows of each.
///
/// # Panics
/// If `out` is not the size of these tiles.
pub fn repack_pair(ty: TensorType, both: [&[u8]; 2], columns: usize, row_tiles: Range<usize>, out: &mut [u8]) {
    let place = |row_tile, r| (both[r / PAIR_ROWS], row_tile * PAIR_ROWS + r % PAIR_ROWS);
    repack_rows(ty, columns, row_tiles, out, place);
}

/// `place` says in which bytes the row `r` of a row tile stands, and as which of their rows.
fn repack_rows<'a>(
    ty: TensorType,
    columns: usize,
    row_tiles: Range<usize>,
    out: &mut [u8],
    place: impl Fn(usize, usize) -> (&'a [u8], usize) + Sync,
) {
    let row_bytes = ty.row_bytes(columns);
    let tile_bytes = WeightType::of(ty).tile_bytes();
    let column_tiles = columns.div_ceil(TILE_COLUMNS);
    let line = column_tiles * tile_bytes;
    assert_eq!(out.len(), row_tiles.len() * line, "the output is not the size of {} lines of tiles", row_tiles.len());
    out.par_chunks_exact_mut(line).zip(row_tiles).for_each(|(out, row_tile)| {
        let row = |r: usize| {
            let (bytes, row) = place(row_tile, r);
            bytes.get(row * row_bytes..).and_then(|rest| rest.get(..row_bytes)).unwrap_or_default()
        };
        let rows: [&[u8]; TILE_ROWS] = std::array::from_fn(row);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pairs_tiles_have_eight_rows_of_each_and_nothing_past_the_end() {
        const COLUMNS: usize = 2 * TILE_COLUMNS;
        for ty in TensorType::ALL {
            let (row_bytes, part_bytes) = (ty.row_bytes(COLUMNS), ty.row_bytes(TILE_COLUMNS));
            for rows in [27, 40] {
                let bytes = |step: usize| (0..rows * row_bytes).map(|i| (i * step / 32) as u8 & 0x3f).collect();
                let (first, second): (Vec<u8>, Vec<u8>) = (bytes(75), bytes(117));
                let mut found = vec![0x5a; repacked_pair_bytes(ty, rows, COLUMNS)];
                // In two goes, as large matrices are.
                let (start, end) = found.split_at_mut(repacked_bytes(ty, TILE_ROWS, COLUMNS));
                repack_pair(ty, [&first, &second], COLUMNS, 0..1, start);
                repack_pair(ty, [&first, &second], COLUMNS, 1..rows.div_ceil(8), end);
                let mut expected = vec![0xa5; WeightType::of(ty).tile_bytes()];
                for (i, found) in found.chunks_exact(expected.len()).enumerate() {
                    let (tile, column_tile) = (i / 2, i % 2);
                    let parts = std::array::from_fn(|r| {
                        let (bytes, row) = if r < 8 { (&first, 8 * tile + r) } else { (&second, 8 * tile + r - 8) };
                        let part = row * row_bytes + column_tile * part_bytes;
                        if row < rows { &bytes[part..part + part_bytes] } else { &[] }
                    });
                    repack_tile(ty, &parts, &mut expected);
                    assert!(found == expected, "{ty:?}, {rows} rows, tile {tile}, column tile {column_tile}");
                }
            }
        }
    }
}
