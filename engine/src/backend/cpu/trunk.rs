//! The trunk: pre-norm blocks over all rows of a step.

use super::attention::{self, Place};
use super::deltanet::{self, Span};
use super::kv::KvPool;
use super::matmul::matmul;
use super::ops::{add, rms_norm_rows, silu};
use super::state::{LayerRows, Slot};
use super::{Probe, Probed};
use crate::model::{Block, Matrix, Mixer, Model, ModelConfig};
use crate::quant::dequantize_row;

/// Rows of the embedding: tokens x hidden.
pub(super) fn embed(embedding: &Matrix, tokens: &[u32]) -> Vec<f32> {
    let mut x = vec![0f32; tokens.len() * embedding.cols];
    for (x, &token) in x.chunks_exact_mut(embedding.cols).zip(tokens) {
        dequantize_row(embedding.ty, embedding.row(token as usize), x);
    }
    x
}

/// `x += down(silu(gate v) * up v)` with `v` the normed `x`.
pub(super) fn feed_forward(config: &ModelConfig, block: &Block, x: &mut [f32]) {
    let v = rms_norm_rows(x, &block.ffn_norm, config.norm_eps);
    let mut gate = matmul(&block.ffn_gate, &v);
    let up = matmul(&block.ffn_up, &v);
    for (g, u) in gate.iter_mut().zip(up) {
        *g = silu(*g) * u;
    }
    add(x, &matmul(&block.ffn_down, &gate));
}

/// Runs all blocks. Returns the hidden states after the output norm (rows x hidden), which head and draft head start from,
/// and what the `DeltaNet` layers keep for [`deltanet::commit`].
pub(super) fn run(
    model: &Model,
    tokens: &[u32],
    places: &[Place<'_>],
    spans: &[Span],
    slots: &mut [Slot],
    pool: &mut KvPool,
    probe: Probe<'_>,
) -> (Vec<f32>, Vec<LayerRows>) {
    let config = &model.config;
    let mut x = embed(&model.embedding, tokens);
    probe(Probed::Embedding, &x);
    let (mut recurrent, mut attentive) = (0, 0);
    let mut kept = Vec::new();
    for (i, block) in model.blocks.iter().enumerate() {
        let u = rms_norm_rows(&x, &block.mixer_norm, config.norm_eps);
        let mixed = match &block.mixer {
            Mixer::Attention(layer) => {
                attentive += 1;
                attention::mix(config, layer, &u, places, pool, attentive - 1, 0)
            }
            Mixer::DeltaNet(layer) => {
                recurrent += 1;
                let mut states = layer_states(slots, spans, recurrent - 1);
                let mut rows = LayerRows::default();
                let mixed = deltanet::mix(config, layer, &u, spans, &mut states, &mut rows);
                kept.push(rows);
                mixed
            }
        };
        add(&mut x, &mixed);
        feed_forward(config, block, &mut x);
        probe(Probed::Block(i), &x);
    }
    let hidden = rms_norm_rows(&x, &model.output_norm, config.norm_eps);
    probe(Probed::Hidden, &hidden);
    (hidden, kept)
}

/// The states of one layer for each span, in the spans' order. No two spans have the same slot.
fn layer_states<'a>(slots: &'a mut [Slot], spans: &[Span], layer: usize) -> Vec<&'a mut super::state::LayerState> {
    let mut by_slot: Vec<_> = slots.iter_mut().map(|s| s.layers.get_mut(layer)).collect();
    spans.iter().filter_map(|span| by_slot[span.slot].take()).collect()
}
