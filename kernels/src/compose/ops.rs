//! What all passes are made of: matmuls and their inputs, norms, embeddings.

use super::{Composer, Pass};
use crate::memory::{ROWS, Work, prompt_splits, splits};
use crate::program::{DeviceMatrix, EmbedArgs, InputRows, MatmulArgs, NormArgs, OpKind, PackArgs};
use crate::table::{ROWS_OFFSET, Row};

impl Composer<'_> {
    pub(super) fn at(&self, work: Work) -> u64 {
        self.memory.at(work)
    }

    /// Which word of the table's header says how many rows a pass has: its rows, or its segments.
    pub(super) fn rows(pass: Pass) -> u64 {
        u64::from(matches!(pass, Pass::Draft(_)))
    }

    /// Most rows of a pass.
    fn most_rows(&self, pass: Pass) -> usize {
        if pass == Pass::Prompt { self.shape.prompt_rows } else { ROWS }
    }

    /// Where a pass's rows stand.
    pub(super) fn entries(&self, pass: Pass) -> u64 {
        if matches!(pass, Pass::Draft(_)) {
            self.at(Work::DraftRows)
        } else {
            self.at(Work::Table) + 4 * ROWS_OFFSET as u64
        }
    }

    pub(super) fn hidden(&self) -> u32 {
        self.shape.config.hidden as u32
    }

    pub(super) fn matmul(&mut self, pass: Pass, x: Work, jobs: &[(&DeviceMatrix, Work, usize)]) {
        self.multiply(pass, MatmulArgs { x: self.at(x), ..MatmulArgs::default() }, jobs);
    }

    /// A matmul of what [`Self::residual`] wrote.
    pub(super) fn matmul_normed(&mut self, pass: Pass, jobs: &[(&DeviceMatrix, Work, usize)]) {
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
    pub(super) fn matmul_parts(&mut self, pass: Pass, input: MatmulArgs, matrix: &DeviceMatrix) -> u32 {
        let splits = if pass == Pass::Prompt { prompt_splits } else { splits }(matrix.rows, matrix.columns);
        self.multiply(pass, input, &[(matrix, Work::Parts, splits)]);
        splits as u32
    }

    /// What `FragmentsB` holds as a matmul's input.
    pub(super) fn packed(&self) -> MatmulArgs {
        MatmulArgs { x: self.at(Work::FragmentsB), ..MatmulArgs::default() }
    }

    /// Makes rows a matmul's input, or leaves that to the matmul.
    pub(super) fn pack(&mut self, pass: Pass, from: InputRows) -> MatmulArgs {
        if self.few {
            return MatmulArgs { from, ..MatmulArgs::default() };
        }
        let args = PackArgs { from, to: self.at(Work::FragmentsB), rows: Self::rows(pass) };
        self.ops.then(if pass == Pass::Prompt { OpKind::PackPrompt } else { OpKind::Pack }, args);
        self.packed()
    }

    /// `rows` (a buffer's) times the SiLU of `gate`'s.
    pub(super) fn gated(&self, rows: Work, gate: Work, width: usize) -> InputRows {
        InputRows { gate: self.at(gate), gate_stride: width as u32, ..InputRows::plain(self.at(rows), width) }
    }

    /// Norm arguments for the residual stream, with `parts` splits to be added, into fragments.
    pub(super) fn norm_args(&self, pass: Pass, weight: u64, parts: u32) -> NormArgs {
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
    pub(super) fn residual(&mut self, pass: Pass, args: NormArgs) {
        if pass == Pass::Prompt {
            self.ops.then(OpKind::Norm, args);
        } else {
            self.ops.then(OpKind::Residual, NormArgs { squares: self.at(Work::Squares), ..args });
        }
    }

    pub(super) fn embed(&mut self, pass: Pass, matrix: &DeviceMatrix, to: Work) {
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
}
