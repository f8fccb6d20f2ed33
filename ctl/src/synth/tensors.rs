//! The tensors of a synthetic model: names, shapes, types, and what fills them.

use openjet_engine::quant::{TensorType, dequantize_row};

use super::blocks::{Random, quantize_q6_k, random_row, unit_row_q4_k};
use super::chain::Chain;
use super::shape::{HEAD_DIM, STATE_DIM, Shape};

/// A tensor to be written.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) ty: TensorType,
    /// Inputs, then outputs; a vector has one.
    pub(super) dims: Vec<usize>,
    fill: Fill,
    seed: u64,
    index: u64,
}

/// What a tensor holds.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// Random bits with about this standard deviation.
    Bits(f32),
    Ones,
    Normal(f64),
    /// `-exp(A_log)` of decays.
    Decay,
    DecayBias,
    /// The embedding of the token that each token follows.
    Head,
    /// As the draft head takes it to be.
    DraftHead,
    /// Passes the first half of its inputs on.
    Join,
}

/// Spread of the embedding's numbers.
const EMBEDDING: f32 = 1.0;
/// Spread of what blocks add to the residual stream, for each input: too little to change the greedy choice.
const BRANCH: f32 = 6e-4;
/// A head's row times its own embedding is about this.
const LOGIT: f32 = 14.0;

impl Tensor {
    pub(super) fn columns(&self) -> usize {
        self.dims[0]
    }

    pub(super) fn rows(&self) -> usize {
        self.dims.get(1).copied().unwrap_or(1)
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.columns())
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows() * self.row_bytes()
    }

    /// Appends the bytes of rows `rows`.
    pub(super) fn write_rows(&self, rows: std::ops::Range<usize>, chain: &Chain, out: &mut Vec<u8>) {
        for row in rows {
            let mut random = Random::new(self.seed, self.index, row as u64);
            let mut numbers = |f: &mut dyn FnMut(&mut Random) -> f64| {
                for _ in 0..self.columns() {
                    out.extend((f(&mut random) as f32).to_le_bytes());
                }
            };
            match self.fill {
                Fill::Ones => numbers(&mut |_| 1.0),
                Fill::Normal(deviation) => numbers(&mut |r| deviation * r.normal()),
                Fill::Decay => numbers(&mut |r| -(2.7 * r.unit()).exp()),
                Fill::DecayBias => numbers(&mut |r| 3.0 * r.unit() - 4.0),
                Fill::Bits(deviation) => random_row(self.ty, self.columns(), deviation, &mut random, out),
                Fill::Head => self.head_row(chain.previous[row], out),
                Fill::DraftHead => self.head_row(chain.drafted[row], out),
                Fill::Join => unit_row_q4_k(self.columns(), row, out),
            }
        }
    }

    fn head_row(&self, token: u32, out: &mut Vec<u8>) {
        let mut bits = Vec::new();
        let mut random = Random::new(self.seed, EMBEDDING_INDEX, u64::from(token));
        random_row(TensorType::Q4_K, self.columns(), EMBEDDING, &mut random, &mut bits);
        let mut row = vec![0f32; self.columns()];
        dequantize_row(TensorType::Q4_K, &bits, &mut row);
        for x in &mut row {
            *x *= LOGIT / self.columns() as f32;
        }
        quantize_q6_k(&row, out);
    }
}

/// The embedding is the first tensor.
const EMBEDDING_INDEX: u64 = 0;

/// All tensors of a model, in the order of the file.
pub(super) fn all(shape: &Shape, seed: u64) -> Vec<Tensor> {
    let mut list = List { tensors: Vec::new(), seed };
    list.matrix("token_embd.weight", shape.hidden, shape.vocab, TensorType::Q4_K, Fill::Bits(EMBEDDING));
    if !shape.tied {
        list.matrix("output.weight", shape.hidden, shape.vocab, TensorType::Q6_K, Fill::Head);
    }
    list.vector("output_norm.weight", shape.hidden, Fill::Ones);
    for block in 0..=shape.blocks {
        list.block(shape, block);
    }
    let name = |name: &str| format!("blk.{}.nextn.{name}.weight", shape.blocks);
    list.matrix(&name("eh_proj"), 2 * shape.hidden, shape.hidden, TensorType::Q4_K, Fill::Join);
    for norm in ["enorm", "hnorm", "shared_head_norm"] {
        list.vector(&name(norm), shape.hidden, Fill::Ones);
    }
    if shape.own_draft_head {
        list.matrix(&name("shared_head_head"), shape.hidden, shape.vocab, TensorType::Q6_K, Fill::DraftHead);
    }
    list.tensors
}

struct List {
    tensors: Vec<Tensor>,
    seed: u64,
}

impl List {
    fn push(&mut self, name: &str, ty: TensorType, dims: Vec<usize>, fill: Fill) {
        let index = self.tensors.len() as u64;
        self.tensors.push(Tensor { name: name.to_owned(), ty, dims, fill, seed: self.seed, index });
    }

    fn matrix(&mut self, name: &str, inputs: usize, outputs: usize, ty: TensorType, fill: Fill) {
        self.push(name, ty, vec![inputs, outputs], fill);
    }

    fn vector(&mut self, name: &str, len: usize, fill: Fill) {
        self.push(name, TensorType::F32, vec![len], fill);
    }

    fn block(&mut self, shape: &Shape, block: usize) {
        let name = |name: &str| format!("blk.{block}.{name}");
        let hidden = shape.hidden;
        let inward = Fill::Bits((1.0 / hidden as f32).sqrt());
        let sensitive = if shape.six_bits(block) { TensorType::Q6_K } else { TensorType::Q4_K };
        self.vector(&name("attn_norm.weight"), hidden, Fill::Ones);
        if shape.is_attention(block) {
            let (queries, keys) = (shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM);
            self.matrix(&name("attn_q.weight"), hidden, 2 * queries, TensorType::Q4_K, inward);
            self.matrix(&name("attn_k.weight"), hidden, keys, TensorType::Q4_K, inward);
            self.matrix(&name("attn_v.weight"), hidden, keys, sensitive, inward);
            self.matrix(&name("attn_output.weight"), queries, hidden, TensorType::Q4_K, Fill::Bits(BRANCH));
            self.vector(&name("attn_q_norm.weight"), HEAD_DIM, Fill::Ones);
            self.vector(&name("attn_k_norm.weight"), HEAD_DIM, Fill::Ones);
        } else {
            self.matrix(&name("attn_qkv.weight"), hidden, shape.channels(), sensitive, inward);
            self.matrix(&name("attn_gate.weight"), hidden, shape.inner(), TensorType::Q4_K, inward);
            self.matrix(&name("ssm_beta.weight"), hidden, shape.value_heads, TensorType::Q4_K, inward);
            self.matrix(&name("ssm_alpha.weight"), hidden, shape.value_heads, TensorType::Q4_K, inward);
            self.matrix(&name("ssm_conv1d.weight"), 4, shape.channels(), TensorType::F32, Fill::Normal(0.3));
            self.vector(&name("ssm_a"), shape.value_heads, Fill::Decay);
            self.vector(&name("ssm_dt.bias"), shape.value_heads, Fill::DecayBias);
            self.vector(&name("ssm_norm.weight"), STATE_DIM, Fill::Ones);
            self.matrix(&name("ssm_out.weight"), shape.inner(), hidden, TensorType::Q4_K, Fill::Bits(BRANCH));
        }
        self.vector(&name("post_attention_norm.weight"), hidden, Fill::Ones);
        self.matrix(&name("ffn_gate.weight"), hidden, shape.ffn, TensorType::Q4_K, inward);
        self.matrix(&name("ffn_up.weight"), hidden, shape.ffn, TensorType::Q4_K, inward);
        self.matrix(&name("ffn_down.weight"), shape.ffn, hidden, sensitive, Fill::Bits(BRANCH));
    }
}
