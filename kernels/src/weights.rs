//! The model on the device: every matrix in its own type, repacked, and the small vectors in f32.

use std::collections::HashMap;

use openjet_engine::model::{Attention, Block, DeltaNet, Matrix, Mixer, Model};

use crate::device::{Buffer, Device, DeviceError};
use crate::program::DeviceMatrix;
use crate::repack::{TILE_ROWS, WeightType, repack, repacked_bytes};

/// Bytes repacked and copied at a time.
const PIECE: usize = 64 << 20;

/// Told of bytes done and bytes in all while weights are uploaded.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Matrices and vectors of one block.
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    pub(crate) mixer_norm: u64,
    pub(crate) mixer: DeviceMixer,
    pub(crate) ffn_norm: u64,
    pub(crate) gate: DeviceMatrix,
    pub(crate) up: DeviceMatrix,
    pub(crate) down: DeviceMatrix,
}

#[derive(Debug)]
pub(crate) enum DeviceMixer {
    Attention {
        q: DeviceMatrix,
        k: DeviceMatrix,
        v: DeviceMatrix,
        output: DeviceMatrix,
        q_norm: u64,
        k_norm: u64,
    },
    DeltaNet {
        qkv: DeviceMatrix,
        gate: DeviceMatrix,
        alpha: DeviceMatrix,
        beta: DeviceMatrix,
        output: DeviceMatrix,
        conv: u64,
        dt_bias: u64,
        a: u64,
        norm: u64,
    },
}

#[derive(Debug)]
pub(crate) struct DeviceDraftHead {
    pub(crate) join: DeviceMatrix,
    pub(crate) embedding_norm: u64,
    pub(crate) hidden_norm: u64,
    pub(crate) block: DeviceBlock,
    pub(crate) head_norm: u64,
    pub(crate) embedding: DeviceMatrix,
    pub(crate) output: DeviceMatrix,
}

/// The whole model on the device.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: DeviceMatrix,
    pub(crate) output: DeviceMatrix,
    pub(crate) output_norm: u64,
    pub(crate) blocks: Vec<DeviceBlock>,
    pub(crate) draft_head: Option<DeviceDraftHead>,
    pub(crate) rope_turns: u64,
    /// The model's bit set of usable tokens, 0 where all are.
    pub(crate) usable: u64,
    _buffers: Vec<Buffer>,
}

/// A model's matrices, each once: a tied head is the embedding again.
fn matrices(model: &Model, with_draft_head: bool) -> Vec<&Matrix> {
    fn of_block<'a>(block: &'a Block, all: &mut Vec<&'a Matrix>) {
        match &block.mixer {
            Mixer::Attention(m) => all.extend([&m.q, &m.k, &m.v, &m.output]),
            Mixer::DeltaNet(m) => all.extend([&m.qkv, &m.gate, &m.alpha, &m.beta, &m.output]),
        }
        all.extend([&block.ffn_gate, &block.ffn_up, &block.ffn_down]);
    }
    let mut all = vec![&model.embedding, &model.output];
    model.blocks.iter().for_each(|block| of_block(block, &mut all));
    if let Some(head) = model.draft_head.as_ref().filter(|_| with_draft_head) {
        all.extend([&head.join, &head.embedding, &head.output]);
        of_block(&head.block, &mut all);
    }
    let mut seen = HashMap::new();
    all.retain(|matrix| seen.insert(key(matrix), ()).is_none());
    all
}

fn key(matrix: &Matrix) -> usize {
    matrix.bytes().as_ptr() as usize
}

/// Bytes that the matrices take on the device.
pub(crate) fn matrix_bytes(model: &Model, with_draft_head: bool) -> usize {
    matrices(model, with_draft_head).iter().map(|m| repacked_bytes(m.ty, m.rows, m.cols)).sum()
}

struct Uploader<'a> {
    device: &'a Device,
    buffers: Vec<Buffer>,
    known: HashMap<usize, DeviceMatrix>,
}

impl Uploader<'_> {
    fn matrix(
        &mut self,
        matrix: &Matrix,
        staging: &mut Vec<u8>,
        moved: &mut dyn FnMut(usize),
    ) -> Result<(), DeviceError> {
        let bytes = repacked_bytes(matrix.ty, matrix.rows, matrix.cols);
        let buffer = self.device.allocate(bytes)?;
        let tiles = matrix.rows.div_ceil(TILE_ROWS);
        let line = bytes / tiles;
        let lines = (PIECE / line).max(1);
        for first in (0..tiles).step_by(lines) {
            let range = first..(first + lines).min(tiles);
            staging.resize(range.len() * line, 0);
            repack(matrix.ty, matrix.bytes(), matrix.cols, range, staging);
            buffer.write(first * line, staging)?;
            moved(staging.len());
        }
        let ty = WeightType::of(matrix.ty);
        let on_device = DeviceMatrix { address: buffer.address(), ty, rows: matrix.rows, columns: matrix.cols };
        self.known.insert(key(matrix), on_device);
        self.buffers.push(buffer);
        Ok(())
    }

    fn get(&self, matrix: &Matrix) -> Result<DeviceMatrix, DeviceError> {
        let unknown = || DeviceError { call: "upload".into(), reason: format!("{matrix:?} was left out") };
        self.known.get(&key(matrix)).copied().ok_or_else(unknown)
    }

    fn vector<T: bytemuck::Pod>(&mut self, vector: &[T]) -> Result<u64, DeviceError> {
        let buffer = self.device.upload(bytemuck::cast_slice(vector))?;
        let address = buffer.address();
        self.buffers.push(buffer);
        Ok(address)
    }

    fn block(&mut self, block: &Block) -> Result<DeviceBlock, DeviceError> {
        let mixer = match &block.mixer {
            Mixer::Attention(attention) => self.attention(attention)?,
            Mixer::DeltaNet(delta) => self.deltanet(delta)?,
        };
        Ok(DeviceBlock {
            mixer_norm: self.vector(&block.mixer_norm)?,
            mixer,
            ffn_norm: self.vector(&block.ffn_norm)?,
            gate: self.get(&block.ffn_gate)?,
            up: self.get(&block.ffn_up)?,
            down: self.get(&block.ffn_down)?,
        })
    }

    fn attention(&mut self, attention: &Attention) -> Result<DeviceMixer, DeviceError> {
        Ok(DeviceMixer::Attention {
            q: self.get(&attention.q)?,
            k: self.get(&attention.k)?,
            v: self.get(&attention.v)?,
            output: self.get(&attention.output)?,
            q_norm: self.vector(&attention.q_norm)?,
            k_norm: self.vector(&attention.k_norm)?,
        })
    }

    fn deltanet(&mut self, delta: &DeltaNet) -> Result<DeviceMixer, DeviceError> {
        Ok(DeviceMixer::DeltaNet {
            qkv: self.get(&delta.qkv)?,
            gate: self.get(&delta.gate)?,
            alpha: self.get(&delta.alpha)?,
            beta: self.get(&delta.beta)?,
            output: self.get(&delta.output)?,
            conv: self.vector(&delta.conv)?,
            dt_bias: self.vector(&delta.dt_bias)?,
            a: self.vector(&delta.a)?,
            norm: self.vector(&delta.norm)?,
        })
    }
}

impl Weights {
    /// Repacks and uploads, a piece at a time.
    pub(crate) fn upload(
        device: &Device,
        model: &Model,
        with_draft_head: bool,
        progress: Progress<'_>,
    ) -> Result<Self, DeviceError> {
        let mut uploader = Uploader { device, buffers: Vec::new(), known: HashMap::new() };
        let total = matrix_bytes(model, with_draft_head) as u64;
        let (mut done, mut staging) = (0, Vec::new());
        for matrix in matrices(model, with_draft_head) {
            uploader.matrix(matrix, &mut staging, &mut |bytes| {
                done += bytes as u64;
                progress(done, total);
            })?;
        }
        let blocks = model.blocks.iter().map(|block| uploader.block(block)).collect::<Result<_, _>>()?;
        let draft_head = match model.draft_head.as_ref().filter(|_| with_draft_head) {
            None => None,
            Some(head) => Some(DeviceDraftHead {
                join: uploader.get(&head.join)?,
                embedding_norm: uploader.vector(&head.embedding_norm)?,
                hidden_norm: uploader.vector(&head.hidden_norm)?,
                block: uploader.block(&head.block)?,
                head_norm: uploader.vector(&head.head_norm)?,
                embedding: uploader.get(&head.embedding)?,
                output: uploader.get(&head.output)?,
            }),
        };
        let turns: Vec<f64> = model.config.rope_freqs.iter().map(|angle| angle / std::f64::consts::TAU).collect();
        Ok(Self {
            embedding: uploader.get(&model.embedding)?,
            output: uploader.get(&model.output)?,
            output_norm: uploader.vector(&model.output_norm)?,
            blocks,
            draft_head,
            rope_turns: uploader.vector(&turns)?,
            usable: model.usable_tokens.as_ref().map_or(Ok(0), |bits| uploader.vector(bits))?,
            _buffers: uploader.buffers,
        })
    }
}
