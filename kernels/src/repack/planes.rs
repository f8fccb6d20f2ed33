//! The planes of a tile: the integers of 16 rows x 256 columns, some of their bits at a time.

use super::{TILE_COLUMNS, TILE_ROWS};

/// Integers of a tile, row by row.
pub(super) type Integers = [[u8; TILE_COLUMNS]; TILE_ROWS];

/// Integers of a tile that are all zero.
pub(super) const ZERO: Integers = [[0; TILE_COLUMNS]; TILE_ROWS];

/// A k-step's place in its quad.
struct Step {
    /// First column.
    column: usize,
    quad: usize,
    /// Steps 8..15.
    upper: usize,
    odd: usize,
}

/// Calls `f` for each step and four lanes (the first is named) with what they hold of that step: of eight columns of a row each,
/// two a lane, in the order row, row + 8, then the same of the next eight columns.
fn each(q: &Integers, mut f: impl FnMut(&Step, usize, [u64; 4])) {
    for step in 0..16 {
        let at = Step { column: step * 16, quad: step % 8 / 2, upper: step / 8, odd: step % 2 };
        for g in 0..TILE_ROWS / 2 {
            let eight = |row: usize, column: usize| {
                let columns = &q[row][at.column + column..];
                u64::from_le_bytes(std::array::from_fn(|i| columns[i]))
            };
            f(&at, 4 * g, [eight(g, 0), eight(g + 8, 0), eight(g, 8), eight(g + 8, 8)]);
        }
    }
}

/// A byte eight times.
const fn times8(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The words of four lanes: bytes of `even` and `odd` in turn.
fn lanes(even: u64, odd: u64) -> [u32; 4] {
    let (even, odd) = (even.to_le_bytes(), odd.to_le_bytes());
    std::array::from_fn(|j| u32::from_le_bytes([even[2 * j], odd[2 * j], even[2 * j + 1], odd[2 * j + 1]]))
}

fn or_word(out: &mut [u8], at: usize, word: u32) {
    for (byte, more) in out[at..at + 4].iter_mut().zip(word.to_le_bytes()) {
        *byte |= more;
    }
}

/// Stores a word.
pub(super) fn put_word(out: &mut [u8], at: usize, word: u32) {
    out[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// Bits 0..3: 2,048 bytes.
pub(super) fn bits4(q: &Integers, out: &mut [u8]) {
    each(q, |step, lane, held| {
        let [a, b, c, d] = held.map(|bytes| bytes & times8(15));
        for (j, word) in lanes(a | b << 4, c | d << 4).into_iter().enumerate() {
            put_word(out, step.quad * 512 + (lane + j) * 16 + (step.upper * 2 + step.odd) * 4, word);
        }
    });
}

/// Bits `shift` and `shift + 1`: 1,024 bytes, which must be zero before.
pub(super) fn bits2(q: &Integers, shift: u32, out: &mut [u8]) {
    each(q, |step, lane, held| {
        let [a, b, c, d] = held.map(|bytes| bytes >> shift & times8(3));
        let words = if step.odd == 0 { lanes(a << 4 | c << 6, b | d << 2) } else { lanes(b | d << 2, a << 4 | c << 6) };
        for (j, word) in words.into_iter().enumerate() {
            or_word(out, step.quad * 256 + (lane + j) * 8 + step.upper * 4, word);
        }
    });
}

/// Bit `shift`: 512 bytes, which must be zero before.
pub(super) fn bits1(q: &Integers, shift: u32, out: &mut [u8]) {
    each(q, |step, lane, held| {
        let [a, b, c, d] = held.map(|bytes| bytes >> shift & times8(1));
        let bits = (a | b << 4 | c << 1 | d << 5) << (2 * step.odd);
        let words = if step.upper == 0 { lanes(bits, 0) } else { lanes(0, bits) };
        for (j, word) in words.into_iter().enumerate() {
            or_word(out, step.quad * 128 + (lane + j) * 4, word);
        }
    });
}

/// Whole bytes: 4,096 of them.
pub(super) fn bits8(q: &Integers, out: &mut [u8]) {
    each(q, |step, lane, [a, b, c, d]| {
        for (j, (first, second)) in lanes(a, b).into_iter().zip(lanes(c, d)).enumerate() {
            let at = step.quad * 1024 + step.upper * 512 + (lane + j) * 16 + step.odd * 8;
            put_word(out, at, first);
            put_word(out, at + 4, second);
        }
    });
}

/// Halves: 8,192 bytes.
pub(super) fn bits16(q: &[[u16; TILE_COLUMNS]; TILE_ROWS], out: &mut [u8]) {
    for step in 0..16 {
        let (quad, place) = (step % 8 / 2, step / 8 * 2 + step % 2);
        for lane in 0..32 {
            let (g, c) = (lane / 4, step * 16 + lane % 4 * 2);
            let places = [(g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8)];
            for (p, (row, column)) in places.into_iter().enumerate() {
                let word = u32::from(q[row][column]) | u32::from(q[row][column + 1]) << 16;
                put_word(out, quad * 2048 + place * 512 + lane * 16 + p * 4, word);
            }
        }
    }
}
