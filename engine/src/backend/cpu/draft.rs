//! The draft head: one attention block that guesses the token after the next from the trunk's hidden state.
//!
//! Its cell at position p comes from the pair (hidden state of p - 1, token of p); position 0 has none.

use super::attention::{self, Place};
use super::kv::KvPool;
use super::matmul::matmul;
use super::ops::{add, rms_norm, rms_norm_rows};
use super::trunk::{embed, feed_forward};
use crate::model::{DraftHead, Mixer, ModelConfig};

/// The first position that has a cell.
const FIRST_CELL: usize = 1;

/// Joins tokens with the hidden states before them: rows x hidden.
fn join(config: &ModelConfig, head: &DraftHead, hidden: &[f32], tokens: &[u32]) -> Vec<f32> {
    let width = config.hidden;
    let mut embedded = embed(&head.embedding, tokens);
    let mut pairs = Vec::with_capacity(2 * embedded.len());
    for (e, h) in embedded.chunks_exact_mut(width).zip(hidden.chunks_exact(width)) {
        rms_norm(e, &head.embedding_norm, config.norm_eps);
        pairs.extend_from_slice(e);
        pairs.extend(rms_norm_rows(h, &head.hidden_norm, config.norm_eps));
    }
    matmul(&head.join, &pairs)
}

/// Stores the cells of pairs (`hidden[i]`, `tokens[i]`) at `places[i]`, and nothing else.
pub(super) fn write_cells(
    config: &ModelConfig,
    head: &DraftHead,
    hidden: &[f32],
    tokens: &[u32],
    places: &[Place<'_>],
    pool: &mut KvPool,
) {
    let Mixer::Attention(attention) = &head.block.mixer else { return };
    if tokens.is_empty() {
        return;
    }
    let y = join(config, head, hidden, tokens);
    let u = rms_norm_rows(&y, &head.block.mixer_norm, config.norm_eps);
    attention::write_cells(config, attention, &u, places, pool, config.kv_layers() - 1);
}

/// Runs the whole head over pairs. Returns the hidden states that the next draft starts from (rows x hidden) and the logits
/// (rows x vocabulary).
pub(super) fn run(
    config: &ModelConfig,
    head: &DraftHead,
    hidden: &[f32],
    tokens: &[u32],
    places: &[Place<'_>],
    pool: &mut KvPool,
) -> (Vec<f32>, Vec<f32>) {
    let mut y = join(config, head, hidden, tokens);
    if let Mixer::Attention(attention) = &head.block.mixer {
        let u = rms_norm_rows(&y, &head.block.mixer_norm, config.norm_eps);
        add(&mut y, &attention::mix(config, attention, &u, places, pool, config.kv_layers() - 1, FIRST_CELL));
    }
    feed_forward(config, &head.block, &mut y);
    let hidden = rms_norm_rows(&y, &head.head_norm, config.norm_eps);
    let logits = matmul(&head.output, &hidden);
    (hidden, logits)
}
