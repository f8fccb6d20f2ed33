//! Writing the two block formats of the key-value pool.

use half::f16;
use multiversion::multiversion;

/// Codes 32 numbers as a `Q8_0` block: scale `d` = largest magnitude / 127 (stored as f16), then `x / d` rounded half away
/// from zero as signed bytes.
#[must_use]
#[multiversion(targets("x86_64+avx2+f16c"))]
pub fn quantize_q8_0(x: &[f32; 32]) -> [u8; 34] {
    let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    let d = largest / 127.0;
    let mut block = [0; 34];
    let (scale, quants) = block.split_at_mut(2);
    scale.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    if d > 0.0 {
        for (q, x) in quants.iter_mut().zip(x) {
            *q = ((x / d).round() as i8).cast_unsigned();
        }
    }
    block
}

/// Codes 32 numbers as a `Q4_0` block: scale `d` = the number of largest magnitude / -8 (the first of equals; stored as
/// f16), then nibbles `min(15, trunc(x / d + 8.5))`, the first 16 numbers in the low ones.
#[must_use]
#[multiversion(targets("x86_64+avx2+f16c"))]
pub fn quantize_q4_0(x: &[f32; 32]) -> [u8; 18] {
    let largest = x.iter().fold(0.0_f32, |m, &v| if v.abs() > m.abs() { v } else { m });
    let d = largest / -8.0;
    let mut block = [0; 18];
    let (scale, quants) = block.split_at_mut(2);
    scale.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let nibble = |x: f32| if d == 0.0 { 8 } else { ((x / d + 8.5) as u8).min(15) };
    for (j, q) in quants.iter_mut().enumerate() {
        *q = nibble(x[j]) | nibble(x[j + 16]) << 4;
    }
    block
}
