//! K formats: 256 elements in sub-blocks of 16 or 32, whose own scales are coded against the block's.

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
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (scale, min) = (scales[i], mins[i]);
            for (out, q) in out.iter_mut().zip(two_bits(&self.qs, i)) {
                *out = scale * f32::from(q) - min;
            }
        }
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
        let masks = self.hmask.as_chunks::<16>().0;
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = scales[i];
            for ((out, q), mask) in out.iter_mut().zip(two_bits(&self.qs, i)).zip(&masks[i % 2]) {
                let third = mask >> (i / 2) & 1;
                *out = scale * f32::from((q | third << 2) as i8 - 4);
            }
        }
    }
}

/// The 16 elements of sub-block `i` in the 2-bit planes of [`Q2_K`] and [`Q3_K`]: in each half of 128 elements, group `j`
/// of 32 lies in bits `2 j` of the half's 32 bytes.
#[inline(always)]
fn two_bits(qs: &[u8; 64], i: usize) -> [u8; 16] {
    let (half, group, part) = (i / 8, i % 8 / 2, i % 2);
    qs.as_chunks::<16>().0[2 * half + part].map(|q| q >> (2 * group) & 3)
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
        let groups = self.qs.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0);
        for (g, (qs, out)) in groups.enumerate() {
            let (low, high) = out.split_at_mut(32);
            for (out, q) in low.iter_mut().zip(qs) {
                *out = scales[2 * g] * f32::from(q & 15) - mins[2 * g];
            }
            for (out, q) in high.iter_mut().zip(qs) {
                *out = scales[2 * g + 1] * f32::from(q >> 4) - mins[2 * g + 1];
            }
        }
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
        let groups = self.qs.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0);
        for (g, (qs, out)) in groups.enumerate() {
            let (low, high) = out.split_at_mut(32);
            for ((out, q), qh) in low.iter_mut().zip(qs).zip(&self.qh) {
                let q = q & 15 | (qh >> (2 * g) & 1) << 4;
                *out = scales[2 * g] * f32::from(q) - mins[2 * g];
            }
            for ((out, q), qh) in high.iter_mut().zip(qs).zip(&self.qh) {
                let q = q >> 4 | (qh >> (2 * g + 1) & 1) << 4;
                *out = scales[2 * g + 1] * f32::from(q) - mins[2 * g + 1];
            }
        }
    }
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
        let (ql, qh) = (self.ql.as_chunks::<16>().0, self.qh.as_chunks::<16>().0);
        // Sub-block i is part p of quarter g in half n; quarters 0 and 2 share the bytes of ql, as do 1 and 3.
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (n, g, p) = (i / 8, i % 8 / 2, i % 2);
            let scale = scales[i];
            let (low, high) = (&ql[4 * n + 2 * (g % 2) + p], &qh[2 * n + p]);
            for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
                let q = low >> (4 * (g / 2)) & 15 | (high >> (2 * g) & 3) << 4;
                *out = scale * f32::from(q as i8 - 32);
            }
        }
    }
}
