//! F16, BF16, F32 as halves over a power of two for each row of a tile.

use half::{bf16, f16};
use openjet_engine::quant::TensorType;

use super::planes::{bits16, put_word};
use super::{TILE_COLUMNS, TILE_ROWS};

pub(super) fn tile(ty: TensorType, rows: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
    let mut first = [[0u16; TILE_COLUMNS]; TILE_ROWS];
    let mut second = first;
    let mut scales = [1.0f32; TILE_ROWS];
    for (r, row) in rows.iter().enumerate() {
        if ty == TensorType::F16 {
            for (h, two) in first[r].iter_mut().zip(row.as_chunks::<2>().0) {
                *h = u16::from_le_bytes(*two);
            }
            continue;
        }
        let mut numbers = [0.0f32; TILE_COLUMNS];
        if ty == TensorType::BF16 {
            for (n, two) in numbers.iter_mut().zip(row.as_chunks::<2>().0) {
                *n = bf16::from_le_bytes(*two).to_f32();
            }
        } else {
            for (n, four) in numbers.iter_mut().zip(row.as_chunks::<4>().0) {
                *n = f32::from_le_bytes(*four);
            }
        }
        scales[r] = scale(&numbers);
        let inverse = 1.0 / scales[r];
        for (c, n) in numbers.into_iter().enumerate() {
            let scaled = n * inverse;
            let high = f16::from_f32(scaled);
            first[r][c] = high.to_bits();
            second[r][c] = f16::from_f32(scaled - high.to_f32()).to_bits();
        }
    }
    bits16(&first, tile);
    let mut end = 8192;
    if ty == TensorType::F32 {
        bits16(&second, &mut tile[8192..]);
        end = 16_384;
    }
    for (r, scale) in scales.into_iter().enumerate() {
        put_word(tile, end + r * 4, scale.to_bits());
    }
}

/// The power of two that brings the largest number to 2^14 .. 2^15, the top of what a half holds.
fn scale(numbers: &[f32]) -> f32 {
    let largest = numbers.iter().fold(0.0f32, |a, n| a.max(n.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return 1.0;
    }
    let exponent = ((largest.to_bits() >> 23) as i32 - 127 - 14).clamp(-120, 120);
    f32::from_bits(((exponent + 127) as u32) << 23)
}
