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

/// Calls `f` for each step and lane with the four pairs (low, high) that the lane holds of that step.
fn each(q: &Integers, mut f: impl FnMut(&Step, usize, [(u8, u8); 4])) {
    for step in 0..16 {
        let at = Step { column: step * 16, quad: step % 8 / 2, upper: step / 8, odd: step % 2 };
        for lane in 0..32 {
            let (g, c) = (lane / 4, at.column + lane % 4 * 2);
            let pair = |row: usize, column: usize| (q[row][column], q[row][column + 1]);
            f(&at, lane, [pair(g, c), pair(g + 8, c), pair(g, c + 8), pair(g + 8, c + 8)]);
        }
    }
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
    each(q, |step, lane, pairs| {
        let mut word = 0;
        for (p, (low, high)) in pairs.into_iter().enumerate() {
            word |= u32::from(low & 15) << (4 * p) | u32::from(high & 15) << (4 * p + 16);
        }
        put_word(out, step.quad * 512 + lane * 16 + (step.upper * 2 + step.odd) * 4, word);
    });
}

/// Bits `shift` and `shift + 1`: 1,024 bytes, which must be zero before.
pub(super) fn bits2(q: &Integers, shift: u32, out: &mut [u8]) {
    const PLACES: [[u32; 4]; 2] = [[4, 8, 6, 10], [12, 0, 14, 2]];
    each(q, |step, lane, pairs| {
        let mut word = 0;
        for ((low, high), place) in pairs.into_iter().zip(PLACES[step.odd]) {
            word |= u32::from(low >> shift & 3) << place | u32::from(high >> shift & 3) << (place + 16);
        }
        or_word(out, step.quad * 256 + lane * 8 + step.upper * 4, word);
    });
}

/// Bit `shift`: 512 bytes, which must be zero before.
pub(super) fn bits1(q: &Integers, shift: u32, out: &mut [u8]) {
    each(q, |step, lane, pairs| {
        let mut word = 0;
        for (p, (low, high)) in pairs.into_iter().enumerate() {
            let c = step.upper * 4 + step.odd * 2 + p / 2;
            let place = (c & 3 | c >> 2 << 3) + p % 2 * 4;
            word |= u32::from(low >> shift & 1) << place | u32::from(high >> shift & 1) << (place + 16);
        }
        or_word(out, step.quad * 128 + lane * 4, word);
    });
}

/// Whole bytes: 4,096 of them.
pub(super) fn bits8(q: &Integers, out: &mut [u8]) {
    each(q, |step, lane, [p0, p1, p2, p3]| {
        let at = step.quad * 1024 + step.upper * 512 + lane * 16 + step.odd * 8;
        out[at..at + 8].copy_from_slice(&[p0.0, p1.0, p0.1, p1.1, p2.0, p3.0, p2.1, p3.1]);
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
