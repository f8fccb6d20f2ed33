//! Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL: blocks of 32 with halves as scales.

use openjet_engine::quant::TensorType;

use super::TILE_ROWS;
use super::planes::{self, ZERO, put_word};

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

pub(super) fn tile(ty: TensorType, rows: &[&[u8]; TILE_ROWS], tile: &mut [u8]) {
    let minima = matches!(ty, TensorType::Q4_1 | TensorType::Q5_1);
    let mut q = ZERO;
    let mut d = [[0u32; 8]; TILE_ROWS];
    let mut m = [[0u32; 8]; TILE_ROWS];
    for (r, row) in rows.iter().enumerate() {
        for (b, block) in row.chunks_exact(ty.block_bytes()).enumerate() {
            d[r][b] = half(block, 0);
            if minima {
                m[r][b] = half(block, 2);
            }
            integers(ty, &block[if minima { 4 } else { 2 }..], &mut q[r][b * 32..b * 32 + 32]);
        }
    }
    let scales = match ty {
        TensorType::Q8_0 => {
            planes::bits8(&q, tile);
            4096
        }
        TensorType::Q5_0 | TensorType::Q5_1 => {
            planes::bits4(&q, tile);
            tile[2048..2560].fill(0);
            planes::bits1(&q, 4, &mut tile[2048..2560]);
            2560
        }
        _ => {
            planes::bits4(&q, tile);
            2048
        }
    };
    for lane in 0..32 {
        let (g, j) = (lane / 4, lane % 4);
        let word = |of: &[[u32; 8]; TILE_ROWS], r: usize| of[r][j] | of[r][j + 4] << 16;
        put_word(tile, scales + lane * 4, word(&d, g));
        put_word(tile, scales + 128 + lane * 4, word(&d, g + 8));
        if minima {
            put_word(tile, scales + 256 + lane * 4, word(&m, g));
            put_word(tile, scales + 384 + lane * 4, word(&m, g + 8));
        }
    }
}

/// The integers of a block, made unsigned; `coded` is what follows its scales.
fn integers(ty: TensorType, coded: &[u8], out: &mut [u8]) {
    if ty == TensorType::Q8_0 {
        for (q, &byte) in out.iter_mut().zip(coded) {
            *q = byte ^ 0x80;
        }
        return;
    }
    let five = matches!(ty, TensorType::Q5_0 | TensorType::Q5_1);
    let (high, nibbles) = coded.split_at(if five { 4 } else { 0 });
    for (j, &byte) in nibbles.iter().enumerate() {
        out[j] = byte & 15;
        out[j + 16] = byte >> 4;
    }
    if five {
        for (j, q) in out.iter_mut().enumerate() {
            *q |= (high[j / 8] >> (j % 8) & 1) << 4;
        }
    }
}
