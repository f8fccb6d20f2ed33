//! The key-value pool: pages of [`PAGE_TOKENS`] cells for every attention layer.

use half::f16;

use super::ops::hadamard;
use crate::backend::KvType;
use crate::quant::{TensorType, dequantize_row, quantize_q4_0, quantize_q8_0};
use crate::step::{PAGE_TOKENS, PageId};

/// Elements in a block of the quantised cell types.
const BLOCK: usize = 32;

/// Cells of all layers, by layer, page, head and token.
#[derive(Debug)]
pub(super) struct KvPool {
    ty: KvType,
    heads: usize,
    head_dim: usize,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    keys: Vec<u8>,
    values: Vec<u8>,
}

/// Which of the two vectors of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Key,
    Value,
}

impl KvPool {
    pub(super) fn new(ty: KvType, layers: usize, pages: usize, heads: usize, head_dim: usize) -> Self {
        let bytes = pages * heads * PAGE_TOKENS * cell_bytes(ty, head_dim);
        let layers = (0..layers).map(|_| Layer { keys: vec![0; bytes], values: vec![0; bytes] }).collect();
        Self { ty, heads, head_dim, layers }
    }

    /// Whether keys, queries and values are rotated before they are stored or used.
    pub(super) fn rotates(&self) -> bool {
        self.ty == KvType::Q4_0
    }

    fn head_bytes(&self) -> usize {
        PAGE_TOKENS * cell_bytes(self.ty, self.head_dim)
    }

    fn page_bytes(&self) -> usize {
        self.heads * self.head_bytes()
    }

    /// Stores one head's key or value at a token of a page; rotates it first where the type asks for it.
    pub(super) fn write(&mut self, layer: usize, half: Half, page: PageId, head: usize, token: usize, x: &mut [f32]) {
        if self.rotates() {
            hadamard(x);
        }
        let cell = cell_bytes(self.ty, self.head_dim);
        let start = page as usize * self.page_bytes() + head * self.head_bytes() + token * cell;
        let layer = &mut self.layers[layer];
        let bytes = match half {
            Half::Key => &mut layer.keys,
            Half::Value => &mut layer.values,
        };
        encode(self.ty, x, &mut bytes[start..start + cell]);
    }

    /// Decodes one head's keys or values of a page's first `tokens` cells: `tokens` x `head_dim`.
    pub(super) fn read(&self, layer: usize, half: Half, page: PageId, head: usize, tokens: usize, out: &mut [f32]) {
        let cell = cell_bytes(self.ty, self.head_dim);
        let start = page as usize * self.page_bytes() + head * self.head_bytes();
        let layer = &self.layers[layer];
        let bytes = match half {
            Half::Key => &layer.keys,
            Half::Value => &layer.values,
        };
        let ty = match self.ty {
            KvType::F32 => TensorType::F32,
            KvType::F16 => TensorType::F16,
            KvType::Q8_0 => TensorType::Q8_0,
            KvType::Q4_0 => TensorType::Q4_0,
        };
        dequantize_row(ty, &bytes[start..start + tokens * cell], &mut out[..tokens * self.head_dim]);
    }

    /// All layers' bytes of a page.
    pub(super) fn save(&self, page: PageId) -> Vec<u8> {
        let n = self.page_bytes();
        let range = page as usize * n..(page as usize + 1) * n;
        self.layers.iter().flat_map(|l| [&l.keys[range.clone()], &l.values[range.clone()]].concat()).collect()
    }

    /// Bytes of a saved page.
    pub(super) fn saved_bytes(&self) -> usize {
        2 * self.layers.len() * self.page_bytes()
    }

    /// Puts saved bytes into a page; they must be [`Self::saved_bytes`] long.
    pub(super) fn load(&mut self, page: PageId, bytes: &[u8]) {
        let n = self.page_bytes();
        let range = page as usize * n..(page as usize + 1) * n;
        for (layer, bytes) in self.layers.iter_mut().zip(bytes.chunks_exact(2 * n)) {
            layer.keys[range.clone()].copy_from_slice(&bytes[..n]);
            layer.values[range.clone()].copy_from_slice(&bytes[n..]);
        }
    }
}

/// Bytes of one head's key or value.
fn cell_bytes(ty: KvType, head_dim: usize) -> usize {
    match ty {
        KvType::F32 => 4 * head_dim,
        KvType::F16 => 2 * head_dim,
        KvType::Q8_0 => 34 * head_dim / BLOCK,
        KvType::Q4_0 => 18 * head_dim / BLOCK,
    }
}

fn encode(ty: KvType, x: &[f32], out: &mut [u8]) {
    let (blocks, _) = x.as_chunks::<BLOCK>();
    match ty {
        KvType::F32 => out.copy_from_slice(bytemuck::cast_slice(x)),
        KvType::F16 => {
            for (out, &x) in out.chunks_exact_mut(2).zip(x) {
                out.copy_from_slice(&f16::from_f32(x).to_le_bytes());
            }
        }
        KvType::Q8_0 => {
            for (out, block) in out.chunks_exact_mut(34).zip(blocks) {
                out.copy_from_slice(&quantize_q8_0(block));
            }
        }
        KvType::Q4_0 => {
            for (out, block) in out.chunks_exact_mut(18).zip(blocks) {
                out.copy_from_slice(&quantize_q4_0(block));
            }
        }
    }
}
