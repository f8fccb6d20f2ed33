//! Plain floating-point rows.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use multiversion::multiversion;

/// Elements converted at a time.
const CHUNK: usize = 64;

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = f32::from_le_bytes(*bytes);
    }
}

#[multiversion(targets("x86_64+avx2+f16c"))]
pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    let mut halves = [f16::ZERO; CHUNK];
    for (out, bytes) in out.chunks_mut(CHUNK).zip(bytes.chunks(2 * CHUNK)) {
        let halves = &mut halves[..out.len()];
        for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves.convert_to_f32_slice(out);
    }
}

#[multiversion(targets("x86_64+avx2+f16c"))]
pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = bf16::from_le_bytes(*bytes).to_f32();
    }
}
