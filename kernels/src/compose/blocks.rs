//! The blocks of a model: attention or DeltaNet, and the FFN.

use super::{Composer, Pass};
use crate::args::{AttentionArgs, DeltaArgs, KvPool};
use crate::memory::{Work, splits};
use crate::program::{InputRows, NormArgs, OpKind};
use crate::weights::{DeviceBlock, DeviceMixer, GateUp};

impl Composer<'_> {
    pub(super) fn trunk(&mut self, pass: Pass) {
        let weights = self.weights;
        self.embed(pass, &weights.embedding, Work::X);
        let (mut parts, mut kv_layer, mut delta_layer) = (0, 0, 0);
        for block in &weights.blocks {
            self.residual(pass, self.norm_args(pass, block.mixer_norm, parts));
            parts = match &block.mixer {
                DeviceMixer::Attention { .. } => {
                    kv_layer += 1;
                    self.attention(pass, block, kv_layer - 1, false)
                }
                DeviceMixer::DeltaNet { .. } => {
                    delta_layer += 1;
                    self.deltanet(pass, &block.mixer, delta_layer - 1)
                }
            };
            parts = self.ffn(pass, block, parts);
        }
        // What is left to be added is added by the head, or here for a prompt, whose last row the head gets.
        if pass.reads() {
            let args = self.norm_args(pass, weights.output_norm, parts);
            self.ops.then(OpKind::Norm, NormArgs { normed: self.at(Work::Hidden), fragments: 0, ..args });
        }
    }

    /// Splits of the last block's output, which the head's norm adds.
    pub(super) fn last_parts(&self) -> u32 {
        self.weights.blocks.last().map_or(0, |block| splits(block.down.rows, block.down.columns) as u32)
    }

    pub(super) fn ffn(&mut self, pass: Pass, block: &DeviceBlock, parts: u32) -> u32 {
        self.residual(pass, self.norm_args(pass, block.ffn_norm, parts));
        let width = block.down.columns;
        let rows = match &block.gate_up {
            GateUp::Pair(pair) => {
                self.matmul_normed(pass, &[(pair, Work::A, 1)]);
                InputRows::plain(self.at(Work::A), width)
            }
            GateUp::Two(gate, up) => {
                self.matmul_normed(pass, &[(gate, Work::A, 1), (up, Work::B, 1)]);
                self.gated(Work::B, Work::A, width)
            }
        };
        let input = self.pack(pass, rows);
        self.matmul_parts(pass, input, &block.down)
    }

    /// Attention arguments of a layer, with cells in layer `layer` of the pool.
    pub(super) fn attention_args(
        &self,
        pass: Pass,
        mixer: &DeviceMixer,
        layer: u32,
        draft_head: bool,
    ) -> Option<AttentionArgs> {
        let DeviceMixer::Attention { q, k, output, q_norm, k_norm, .. } = mixer else { return None };
        let config = &self.shape.config;
        Some(AttentionArgs {
            table: self.at(Work::Table),
            draft_rows: self.at(Work::DraftRows),
            q: self.at(Work::A),
            k: self.at(Work::B),
            v: self.at(Work::C),
            queries: self.at(Work::Queries),
            partial: self.at(Work::Partial),
            out: self.at(Work::Out),
            fragments: self.at(Work::FragmentsB),
            q_norm: *q_norm,
            k_norm: *k_norm,
            rope_turns: self.weights.rope_turns,
            pool: KvPool {
                base: self.memory.kv.address(),
                page_bytes: self.shape.page_bytes() as u64,
                layers: self.shape.kv_layers as u32,
                kv_heads: config.kv_heads as u32,
                format: self.shape.format as u32,
                reserved: 0,
            },
            cells_map: 0,
            layer,
            heads: config.heads as u32,
            rope_pairs: config.rope_freqs.len() as u32,
            q_width: q.rows as u32,
            kv_width: k.rows as u32,
            out_width: output.columns as u32,
            first_position: u32::from(draft_head),
            splits: self.shape.attention_splits() as u32,
            draft: u32::from(matches!(pass, Pass::Draft(_))),
            cells_only: 0,
            rope_scale: config.rope_scale,
            eps: config.norm_eps,
        })
    }

    pub(super) fn attention(&mut self, pass: Pass, block: &DeviceBlock, layer: u32, draft_head: bool) -> u32 {
        let DeviceMixer::Attention { q, k, v, output, .. } = &block.mixer else { return 0 };
        let Some(args) = self.attention_args(pass, &block.mixer, layer, draft_head) else { return 0 };
        self.matmul_normed(pass, &[(q, Work::A, 1), (k, Work::B, 1), (v, Work::C, 1)]);
        self.ops.then(OpKind::AttentionPrepare, args);
        // A tail's few rows would leave most of a GPU idle if each block took all pages for them.
        let input = if pass == Pass::Prompt {
            self.ops.then(OpKind::AttentionPrompt, args);
            self.pack(pass, InputRows::plain(self.at(Work::Out), output.columns))
        } else {
            self.ops.then(OpKind::AttentionDecode, args).then(OpKind::AttentionMerge, args);
            self.packed()
        };
        self.matmul_parts(pass, input, output)
    }

    pub(super) fn deltanet(&mut self, pass: Pass, mixer: &DeviceMixer, layer: usize) -> u32 {
        let DeviceMixer::DeltaNet { qkv, gate, alpha, beta, output, conv, dt_bias, a, norm } = mixer else { return 0 };
        let args = DeltaArgs {
            table: self.at(Work::Table),
            slots: self.at(Work::SlotStates),
            state: self.memory.state.address() + (layer * self.shape.layout.floats() * 4) as u64,
            slot_stride: self.shape.slot_floats() as u64,
            qkv: self.at(Work::A),
            alpha: self.at(Work::C),
            beta: self.at(Work::D),
            mixed: self.at(Work::Mixed),
            out: self.at(Work::Out),
            conv: *conv,
            dt_bias: *dt_bias,
            a: *a,
            chunks: self.at(Work::Chunks),
            layout: self.shape.layout,
            qkv_width: qkv.rows as u32,
            gate_width: alpha.rows as u32,
            out_width: output.columns as u32,
            reserved: 0,
        };
        let jobs = [(qkv, Work::A, 1), (gate, Work::B, 1), (alpha, Work::C, 1), (beta, Work::D, 1)];
        self.matmul_normed(pass, &jobs);
        if pass.reads() {
            self.ops
                .then(OpKind::DeltanetConvolvePrompt, args)
                .then(OpKind::DeltanetChunks, args)
                .then(OpKind::DeltanetScan, args)
                .along(OpKind::DeltanetFinish, args);
        } else {
            self.ops.then(OpKind::DeltanetDecode, args);
        }
        let eps = self.shape.config.norm_eps;
        let normed = InputRows { norm: *norm, eps, ..self.gated(Work::Out, Work::B, output.columns) };
        let input = self.pack(pass, normed);
        let parts = self.matmul_parts(pass, input, output);
        // What it keeps was there before that matmul.
        if !pass.reads() {
            self.ops.early(OpKind::DeltanetKeep, args);
        }
        parts
    }
}
