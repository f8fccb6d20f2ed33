//! Gated full attention over the paged pool.

use rayon::prelude::*;

use super::kv::{Half, KvPool};
use super::matmul::matmul;
use super::ops::{Rotation, hadamard, rms_norm, sigmoid};
use super::simd::{axpy, dot};
use crate::model::{Attention, ModelConfig};
use crate::step::{PAGE_TOKENS, PageId};

/// Rows whose scores one task holds at a time.
const TASK_ROWS: usize = 16;

/// Where a row stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) position: u32,
    /// Pages of the row's conversation.
    pub(super) pages: &'a [PageId],
}

/// Mixes `u` (normed rows x hidden): writes the rows' cells of pool layer `layer`, then lets every row see the positions from
/// `first_cell` up to its own. Rows of one conversation must be in order. Returns rows x hidden.
pub(super) fn mix(
    config: &ModelConfig,
    attention: &Attention,
    u: &[f32],
    places: &[Place<'_>],
    pool: &mut KvPool,
    layer: usize,
    first_cell: usize,
) -> Vec<f32> {
    let rotations = write_cells(config, attention, u, places, pool, layer);
    let dim = config.head_dim;
    let mut queries = matmul(&attention.q, u);
    queries.par_chunks_exact_mut(2 * dim * config.heads).zip(&rotations).for_each(|(row, rotation)| {
        for query_and_gate in row.chunks_exact_mut(2 * dim) {
            let query = &mut query_and_gate[..dim];
            rms_norm(query, &attention.q_norm, config.norm_eps);
            rotation.apply(query);
            if pool.rotates() {
                hadamard(query);
            }
        }
    });

    let group = config.heads / config.kv_heads;
    let tasks: Vec<(usize, usize)> = (0..places.len())
        .step_by(TASK_ROWS)
        .flat_map(|first| (0..config.kv_heads).map(move |kv_head| (first, kv_head)))
        .collect();
    let outputs: Vec<Vec<f32>> = tasks
        .par_iter()
        .map(|&(first, kv_head)| {
            let end = (first + TASK_ROWS).min(places.len());
            let width = 2 * dim * config.heads;
            (first..end)
                .flat_map(|row| {
                    let start = row * width + kv_head * group * 2 * dim;
                    let queries = &queries[start..start + group * 2 * dim];
                    attend(pool, layer, kv_head, places[row], first_cell, queries, dim)
                })
                .collect()
        })
        .collect();
    let mut mixed = vec![0f32; places.len() * config.heads * dim];
    for (&(first, kv_head), output) in tasks.iter().zip(&outputs) {
        for (r, values) in output.chunks_exact(group * dim).enumerate() {
            let start = ((first + r) * config.heads + kv_head * group) * dim;
            mixed[start..start + group * dim].copy_from_slice(values);
        }
    }
    for (head, query_and_gate) in mixed.chunks_exact_mut(dim).zip(queries.chunks_exact(2 * dim)) {
        for (o, gate) in head.iter_mut().zip(&query_and_gate[dim..]) {
            *o *= sigmoid(*gate);
        }
    }
    matmul(&attention.output, &mixed)
}

/// Computes keys and values of `u` and stores them. Returns the rows' rotations.
pub(super) fn write_cells(
    config: &ModelConfig,
    attention: &Attention,
    u: &[f32],
    places: &[Place<'_>],
    pool: &mut KvPool,
    layer: usize,
) -> Vec<Rotation> {
    let rotations: Vec<_> =
        places.iter().map(|p| Rotation::at(p.position, &config.rope_freqs, config.rope_scale)).collect();
    let (mut keys, mut values) = (matmul(&attention.k, u), matmul(&attention.v, u));
    let (dim, width) = (config.head_dim, config.head_dim * config.kv_heads);
    for (row, (place, rotation)) in places.iter().zip(&rotations).enumerate() {
        let (page, token) = (place.position as usize / PAGE_TOKENS, place.position as usize % PAGE_TOKENS);
        for head in 0..config.kv_heads {
            let range = row * width + head * dim..row * width + (head + 1) * dim;
            let key = &mut keys[range.clone()];
            rms_norm(key, &attention.k_norm, config.norm_eps);
            rotation.apply(key);
            pool.write(layer, Half::Key, place.pages[page], head, token, key);
            pool.write(layer, Half::Value, place.pages[page], head, token, &mut values[range]);
        }
    }
    rotations
}

/// The query heads of one key-value head at one row (`queries`: query and gate by head). Returns heads x `dim`.
fn attend(
    pool: &KvPool,
    layer: usize,
    kv_head: usize,
    place: Place<'_>,
    first_cell: usize,
    queries: &[f32],
    dim: usize,
) -> Vec<f32> {
    let tokens = place.position as usize + 1;
    let group = queries.len() / (2 * dim);
    let inverse = 1.0 / (dim as f32).sqrt();
    let mut page_cells = vec![0f32; PAGE_TOKENS * dim];
    let mut scores = vec![0f32; group * tokens];
    let pages = || place.pages.iter().zip((0..tokens).step_by(PAGE_TOKENS));
    for (&page, first) in pages() {
        let count = (tokens - first).min(PAGE_TOKENS);
        pool.read(layer, Half::Key, page, kv_head, count, &mut page_cells);
        for (t, key) in page_cells.chunks_exact(dim).take(count).enumerate() {
            for (h, query) in queries.chunks_exact(2 * dim).enumerate() {
                scores[h * tokens + first + t] = dot(&query[..dim], key) * inverse;
            }
        }
    }
    for scores in scores.chunks_exact_mut(tokens) {
        scores[..first_cell].fill(f32::NEG_INFINITY);
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0f32;
        for s in scores.iter_mut() {
            *s = (*s - max).exp();
            sum += *s;
        }
        for s in scores {
            *s /= sum;
        }
    }
    let mut out = vec![0f32; group * dim];
    for (&page, first) in pages() {
        let count = (tokens - first).min(PAGE_TOKENS);
        pool.read(layer, Half::Value, page, kv_head, count, &mut page_cells);
        for (t, value) in page_cells.chunks_exact(dim).take(count).enumerate() {
            for (h, out) in out.chunks_exact_mut(dim).enumerate() {
                axpy(out, scores[h * tokens + first + t], value);
            }
        }
    }
    if pool.rotates() {
        out.chunks_exact_mut(dim).for_each(hadamard);
    }
    out
}
