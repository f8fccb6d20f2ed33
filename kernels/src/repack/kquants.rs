//! Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS: blocks of 256, so a row's part of a tile is one block.

use openjet_engine::quant::TensorType;

use super::TILE_ROWS;
use super::planes::{self, Integers, ZERO, put_word};

/// Scales of one row's block, with what is needed of its head.
#[derive(Clone, Copy, Default)]
struct Scales {
    scale: [u8; 16],
    minimum: [u8; 16],
    /// `d` in the low, `dmin` in the high half.
    d: u32,
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

pub(super) fn tile(ty: TensorType, rows: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
    let mut q = ZERO;
    let mut scales = [Scales::default(); TILE_ROWS];
    for (r, block) in rows.iter().enumerate().filter(|(_, block)| !block.is_empty()) {
        scales[r] = match ty {
            TensorType::Q2_K => q2_k(block, &mut q[r]),
            TensorType::Q3_K => q3_k(block, &mut q[r]),
            TensorType::Q6_K => q6_k(block, &mut q[r]),
            TensorType::IQ4_XS => iq4_xs(block, &mut q[r]),
            _ => q45_k(block, ty == TensorType::Q5_K, &mut q[r]),
        };
    }
    tile.fill(0);
    write_integers(ty, &q, tile);
    for lane in 0..32 {
        let (g, j) = (lane / 4, lane % 4);
        write_scales(ty, [&scales[g], &scales[g + 8]], lane, j, tile);
    }
}

fn write_integers(ty: TensorType, q: &Integers, tile: &mut [u8]) {
    match ty {
        TensorType::Q2_K => planes::bits2(q, 0, tile),
        TensorType::Q3_K => {
            planes::bits2(q, 0, tile);
            planes::bits1(q, 2, &mut tile[1024..]);
        }
        TensorType::Q5_K => {
            planes::bits4(q, tile);
            planes::bits1(q, 4, &mut tile[2048..]);
        }
        TensorType::Q6_K => {
            planes::bits4(q, tile);
            planes::bits2(q, 4, &mut tile[2048..]);
        }
        _ => planes::bits4(q, tile),
    }
}

/// What one lane holds of the scales of its two rows.
fn write_scales(ty: TensorType, rows: [&Scales; 2], lane: usize, j: usize, tile: &mut [u8]) {
    let of16 = [2 * j, 2 * j + 1, 2 * j + 8, 2 * j + 9];
    let bytes16 = |s: &Scales| u32::from_le_bytes(of16.map(|i| s.scale[i]));
    let g = lane / 4;
    match ty {
        TensorType::Q2_K => {
            for (i, s) in rows.into_iter().enumerate() {
                put_word(tile, 1024 + i * 128 + lane * 4, bytes16(s));
                put_word(tile, 1280 + i * 32 + g * 4, s.d);
            }
        }
        TensorType::Q3_K => {
            let [a, b] = rows.map(|s| of16.iter().rev().fold(0, |word, &i| word << 6 | u32::from(s.scale[i])));
            put_word(tile, 1536 + lane * 4, a & 0xffff | b << 16);
            tile[1664 + lane * 2] = (a >> 16) as u8;
            tile[1664 + lane * 2 + 1] = (b >> 16) as u8;
            put_word(tile, 1728 + g * 4, rows[0].d | rows[1].d << 16);
        }
        TensorType::Q6_K => {
            for (i, s) in rows.into_iter().enumerate() {
                put_word(tile, 3072 + i * 128 + lane * 4, bytes16(s) ^ 0x8080_8080);
            }
            put_word(tile, 3328 + g * 4, rows[0].d | rows[1].d << 16);
        }
        TensorType::IQ4_XS => {
            let [a, b] =
                rows.map(|s| u32::from(s.scale[j]) | u32::from(s.scale[j + 4]) << 6 | (s.d >> (4 * j) & 15) << 12);
            put_word(tile, 2048 + lane * 4, a | b << 16);
        }
        _ => {
            let first = if ty == TensorType::Q5_K { 2560 } else { 2048 };
            for (i, s) in rows.into_iter().enumerate() {
                let part = |k: usize| u32::from(s.scale[k]) | u32::from(s.minimum[k]) << 6;
                let d = s.d >> (8 * j);
                let word = part(j) | (d & 15) << 12 | part(j + 4) << 16 | (d >> 4 & 15) << 28;
                put_word(tile, first + i * 128 + lane * 4, word);
            }
        }
    }
}

/// Scale and minimum of sub-block `s` of Q4_K and Q5_K, packed in 12 bytes.
fn scale_minimum(packed: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (packed[s] & 63, packed[s + 4] & 63)
    } else {
        (packed[s + 4] & 15 | packed[s - 4] >> 6 << 4, packed[s + 4] >> 4 | packed[s] >> 6 << 4)
    }
}

fn q45_k(block: &[u8], five: bool, q: &mut [u8; 256]) -> Scales {
    let mut scales = Scales { d: half(block, 0) | half(block, 2) << 16, ..Scales::default() };
    for s in 0..8 {
        (scales.scale[s], scales.minimum[s]) = scale_minimum(&block[4..16], s);
    }
    let (high, nibbles) = block[16..].split_at(if five { 32 } else { 0 });
    for (q, bytes) in q.as_chunks_mut::<64>().0.iter_mut().zip(nibbles.as_chunks::<32>().0) {
        for (i, byte) in bytes.iter().enumerate() {
            q[i] = byte & 15;
            q[i + 32] = byte >> 4;
        }
    }
    if five {
        for (part, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            q.iter_mut().zip(high).for_each(|(q, high)| *q |= (high >> part & 1) << 4);
        }
    }
    scales
}

fn q6_k(block: &[u8], q: &mut [u8; 256]) -> Scales {
    let (low, high) = (&block[..128], &block[128..192]);
    for (part, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (n, group) = (part / 4, part % 4);
        let (low, high) = (&low[64 * n + group % 2 * 32..], &high[32 * n..]);
        for ((q, low), high) in q.iter_mut().zip(low).zip(high) {
            *q = low >> (group / 2 * 4) & 15 | (high >> (2 * group) & 3) << 4;
        }
    }
    let mut scales = Scales { d: half(block, 208), ..Scales::default() };
    scales.scale.copy_from_slice(&block[192..208]);
    scales
}

fn q3_k(block: &[u8], q: &mut [u8; 256]) -> Scales {
    let (mask, low, packed) = (&block[..32], &block[32..96], &block[96..108]);
    for (i, q) in q.iter_mut().enumerate() {
        let (n, group, l) = (i / 128, i % 128 / 32, i % 32);
        *q = low[32 * n + l] >> (2 * group) & 3 | (mask[l] >> (4 * n + group) & 1) << 2;
    }
    let mut scales = Scales { d: half(block, 108), ..Scales::default() };
    for (i, scale) in scales.scale.iter_mut().enumerate() {
        let nibble = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
        *scale = nibble | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
    }
    scales
}

fn q2_k(block: &[u8], q: &mut [u8; 256]) -> Scales {
    for (i, q) in q.iter_mut().enumerate() {
        *q = block[16 + i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
    }
    let mut scales = Scales { d: half(block, 80) | half(block, 82) << 16, ..Scales::default() };
    scales.scale.copy_from_slice(&block[..16]);
    scales
}

fn iq4_xs(block: &[u8], q: &mut [u8; 256]) -> Scales {
    let high = half(block, 2);
    let mut scales = Scales { d: half(block, 0), ..Scales::default() };
    for b in 0..8 {
        scales.scale[b] = block[4 + b / 2] >> (4 * (b % 2)) & 15 | ((high >> (2 * b) & 3) as u8) << 4;
        for l in 0..16 {
            let byte = block[8 + 16 * b + l];
            q[32 * b + l] = byte & 15;
            q[32 * b + 16 + l] = byte >> 4;
        }
    }
    scales
}
