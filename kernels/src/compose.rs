//! The programs of a model: trunk and head of a decode step, and a prompt's pass.

use crate::args::{AttentionArgs, DeltaArgs, KvPool, NO_DRAFT, SampleArgs, SettleArgs, SlotState};
use crate::device::{Device, DeviceError};
use crate::memory::{Memory, ROWS, Shape, Work, prompt_splits, splits};
use crate::program::{
    DeviceMatrix, EmbedArgs, InputRows, MatmulArgs, NormArgs, Op, OpKind, PackArgs, PreviousArgs, Program,
    ProgramBuilder, PromptEndArgs,
};
use crate::table::{ROWS_OFFSET, Row};
use crate::tuning::Tuning;
use crate::weights::{DeviceBlock, DeviceDraftHead, DeviceMixer, GateUp, Weights};

/// What a pass's rows are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Newest tokens and drafts to be verified.
    Decode,
    /// Tokens of a prompt, many at a time.
    Prompt,
    /// The tokens after a prompt's last multiple of 64: few, so their matmuls and attention are a decode step's.
    Tail,
    /// The draft head's, one row a segment; which draft they propose.
    Draft(u32),
}

/// Most rows of a step whose matmuls make their inputs themselves, where each block makes what it needs: for so few that is faster than
/// an op that makes them for all.
pub(crate) const FEW_ROWS: usize = 2;

/// What a decode step does.
#[derive(Debug)]
pub(crate) struct DecodePrograms {
    /// Its rows through the trunk.
    pub(crate) trunk: Program,
    /// Head, sampling, acceptance, the draft head's cells and its drafts.
    pub(crate) head: Program,
}

/// All programs of a model.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Steps of at most [`FEW_ROWS`] rows, ...
    few: DecodePrograms,
    /// ... and of more.
    many: DecodePrograms,
    /// A prompt's rows through the trunk, and the draft head's cells.
    pub(crate) prompt: Program,
    /// The same for a prompt's tail.
    pub(crate) tail: Program,
    /// For each slot: brings its state up to what was accepted.
    pub(crate) settle: Vec<Program>,
}

struct Composer<'a> {
    shape: &'a Shape,
    weights: &'a Weights,
    memory: &'a Memory,
    ops: ProgramBuilder,
    /// Whether there are at most [`FEW_ROWS`] rows.
    few: bool,
}

impl Programs {
    pub(crate) fn new(
        device: &Device,
        shape: &Shape,
        weights: &Weights,
        memory: &Memory,
        tuning: Tuning,
    ) -> Result<Self, DeviceError> {
        let composer = || Composer { shape, weights, memory, ops: ProgramBuilder::tuned(tuning), few: false };
        let decode = |few| -> Result<_, DeviceError> {
            let mut trunk = Composer { few, ..composer() };
            trunk.trunk(Pass::Decode);
            let mut head = Composer { few, ..composer() };
            head.head();
            Ok(DecodePrograms { trunk: trunk.ops.finish(device)?, head: head.ops.finish(device)? })
        };
        let prompt = |pass| {
            let mut prompt = composer();
            prompt.trunk(pass);
            prompt.prompt_end(pass);
            prompt.ops.finish(device)
        };
        let settle = (0..shape.slots).map(|slot| {
            let mut settle = composer();
            settle.settle(slot);
            settle.ops.finish(device)
        });
        Ok(Self {
            few: decode(true)?,
            many: decode(false)?,
            prompt: prompt(Pass::Prompt)?,
            tail: prompt(Pass::Tail)?,
            settle: settle.collect::<Result<_, _>>()?,
        })
    }

    /// Those of a step of `rows` rows.
    pub(crate) fn decode(&self, rows: usize) -> &DecodePrograms {
        if rows <= FEW_ROWS { &self.few } else { &self.many }
    }
}

/// The matmuls of a step without drafts, in its order.
pub(crate) fn matmuls(shape: &Shape, weights: &Weights, memory: &Memory) -> Vec<Op> {
    let composer = || Composer { shape, weights, memory, ops: ProgramBuilder::default(), few: false };
    let (mut trunk, mut head) = (composer(), composer());
    trunk.trunk(Pass::Decode);
    head.head();
    trunk.ops.matmuls().chain(head.ops.matmuls()).collect()
}

impl Pass {
    /// Whether the rows are a prompt's.
    fn reads(self) -> bool {
        matches!(self, Self::Prompt | Self::Tail)
    }
}

impl Composer<'_> {
    fn at(&self, work: Work) -> u64 {
        self.memory.at(work)
    }

    /// Which word of the table's header says how many rows a pass has: its rows, or its segments.
    fn rows(pass: Pass) -> u64 {
        u64::from(matches!(pass, Pass::Draft(_)))
    }

    /// Most rows of a pass.
    fn most_rows(&self, pass: Pass) -> usize {
        if pass == Pass::Prompt { self.shape.prompt_rows } else { ROWS }
    }

    /// Where a pass's rows stand.
    fn entries(&self, pass: Pass) -> u64 {
        if matches!(pass, Pass::Draft(_)) {
            self.at(Work::DraftRows)
        } else {
            self.at(Work::Table) + 4 * ROWS_OFFSET as u64
        }
    }

    fn hidden(&self) -> u32 {
        self.shape.config.hidden as u32
    }

    fn matmul(&mut self, pass: Pass, x: Work, jobs: &[(&DeviceMatrix, Work, usize)]) {
        self.multiply(pass, MatmulArgs { x: self.at(x), ..MatmulArgs::default() }, jobs);
    }

    /// A matmul of what [`Self::residual`] wrote.
    fn matmul_normed(&mut self, pass: Pass, jobs: &[(&DeviceMatrix, Work, usize)]) {
        let x = self.at(Work::Fragments);
        let args = if pass == Pass::Prompt {
            MatmulArgs { x, ..MatmulArgs::default() }
        } else {
            let (squares, eps) = (self.at(Work::Squares), self.shape.config.norm_eps);
            MatmulArgs { x, squares, eps, ..MatmulArgs::default() }
        };
        self.multiply(pass, args, jobs);
    }

    fn multiply(&mut self, pass: Pass, input: MatmulArgs, jobs: &[(&DeviceMatrix, Work, usize)]) {
        let mut args =
            MatmulArgs { rows: Self::rows(pass), inputs: jobs[0].0.columns as u32, jobs: jobs.len() as u32, ..input };
        for (job, &(matrix, y, splits)) in args.job.iter_mut().zip(jobs) {
            *job = matrix.job(self.memory.at(y), splits, self.most_rows(pass));
        }
        self.ops.then(if pass == Pass::Prompt { OpKind::MatmulPrompt } else { OpKind::Matmul }, args);
    }

    /// A matmul whose output is added to the residual stream by the norm that follows.
    fn matmul_parts(&mut self, pass: Pass, input: MatmulArgs, matrix: &DeviceMatrix) -> u32 {
        let splits = if pass == Pass::Prompt { prompt_splits } else { splits }(matrix.rows, matrix.columns);
        self.multiply(pass, input, &[(matrix, Work::Parts, splits)]);
        splits as u32
    }

    /// What `FragmentsB` holds as a matmul's input.
    fn packed(&self) -> MatmulArgs {
        MatmulArgs { x: self.at(Work::FragmentsB), ..MatmulArgs::default() }
    }

    /// Makes rows a matmul's input, or leaves that to the matmul.
    fn pack(&mut self, pass: Pass, from: InputRows) -> MatmulArgs {
        if self.few {
            return MatmulArgs { from, ..MatmulArgs::default() };
        }
        let args = PackArgs { from, to: self.at(Work::FragmentsB), rows: Self::rows(pass) };
        self.ops.then(if pass == Pass::Prompt { OpKind::PackPrompt } else { OpKind::Pack }, args);
        self.packed()
    }

    /// `rows` (a buffer's) times the SiLU of `gate`'s.
    fn gated(&self, rows: Work, gate: Work, width: usize) -> InputRows {
        InputRows { gate: self.at(gate), gate_stride: width as u32, ..InputRows::plain(self.at(rows), width) }
    }

    /// Norm arguments for the residual stream, with `parts` splits to be added, into fragments.
    fn norm_args(&self, pass: Pass, weight: u64, parts: u32) -> NormArgs {
        let hidden = self.hidden();
        NormArgs {
            x: self.at(Work::X),
            parts: self.at(Work::Parts),
            weight,
            fragments: self.at(Work::Fragments),
            rows: Self::rows(pass),
            split_stride: (self.most_rows(pass) * self.shape.config.hidden) as u64,
            splits: parts,
            width: hidden,
            stride: hidden,
            part_stride: hidden,
            normed_stride: hidden,
            eps: self.shape.config.norm_eps,
            prompt: u32::from(pass == Pass::Prompt),
            ..NormArgs::default()
        }
    }

    /// Adds `parts` splits to the residual stream and writes the input of the [`Self::matmul_normed`] that follows. A prompt's rows
    /// have one scale for a whole row, so they are normalised here.
    fn residual(&mut self, pass: Pass, args: NormArgs) {
        if pass == Pass::Prompt {
            self.ops.then(OpKind::Norm, args);
        } else {
            self.ops.then(OpKind::Residual, NormArgs { squares: self.at(Work::Squares), ..args });
        }
    }

    fn embed(&mut self, pass: Pass, matrix: &DeviceMatrix, to: Work) {
        let args = EmbedArgs {
            weights: matrix.address,
            tokens: self.entries(pass),
            rows: Self::rows(pass),
            x: self.at(to),
            ty: matrix.ty as u32,
            width: matrix.columns as u32,
            stride: matrix.columns as u32,
            token_stride: size_of::<Row>() as u32 / 4,
        };
        self.ops.then(OpKind::Embed, args);
    }

    fn trunk(&mut self, pass: Pass) {
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
    fn last_parts(&self) -> u32 {
        self.weights.blocks.last().map_or(0, |block| splits(block.down.rows, block.down.columns) as u32)
    }

    fn ffn(&mut self, pass: Pass, block: &DeviceBlock, parts: u32) -> u32 {
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
    fn attention_args(&self, pass: Pass, mixer: &DeviceMixer, layer: u32, draft_head: bool) -> Option<AttentionArgs> {
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

    fn attention(&mut self, pass: Pass, block: &DeviceBlock, layer: u32, draft_head: bool) -> u32 {
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

    fn deltanet(&mut self, pass: Pass, mixer: &DeviceMixer, layer: usize) -> u32 {
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
        // Beside the residual stream's addition, which leaves most warps idle.
        if !pass.reads() {
            self.ops.along(OpKind::DeltanetKeep, args);
        }
        parts
    }

    fn sample_args(&self, draft: u32) -> SampleArgs {
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
    fn head(&mut self) {
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
    fn join(&mut self, pass: Pass, head: &DeviceDraftHead, hidden: Work, next_norm: u64) {
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
    fn previous(&mut self) {
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
    fn follow(&mut self, pass: Pass, head: &DeviceDraftHead) {
        self.embed(pass, &head.embedding, Work::X);
        self.join(pass, head, Work::Previous, head.block.mixer_norm);
        let DeviceMixer::Attention { k, v, .. } = &head.block.mixer else { return };
        let layer = self.shape.kv_layers as u32 - 1;
        let Some(args) = self.attention_args(pass, &head.block.mixer, layer, true) else { return };
        self.matmul_normed(pass, &[(k, Work::B, 1), (v, Work::C, 1)]);
        self.ops.then(OpKind::AttentionPrepare, AttentionArgs { cells_only: 1, ..args });
    }

    /// One draft of every segment that still drafts.
    fn draft(&mut self, head: &DeviceDraftHead, draft: u32) {
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

    fn prompt_end(&mut self, pass: Pass) {
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

    fn settle(&mut self, slot: usize) {
        let args = SettleArgs {
            state: self.memory.state.address() + (slot * self.shape.slot_floats() * 4) as u64,
            layer_stride: self.shape.layout.floats() as u64,
            slot: self.at(Work::SlotStates) + (slot * size_of::<SlotState>()) as u64,
            layers: self.shape.delta_layers as u32,
            reserved: 0,
            layout: self.shape.layout,
        };
        self.ops.then(OpKind::DeltanetSettle, args);
    }
}
