//! K formats: 256 elements in sub-blocks of 16 or 32, whose own scales are coded against the block's.
//!
//! Each block is decoded in two passes, bits to small integers and these to numbers, since both are then plain loops over
//! neighbours. The second pass wraps where it subtracts, because it can't overflow and a check would keep it scalar.

#![allow(non_camel_case_types, reason = "these are the formats' own names")]

use super::{Block, Half};
use bytemuck::{Pod, Zeroable};

/// 2 bits; 16 sub-blocks with a 4-bit scale and a 4-bit minimum each: `d sc q - dmin m`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q2_K {
    scales: [u8; 16],
    qs: [u8; 64],
    d: Half,
    dmin: Half,
}

impl Block<256> for Q2_K {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        let scales = self.scales.map(|s| d * f32::from(s & 15));
        let mins = self.scales.map(|s| dmin * f32::from(s >> 4));
        scale_and_shift::<16>(&two_bits(&self.qs), &scales, &mins, out);
    }
}

/// 3 bits, the third (inverted) in `hmask`; 16 sub-blocks with a 6-bit scale: `d (sc - 32) (q - 4)`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q3_K {
    hmask: [u8; 32],
    qs: [u8; 64],
    scales: [u8; 12],
    d: Half,
}

impl Q3_K {
    /// The 16 scales: low 4 bits in the first 8 bytes, high 2 bits in the last 4.
    #[inline(always)]
    fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|i| {
            let low = if i < 8 { self.scales[i] & 15 } else { self.scales[i - 8] >> 4 };
            let high = self.scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl Block<256> for Q3_K {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        let scales = self.scales().map(|s| d * f32::from(s));
        let mut quants = two_bits(&self.qs);
        for (g, quants) in quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (q, mask) in quants.iter_mut().zip(&self.hmask) {
                *q |= (mask >> g & 1) << 2;
            }
        }
        scale::<16>(&quants.map(|q| (q as i8).wrapping_sub(4)), &scales, out);
    }
}

/// The 2-bit planes of [`Q2_K`] and [`Q3_K`]: in each half of 128 elements, group `j` of 32 lies in bits `2 j` of the
/// half's 32 bytes.
#[inline(always)]
fn two_bits(qs: &[u8; 64]) -> [u8; 256] {
    let mut quants = [0; 256];
    for (qs, quants) in qs.as_chunks::<32>().0.iter().zip(quants.as_chunks_mut::<128>().0) {
        for (l, q) in qs.iter().enumerate() {
            quants[l] = q & 3;
            quants[l + 32] = q >> 2 & 3;
            quants[l + 64] = q >> 4 & 3;
            quants[l + 96] = q >> 6;
        }
    }
    quants
}

/// 4 bits; 8 sub-blocks with a 6-bit scale and a 6-bit minimum each: `d sc q - dmin m`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q4_K {
    d: Half,
    dmin: Half,
    scales: [u8; 12],
    qs: [u8; 128],
}

impl Block<256> for Q4_K {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 256]) {
        let (scales, mins) = scales_and_mins(self.d, self.dmin, &self.scales);
        scale_and_shift::<32>(&nibbles(&self.qs), &scales, &mins, out);
    }
}

/// As [`Q4_K`] with a fifth bit: bit `s` of `qh[l]` for element `l` of sub-block `s`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q5_K {
    d: Half,
    dmin: Half,
    scales: [u8; 12],
    qh: [u8; 32],
    qs: [u8; 128],
}

impl Block<256> for Q5_K {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 256]) {
        let (scales, mins) = scales_and_mins(self.d, self.dmin, &self.scales);
        let mut quants = nibbles(&self.qs);
        for (s, quants) in quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (q, high) in quants.iter_mut().zip(&self.qh) {
                *q |= (high >> s & 1) << 4;
            }
        }
        scale_and_shift::<32>(&quants, &scales, &mins, out);
    }
}

/// The nibbles of [`Q4_K`] and [`Q5_K`]: the low ones of 32 bytes, then their high ones.
#[inline(always)]
fn nibbles(qs: &[u8; 128]) -> [u8; 256] {
    let mut quants = [0; 256];
    for (qs, quants) in qs.as_chunks::<32>().0.iter().zip(quants.as_chunks_mut::<64>().0) {
        for (l, q) in qs.iter().enumerate() {
            quants[l] = q & 15;
            quants[l + 32] = q >> 4;
        }
    }
    quants
}

/// The scales and minima of [`Q4_K`] and [`Q5_K`], 6 bits each packed into 12 bytes, times the block's own.
#[inline(always)]
fn scales_and_mins(d: Half, dmin: Half, packed: &[u8; 12]) -> ([f32; 8], [f32; 8]) {
    let (d, dmin) = (d.get(), dmin.get());
    let scale = |s: usize| match s {
        0..4 => packed[s] & 63,
        _ => packed[s + 4] & 15 | packed[s - 4] >> 6 << 4,
    };
    let min = |s: usize| match s {
        0..4 => packed[s + 4] & 63,
        _ => packed[s + 4] >> 4 | packed[s] >> 6 << 4,
    };
    (std::array::from_fn(|s| d * f32::from(scale(s))), std::array::from_fn(|s| dmin * f32::from(min(s))))
}

/// 6 bits, the low four in `ql`, the high two in `qh`; 16 sub-blocks with a signed byte as scale: `d sc (q - 32)`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q6_K {
    ql: [u8; 128],
    qh: [u8; 64],
    scales: [i8; 16],
    d: Half,
}

impl Block<256> for Q6_K {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        let scales = self.scales.map(|s| d * f32::from(s));
        let mut quants = [0; 256];
        let halves = self.ql.as_chunks::<64>().0.iter().zip(self.qh.as_chunks::<32>().0);
        for ((ql, qh), quants) in halves.zip(quants.as_chunks_mut::<128>().0) {
            for (l, high) in qh.iter().enumerate() {
                quants[l] = ql[l] & 15 | (high & 3) << 4;
                quants[l + 32] = ql[l + 32] & 15 | (high >> 2 & 3) << 4;
                quants[l + 64] = ql[l] >> 4 | (high >> 4 & 3) << 4;
                quants[l + 96] = ql[l + 32] >> 4 | (high >> 6) << 4;
            }
        }
        scale::<16>(&quants.map(|q| (q as i8).wrapping_sub(32)), &scales, out);
    }
}

/// `scale q`, with a scale for each sub-block of `W`.
#[inline(always)]
fn scale<const W: usize>(quants: &[i8; 256], scales: &[f32], out: &mut [f32; 256]) {
    let sub_blocks = quants.as_chunks::<W>().0.iter().zip(out.as_chunks_mut::<W>().0);
    for ((quants, out), scale) in sub_blocks.zip(scales) {
        for (out, &q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(q);
        }
    }
}

/// `scale q - min`, with a scale and a minimum for each sub-block of `W`.
#[inline(always)]
fn scale_and_shift<const W: usize>(quants: &[u8; 256], scales: &[f32], mins: &[f32], out: &mut [f32; 256]) {
    let sub_blocks = quants.as_chunks::<W>().0.iter().zip(out.as_chunks_mut::<W>().0);
    for (((quants, out), scale), min) in sub_blocks.zip(scales).zip(mins) {
        for (out, &q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(q) - min;
        }
    }
}
