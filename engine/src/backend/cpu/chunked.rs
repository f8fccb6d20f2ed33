//! The delta rule over a prompt, [`CHUNK`] tokens at a time.
//!
//! With `c_i` the running sum of log decays inside a chunk, `A_ij = beta_i (k_i k_j) e^(c_i - c_j)` for j < i:
//! `(I + A) U = diag(beta) V`, `(I + A) W = diag(beta e^c) K`, `D = U - W S0`,
//! `O_i = e^(c_i) q_i S0 + sum_(j <= i) (q_i k_j) e^(c_i - c_j) D_j`, `S1 = e^(c_last) S0 + sum_j e^(c_last - c_j) k_j D_j`.
//! Every exponent is at most 0. Chunks end at absolute multiples of [`CHUNK`], so how a prompt is cut into steps at such
//! multiples changes no bit.

use rayon::prelude::*;

use super::deltanet::Span;
use super::simd::{axpy, dot, scale};
use super::state::{LayerRows, LayerState};
use crate::model::ModelConfig;
use crate::step::PAGE_TOKENS;

/// Tokens of a chunk.
const CHUNK: usize = PAGE_TOKENS;

/// Moves `state` over all rows of `span` and writes their outputs (rows of the span x inner width).
pub(super) fn advance(config: &ModelConfig, span: &Span, state: &mut LayerState, kept: &LayerRows, out: &mut [f32]) {
    let (dim, inner) = (config.state_dim, config.inner());
    let outputs: Vec<Vec<f32>> = state
        .memory
        .par_chunks_exact_mut(dim * dim)
        .enumerate()
        .map(|(head, memory)| {
            let mut out = Vec::with_capacity(span.rows.len() * dim);
            let mut row = span.rows.start;
            while row < span.rows.end {
                let position = span.position as usize + row - span.rows.start;
                let len = (CHUNK - position % CHUNK).min(span.rows.end - row);
                chunk(config, kept, head, row, len, memory, &mut out);
                row += len;
            }
            out
        })
        .collect();
    for (head, values) in outputs.iter().enumerate() {
        for (t, values) in values.chunks_exact(dim).enumerate() {
            out[t * inner + head * dim..][..dim].copy_from_slice(values);
        }
    }
}

/// One chunk of one value head; `memory` is value dimensions x key dimensions.
fn chunk(
    config: &ModelConfig,
    kept: &LayerRows,
    head: usize,
    first: usize,
    len: usize,
    memory: &mut [f32],
    out: &mut Vec<f32>,
) {
    let dim = config.state_dim;
    let key = |i: usize| ((first + i) * config.key_heads + head % config.key_heads) * dim;
    let k = |i: usize| &kept.k[key(i)..key(i) + dim];
    let q = |i: usize| &kept.q[key(i)..key(i) + dim];
    let v = |i: usize| &kept.v[((first + i) * config.value_heads + head) * dim..][..dim];
    let beta = |i: usize| kept.beta[(first + i) * config.value_heads + head];
    let mut sum = 0f32;
    let c: Vec<f32> = (0..len)
        .map(|i| {
            sum += kept.log_decay[(first + i) * config.value_heads + head];
            sum
        })
        .collect();

    // Forward substitution of U and W, row by row.
    let mut u = vec![0f32; len * dim];
    let mut w = vec![0f32; len * dim];
    for i in 0..len {
        let (u_done, u_rest) = u.split_at_mut(i * dim);
        let (w_done, w_rest) = w.split_at_mut(i * dim);
        let (ui, wi) = (&mut u_rest[..dim], &mut w_rest[..dim]);
        axpy(ui, beta(i), v(i));
        axpy(wi, beta(i) * c[i].exp(), k(i));
        for j in 0..i {
            let a = beta(i) * dot(k(i), k(j)) * (c[i] - c[j]).exp();
            axpy(ui, -a, &u_done[j * dim..(j + 1) * dim]);
            axpy(wi, -a, &w_done[j * dim..(j + 1) * dim]);
        }
    }
    // D = U - W S0.
    for (u, w) in u.chunks_exact_mut(dim).zip(w.chunks_exact(dim)) {
        for (u, column) in u.iter_mut().zip(memory.chunks_exact(dim)) {
            *u -= dot(w, column);
        }
    }
    for i in 0..len {
        let mut o: Vec<f32> = memory.chunks_exact(dim).map(|column| c[i].exp() * dot(q(i), column)).collect();
        for j in 0..=i {
            axpy(&mut o, dot(q(i), k(j)) * (c[i] - c[j]).exp(), &u[j * dim..(j + 1) * dim]);
        }
        out.extend_from_slice(&o);
    }
    let last = c[len - 1];
    scale(memory, last.exp());
    for j in 0..len {
        let decay = (last - c[j]).exp();
        for (column, d) in memory.chunks_exact_mut(dim).zip(&u[j * dim..(j + 1) * dim]) {
            axpy(column, decay * d, k(j));
        }
    }
}
