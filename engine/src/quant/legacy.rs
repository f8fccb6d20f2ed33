//! Formats of 32 elements with one scale, and one minimum in the `_1` formats.

#![allow(non_camel_case_types, reason = "these are the formats' own names")]

use super::{Block, Half};
use bytemuck::{Pod, Zeroable};

/// 4 bits: `(q - 8) d`. Low nibbles are the first 16 elements, high nibbles the others, here and in all of these formats.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q4_0 {
    d: Half,
    qs: [u8; 16],
}

impl Block<32> for Q4_0 {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 32]) {
        let d = self.d.get();
        for (j, &q) in self.qs.iter().enumerate() {
            out[j] = f32::from((q & 15) as i8 - 8) * d;
            out[j + 16] = f32::from((q >> 4) as i8 - 8) * d;
        }
    }
}

/// 4 bits: `q d + m`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q4_1 {
    d: Half,
    m: Half,
    qs: [u8; 16],
}

impl Block<32> for Q4_1 {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.get(), self.m.get());
        for (j, &q) in self.qs.iter().enumerate() {
            out[j] = f32::from(q & 15) * d + m;
            out[j + 16] = f32::from(q >> 4) * d + m;
        }
    }
}

/// 5 bits, the fifth in `qh`: `(q - 16) d`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q5_0 {
    d: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

impl Block<32> for Q5_0 {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 32]) {
        let d = self.d.get();
        let quants = five_bits(self.qh, &self.qs);
        for (out, q) in out.iter_mut().zip(quants) {
            *out = f32::from((q as i8).wrapping_sub(16)) * d;
        }
    }
}

/// 5 bits, the fifth in `qh`: `q d + m`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q5_1 {
    d: Half,
    m: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

impl Block<32> for Q5_1 {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.get(), self.m.get());
        let quants = five_bits(self.qh, &self.qs);
        for (out, q) in out.iter_mut().zip(quants) {
            *out = f32::from(q) * d + m;
        }
    }
}

/// Nibbles with bit `j` of `qh` as the fifth bit of element `j`.
#[inline(always)]
fn five_bits(qh: [u8; 4], qs: &[u8; 16]) -> [u8; 32] {
    let qh = u32::from_le_bytes(qh);
    let mut quants = [0; 32];
    for (j, &q) in qs.iter().enumerate() {
        quants[j] = q & 15 | ((qh >> j & 1) as u8) << 4;
        quants[j + 16] = q >> 4 | ((qh >> (j + 16) & 1) as u8) << 4;
    }
    quants
}

/// Signed bytes: `q d`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Q8_0 {
    d: Half,
    qs: [i8; 32],
}

impl Block<32> for Q8_0 {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 32]) {
        let d = self.d.get();
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = f32::from(q) * d;
        }
    }
}
