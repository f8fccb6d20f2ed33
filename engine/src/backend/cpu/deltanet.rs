//! Gated `DeltaNet` for the rows of a step: convolution, then the delta rule, serial for decode rows and chunked for prompts.

use std::ops::Range;

use rayon::prelude::*;

use super::chunked;
use super::matmul::matmul;
use super::ops::{l2_norm, rms_norm, sigmoid, silu, softplus};
use super::simd::delta_column;
use super::state::{LayerRows, LayerState};
use crate::model::{DeltaNet, ModelConfig};

/// The rows of one slot in a step.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) slot: usize,
    pub(super) rows: Range<usize>,
    /// Position of the first row.
    pub(super) position: u32,
    /// A prompt's rows are all taken; of decode rows only the first is certain.
    pub(super) prompt: bool,
}

/// Mixes `u` (normed rows x hidden). `states[i]` belongs to `spans[i]`: a prompt's state moves over all of its rows, a decode
/// span's over its first row only, and [`commit`] follows with what was accepted. Returns rows x hidden, and fills `kept`.
pub(super) fn mix(
    config: &ModelConfig,
    layer: &DeltaNet,
    u: &[f32],
    spans: &[Span],
    states: &mut [&mut LayerState],
    kept: &mut LayerRows,
) -> Vec<f32> {
    kept.inputs = matmul(&layer.qkv, u);
    let z = matmul(&layer.gate, u);
    let (alpha, beta) = (matmul(&layer.alpha, u), matmul(&layer.beta, u));
    kept.log_decay = alpha
        .chunks_exact(config.value_heads)
        .flat_map(|row| row.iter().zip(&layer.a).zip(&layer.dt_bias).map(|((x, a), dt)| a * softplus(x + dt)))
        .collect();
    kept.beta = beta.into_iter().map(sigmoid).collect();
    convolve(config, layer, spans, states, kept);

    let mut out = vec![0f32; z.len()];
    for (span, state) in spans.iter().zip(states.iter_mut()) {
        let rows = span.rows.start * config.inner()..span.rows.end * config.inner();
        if span.prompt {
            chunked::advance(config, span, state, kept, &mut out[rows]);
            keep_inputs(config, &kept.inputs, span.rows.clone(), state);
        } else {
            verify(config, span.rows.clone(), state, kept, &mut out[rows]);
        }
    }
    for (o, z) in out.chunks_exact_mut(config.state_dim).zip(z.chunks_exact(config.state_dim)) {
        rms_norm(o, &layer.norm, config.norm_eps);
        for (o, z) in o.iter_mut().zip(z) {
            *o *= silu(*z);
        }
    }
    matmul(&layer.output, &out)
}

/// Moves a decode span's state over its first `accepted` draft rows, exactly as verification did.
pub(super) fn commit(config: &ModelConfig, span: &Span, accepted: usize, state: &mut LayerState, kept: &LayerRows) {
    let first = span.rows.start;
    for row in first + 1..=first + accepted {
        let dim = config.state_dim;
        state.memory.par_chunks_exact_mut(dim * dim).enumerate().for_each(|(head, memory)| {
            let token = HeadToken::of(config, kept, row, head);
            for (column, v) in memory.chunks_exact_mut(dim).zip(token.v) {
                delta_column(column, token.k, token.q, *v, token.decay, token.beta);
            }
        });
    }
    keep_inputs(config, &kept.inputs, first..first + accepted + 1, state);
}

/// One token as one value head sees it.
struct HeadToken<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: f32,
    beta: f32,
}

impl<'a> HeadToken<'a> {
    fn of(config: &ModelConfig, kept: &'a LayerRows, row: usize, head: usize) -> Self {
        let dim = config.state_dim;
        // Value heads are stored tiled: head h reads key head h mod (number of key heads).
        let key = (row * config.key_heads + head % config.key_heads) * dim;
        let value = (row * config.value_heads + head) * dim;
        Self {
            q: &kept.q[key..key + dim],
            k: &kept.k[key..key + dim],
            v: &kept.v[value..value + dim],
            decay: kept.log_decay[row * config.value_heads + head].exp(),
            beta: kept.beta[row * config.value_heads + head],
        }
    }
}

/// The delta rule over decode rows, column by column of the state: the first row's result is kept, the drafts' is not.
fn verify(config: &ModelConfig, rows: Range<usize>, state: &mut LayerState, kept: &LayerRows, out: &mut [f32]) {
    let (dim, inner) = (config.state_dim, config.inner());
    let heads: Vec<Vec<f32>> = state
        .memory
        .par_chunks_exact_mut(dim * dim)
        .enumerate()
        .map(|(head, memory)| {
            let tokens: Vec<_> = rows.clone().map(|row| HeadToken::of(config, kept, row, head)).collect();
            let mut out = vec![0f32; tokens.len() * dim];
            let mut draft = vec![0f32; dim];
            for (j, column) in memory.chunks_exact_mut(dim).enumerate() {
                for (t, token) in tokens.iter().enumerate() {
                    if t == 1 {
                        draft.copy_from_slice(column);
                    }
                    let column = if t == 0 { &mut *column } else { &mut draft[..] };
                    out[t * dim + j] = delta_column(column, token.k, token.q, token.v[j], token.decay, token.beta);
                }
            }
            out
        })
        .collect();
    for (head, values) in heads.iter().enumerate() {
        for (t, values) in values.chunks_exact(dim).enumerate() {
            out[t * inner + head * dim..][..dim].copy_from_slice(values);
        }
    }
}

/// Causal depthwise convolution and SiLU over `kept.inputs`, split into normalised queries and keys, and values.
fn convolve(config: &ModelConfig, layer: &DeltaNet, spans: &[Span], states: &[&mut LayerState], kept: &mut LayerRows) {
    let (channels, taps, dim) = (config.conv_channels(), config.conv_taps, config.state_dim);
    let keys = config.key_heads * dim;
    let rows = kept.inputs.len() / channels;
    let history = taps - 1;
    (kept.q, kept.k, kept.v) = (vec![0.0; rows * keys], vec![0.0; rows * keys], vec![0.0; rows * config.inner()]);
    for (span, state) in spans.iter().zip(states) {
        let window: Vec<f32> =
            [&state.inputs[..], &kept.inputs[span.rows.start * channels..span.rows.end * channels]].concat();
        let (q, k, v) = (&mut kept.q, &mut kept.k, &mut kept.v);
        let range = |width: usize| span.rows.start * width..span.rows.end * width;
        q[range(keys)]
            .par_chunks_exact_mut(keys)
            .zip(k[range(keys)].par_chunks_exact_mut(keys))
            .zip(v[range(config.inner())].par_chunks_exact_mut(config.inner()))
            .enumerate()
            .for_each(|(t, ((q, k), v))| {
                let mut y = vec![0f32; channels];
                for j in 0..taps {
                    let x = &window[(t + j) * channels..(t + j + 1) * channels];
                    for (ch, y) in y.iter_mut().enumerate() {
                        *y += layer.conv[ch * taps + j] * x[ch];
                    }
                }
                for y in &mut y {
                    *y = silu(*y);
                }
                q.copy_from_slice(&y[..keys]);
                k.copy_from_slice(&y[keys..2 * keys]);
                v.copy_from_slice(&y[2 * keys..]);
                for head in q.chunks_exact_mut(dim) {
                    l2_norm(head, 1.0 / (dim as f32).sqrt());
                }
                for head in k.chunks_exact_mut(dim) {
                    l2_norm(head, 1.0);
                }
            });
        debug_assert_eq!(window.len(), (history + span.rows.len()) * channels);
    }
}

/// Makes the last inputs before the end of `rows` the convolution's history.
fn keep_inputs(config: &ModelConfig, inputs: &[f32], rows: Range<usize>, state: &mut LayerState) {
    let channels = config.conv_channels();
    let history = config.conv_taps - 1;
    let new = rows.len().min(history);
    state.inputs.copy_within(new * channels.., 0);
    let from = (rows.end - new) * channels;
    state.inputs[(history - new) * channels..].copy_from_slice(&inputs[from..rows.end * channels]);
}
