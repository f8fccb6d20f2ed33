//! From the residual stream to tokens and drafts, and what a prompt's pass leaves.

use super::{Composer, Pass};
use crate::args::{AttentionArgs, NO_DRAFT, SampleArgs};
use crate::memory::Work;
use crate::program::{InputRows, NormArgs, OpKind, PreviousArgs, PromptEndArgs};
use crate::weights::{DeviceDraftHead, DeviceMixer};

impl Composer<'_> {
    pub(super) fn sample_args(&self, draft: u32) -> SampleArgs {
        SampleArgs {
            table: self.at(Work::Table),
            logits: self.at(Work::Logits),
            adjusted: self.at(Work::Adjusted),
            stats: self.at(Work::Stats),
            candidates: self.at(Work::Candidates),
            picks: self.at(Work::Picks),
            slots: self.at(Work::SlotStates),
            result: self.at(Work::Result),
            hidden: self.at(Work::Hidden),
            pending_hidden: self.at(Work::PendingHidden),
            draft_hidden: self.at(Work::DraftHidden),
            draft_rows: self.at(Work::DraftRows),
            usable: self.weights.usable,
            vocab: self.shape.config.vocab as u32,
            draft,
            draft_max: self.shape.draft_max as u32,
            hidden_width: self.hidden(),
        }
    }

    /// From the residual stream of all rows to tokens and drafts.
    pub(super) fn head(&mut self) {
        let weights = self.weights;
        let norm = NormArgs {
            normed: self.at(Work::Hidden),
            table: self.at(Work::Table),
            last_x: self.at(Work::LastX),
            ..self.norm_args(Pass::Decode, weights.output_norm, self.last_parts())
        };
        self.ops.then(OpKind::Norm, norm);
        self.matmul(Pass::Decode, Work::Fragments, &[(&weights.output, Work::Logits, 1)]);
        let sample = self.sample_args(NO_DRAFT);
        self.ops.then(OpKind::SampleAdjust, sample).then(OpKind::SampleWeigh, sample).then(OpKind::SamplePick, sample);
        // The cells of all rows, before acceptance moves the pending hidden states on: those of refused rows are written
        // again before anything reads them.
        if let Some(draft_head) = &weights.draft_head {
            self.previous();
            self.follow(Pass::Decode, draft_head);
        }
        self.ops.then(OpKind::SampleAccept, sample).then(OpKind::SampleLogprobs, sample);
        if let Some(draft_head) = &weights.draft_head {
            for draft in 0..self.shape.draft_max as u32 {
                self.ops.min_draft(draft + 1);
                self.draft(draft_head, draft);
            }
        }
    }

    /// Joins embeddings (in `Parts`' place) and hidden states into the draft head's residual stream, in `X`.
    pub(super) fn join(&mut self, pass: Pass, head: &DeviceDraftHead, hidden: Work, next_norm: u64) {
        let width = self.shape.config.hidden;
        let plain = self.norm_args(pass, head.embedding_norm, 0);
        let second = NormArgs { x: self.at(hidden), weight: head.hidden_norm, second: 1, ..plain };
        if pass == Pass::Prompt {
            // Prompt rows have one scale for a whole row, so both halves must be there first.
            let (joined, stride) = (self.at(Work::A), 2 * width as u32);
            self.ops.along(OpKind::Norm, NormArgs { fragments: 0, normed: joined, normed_stride: stride, ..plain });
            let normed = joined + 4 * width as u64;
            self.ops.then(OpKind::Norm, NormArgs { fragments: 0, normed, normed_stride: stride, ..second });
            self.pack(pass, InputRows::plain(joined, 2 * width));
        } else {
            let (fragments, first_column_tile) = (self.at(Work::FragmentsB), width.div_ceil(256) as u32);
            self.ops.along(OpKind::Norm, NormArgs { fragments, ..plain });
            self.ops.then(OpKind::Norm, NormArgs { fragments, first_column_tile, ..second });
        }
        let parts = self.matmul_parts(pass, self.packed(), &head.join);
        self.residual(pass, NormArgs { assign: 1, ..self.norm_args(pass, next_norm, parts) });
    }

    /// Gathers the hidden states of the positions before the rows' into `Previous`.
    pub(super) fn previous(&mut self) {
        let args = PreviousArgs {
            table: self.at(Work::Table),
            hidden: self.at(Work::Hidden),
            pending_hidden: self.at(Work::PendingHidden),
            out: self.at(Work::Previous),
            width: self.hidden(),
            reserved: 0,
        };
        self.ops.then(OpKind::Previous, args);
    }

    /// Writes the draft head's cells of a pass's rows from true hidden states, in `Previous`.
    pub(super) fn follow(&mut self, pass: Pass, head: &DeviceDraftHead) {
        self.embed(pass, &head.embedding, Work::X);
        self.join(pass, head, Work::Previous, head.block.mixer_norm);
        let DeviceMixer::Attention { k, v, .. } = &head.block.mixer else { return };
        let layer = self.shape.kv_layers as u32 - 1;
        let Some(args) = self.attention_args(pass, &head.block.mixer, layer, true) else { return };
        self.matmul_normed(pass, &[(k, Work::B, 1), (v, Work::C, 1)]);
        self.ops.then(OpKind::AttentionPrepare, AttentionArgs { cells_only: 1, ..args });
    }

    /// One draft of every segment that still drafts.
    pub(super) fn draft(&mut self, head: &DeviceDraftHead, draft: u32) {
        let pass = Pass::Draft(draft);
        self.embed(pass, &head.embedding, Work::X);
        self.join(pass, head, Work::DraftHidden, head.block.mixer_norm);
        let parts = self.attention(pass, &head.block, self.shape.kv_layers as u32 - 1, true);
        let parts = self.ffn(pass, &head.block, parts);
        let norm = NormArgs { normed: self.at(Work::DraftHidden), ..self.norm_args(pass, head.head_norm, parts) };
        self.ops.then(OpKind::Norm, norm);
        self.matmul(pass, Work::Fragments, &[(&head.output, Work::Logits, 1)]);
        let sample = self.sample_args(draft);
        self.ops.then(OpKind::SampleAdjust, sample).then(OpKind::SampleWeigh, sample).then(OpKind::SamplePick, sample);
    }

    pub(super) fn prompt_end(&mut self, pass: Pass) {
        let weights = self.weights;
        // X is the residual stream until the draft head takes it over.
        let end = PromptEndArgs {
            table: self.at(Work::Table),
            slots: self.at(Work::SlotStates),
            x: self.at(Work::X),
            hidden: self.at(Work::Hidden),
            last_x: self.at(Work::LastX),
            pending_hidden: self.at(Work::PendingHidden),
            width: self.hidden(),
            reserved: 0,
        };
        if weights.draft_head.is_some() {
            self.previous();
        }
        self.ops.then(OpKind::PromptEnd, end);
        if let Some(draft_head) = &weights.draft_head {
            self.follow(pass, draft_head);
        }
    }
}
