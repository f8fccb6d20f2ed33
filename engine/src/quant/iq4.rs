//! 4-bit formats whose nibbles name values of a fixed, uneven table.

#![allow(non_camel_case_types, reason = "these are the formats' own names")]

use super::{Block, Half};
use bytemuck::{Pod, Zeroable};

/// What a nibble stands for.
const VALUES: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// 32 elements: `d T[q]`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct IQ4_NL {
    d: Half,
    qs: [u8; 16],
}

impl Block<32> for IQ4_NL {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 32]) {
        nibbles(self.d.get(), &self.qs, out);
    }
}

/// 256 elements in 8 sub-blocks with a 6-bit scale each: `d (sc - 32) T[q]`.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct IQ4_XS {
    d: Half,
    scales_high: [u8; 2],
    scales_low: [u8; 4],
    qs: [u8; 128],
}

impl Block<256> for IQ4_XS {
    #[inline(always)]
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        let high = u16::from_le_bytes(self.scales_high);
        let groups = self.qs.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<32>().0);
        for (b, (qs, out)) in groups.enumerate() {
            let scale = self.scales_low[b / 2] >> (4 * (b % 2)) & 15 | ((high >> (2 * b) & 3) as u8) << 4;
            nibbles(d * f32::from(scale as i8 - 32), qs, out);
        }
    }
}

/// Low nibbles are the first 16 elements, high nibbles the others.
#[inline(always)]
fn nibbles(scale: f32, qs: &[u8; 16], out: &mut [f32; 32]) {
    for (j, &q) in qs.iter().enumerate() {
        out[j] = scale * VALUES[usize::from(q & 15)];
        out[j + 16] = scale * VALUES[usize::from(q >> 4)];
    }
}
