//! The model on the device: every matrix in its own type, repacked, and the small vectors in f32.

use std::collections::HashMap;

use openjet_engine::model::{Attention, Block, DeltaNet, Matrix, Mixer, Model};
use openjet_engine::quant::TensorType;

use crate::device::{ALIGNMENT, Buffer, Device, DeviceError, Pinned};
use crate::program::DeviceMatrix;
use crate::repack::{WeightType, repacked_bytes, repacked_pair_bytes};
use crate::upload::{Destination, Job, Progress, Source, upload};

/// Matrices and vectors of one block.
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    pub(crate) mixer_norm: u64,
    pub(crate) mixer: DeviceMixer,
    pub(crate) ffn_norm: u64,
    pub(crate) gate_up: GateUp,
    pub(crate) down: DeviceMatrix,
}

/// The two matrices whose products become `silu(gate) * up`.
#[derive(Debug)]
pub(crate) enum GateUp {
    /// As a pair: the matmul makes that of them.
    Pair(DeviceMatrix),
    /// Of different types, or too large together.
    Two(DeviceMatrix, DeviceMatrix),
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
    _device: Vec<Buffer>,
    _host: Option<Pinned>,
}

/// Bytes of a model's weights by where they lie, and where each of these parts begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents {
    /// Matrices on the device, repacked.
    pub(crate) matrices: usize,
    /// Small vectors on the device.
    pub(crate) vectors: usize,
    /// Embedding tables in host memory, repacked.
    pub(crate) host: usize,
}

/// Bytes that the weights take; with `host_embedding` those embedding tables that serve as nothing else lie in host memory.
pub(crate) fn extents(model: &Model, with_draft_head: bool, host_embedding: bool) -> Extents {
    let mut layout = Layout::new(Extents::default(), host_embedding);
    layout.model(model, with_draft_head);
    layout.extents()
}

/// Bytes of a matrix that a matmul's offsets, of 32 bits, reach.
const LARGEST_MATRIX: usize = u32::MAX as usize;

/// # Errors
/// Names a matrix that is too large for the kernels.
pub(crate) fn check_sizes(model: &Model, with_draft_head: bool) -> Result<(), String> {
    let mut layout = Layout::new(Extents::default(), false);
    layout.model(model, with_draft_head);
    layout.on_device.iter().try_for_each(|(source, _)| match source {
        Source::One(matrix) => check_size(&matrix.name, matrix.ty, matrix.rows, matrix.cols),
        // None that is too large is made.
        Source::Pair(_) => Ok(()),
    })
}

/// Whether a pair is not too large, of matrices that may be.
fn can_pair(ty: TensorType, rows: usize, columns: usize) -> bool {
    repacked_pair_bytes(ty, rows, columns) <= LARGEST_MATRIX
}

fn check_size(name: &str, ty: TensorType, rows: usize, columns: usize) -> Result<(), String> {
    let bytes = repacked_bytes(ty, rows, columns);
    if bytes > LARGEST_MATRIX {
        return Err(format!(
            "the CUDA backend can't run this: {name} ({ty}, {rows} x {columns}) takes {bytes} bytes on the GPU, and a matrix can \
             take {LARGEST_MATRIX}; quantize it, to F16 or smaller"
        ));
    }
    Ok(())
}

/// Gives every matrix and vector its place, starting from addresses that may be zero where only sizes are asked for.
struct Layout<'a> {
    base: Extents,
    host_embedding: bool,
    /// Each matrix once (a tied head is the embedding again), by where its bytes are in the file; of a pair, both's.
    known: HashMap<[usize; 2], DeviceMatrix>,
    on_device: Vec<(Source<'a>, usize)>,
    on_host: Vec<(Source<'a>, usize)>,
    vectors: Vec<u8>,
    sizes: Extents,
}

fn key(source: Source<'_>) -> [usize; 2] {
    let at = |matrix: &Matrix| matrix.bytes().as_ptr() as usize;
    match source {
        Source::One(matrix) => [at(matrix), 0],
        Source::Pair(both) => both.map(at),
    }
}

impl<'a> Layout<'a> {
    fn new(base: Extents, host_embedding: bool) -> Self {
        let (known, sizes) = (HashMap::new(), Extents::default());
        Self { base, host_embedding, known, on_device: Vec::new(), on_host: Vec::new(), vectors: Vec::new(), sizes }
    }

    fn extents(&self) -> Extents {
        Extents { vectors: self.vectors.len(), ..self.sizes }
    }

    fn matrix(&mut self, matrix: &'a Matrix) -> DeviceMatrix {
        self.place(Source::One(matrix), false)
    }

    fn gate_up(&mut self, gate: &'a Matrix, up: &'a Matrix) -> GateUp {
        match Source::pair(gate, up).filter(|_| can_pair(gate.ty, gate.rows, gate.cols)) {
            Some(pair) => GateUp::Pair(self.place(pair, false)),
            None => GateUp::Two(self.matrix(gate), self.matrix(up)),
        }
    }

    fn place(&mut self, source: Source<'a>, on_host: bool) -> DeviceMatrix {
        if let Some(known) = self.known.get(&key(source)) {
            return *known;
        }
        let (base, size, list) = if on_host {
            (self.base.host, &mut self.sizes.host, &mut self.on_host)
        } else {
            (self.base.matrices, &mut self.sizes.matrices, &mut self.on_device)
        };
        list.push((source, *size));
        let address = (base + *size) as u64;
        *size += source.bytes().next_multiple_of(ALIGNMENT);
        let Matrix { ty, rows, cols: columns, .. } = *source.first();
        let paired = matches!(source, Source::Pair(_));
        let placed = DeviceMatrix { address, ty: WeightType::of(ty), rows, columns, paired };
        self.known.insert(key(source), placed);
        placed
    }

    fn vector<T: bytemuck::Pod>(&mut self, vector: &[T]) -> u64 {
        let offset = self.vectors.len();
        self.vectors.extend_from_slice(bytemuck::cast_slice(vector));
        self.vectors.resize(self.vectors.len().next_multiple_of(ALIGNMENT), 0);
        (self.base.vectors + offset) as u64
    }

    fn block(&mut self, block: &'a Block) -> DeviceBlock {
        DeviceBlock {
            mixer_norm: self.vector(&block.mixer_norm),
            mixer: match &block.mixer {
                Mixer::Attention(attention) => self.attention(attention),
                Mixer::DeltaNet(delta) => self.deltanet(delta),
            },
            ffn_norm: self.vector(&block.ffn_norm),
            gate_up: self.gate_up(&block.ffn_gate, &block.ffn_up),
            down: self.matrix(&block.ffn_down),
        }
    }

    fn attention(&mut self, attention: &'a Attention) -> DeviceMixer {
        DeviceMixer::Attention {
            q: self.matrix(&attention.q),
            k: self.matrix(&attention.k),
            v: self.matrix(&attention.v),
            output: self.matrix(&attention.output),
            q_norm: self.vector(&attention.q_norm),
            k_norm: self.vector(&attention.k_norm),
        }
    }

    fn deltanet(&mut self, delta: &'a DeltaNet) -> DeviceMixer {
        DeviceMixer::DeltaNet {
            qkv: self.matrix(&delta.qkv),
            gate: self.matrix(&delta.gate),
            alpha: self.matrix(&delta.alpha),
            beta: self.matrix(&delta.beta),
            output: self.matrix(&delta.output),
            conv: self.vector(&delta.conv),
            dt_bias: self.vector(&delta.dt_bias),
            a: self.vector(&delta.a),
            norm: self.vector(&delta.norm),
        }
    }

    /// The heads come before the embedding tables: one that is both stays on the device.
    fn model(&mut self, model: &'a Model, with_draft_head: bool) -> Weights {
        let draft_head = model.draft_head.as_ref().filter(|_| with_draft_head);
        let output = self.matrix(&model.output);
        let draft_output = draft_head.map(|head| self.matrix(&head.output));
        let embedding = self.place(Source::One(&model.embedding), self.host_embedding);
        let blocks = model.blocks.iter().map(|block| self.block(block)).collect();
        let draft_head = draft_head.zip(draft_output).map(|(head, output)| DeviceDraftHead {
            join: self.matrix(&head.join),
            embedding_norm: self.vector(&head.embedding_norm),
            hidden_norm: self.vector(&head.hidden_norm),
            block: self.block(&head.block),
            head_norm: self.vector(&head.head_norm),
            embedding: self.place(Source::One(&head.embedding), self.host_embedding),
            output,
        });
        let turns: Vec<f64> = model.config.rope_freqs.iter().map(|angle| angle / std::f64::consts::TAU).collect();
        Weights {
            embedding,
            output,
            output_norm: self.vector(&model.output_norm),
            blocks,
            draft_head,
            rope_turns: self.vector(&turns),
            usable: model.usable_tokens.as_ref().map_or(0, |bits| self.vector(bits)),
            _device: Vec::new(),
            _host: None,
        }
    }
}

impl Weights {
    /// Repacks and uploads.
    pub(crate) fn upload(
        device: &Device,
        model: &Model,
        with_draft_head: bool,
        host_embedding: bool,
        progress: Progress<'_>,
    ) -> Result<Self, DeviceError> {
        let sizes = extents(model, with_draft_head, host_embedding);
        let mut on_device = device.allocate_together(&[sizes.matrices, sizes.vectors])?;
        let mut host = if sizes.host > 0 { Some(Pinned::new(device, sizes.host)?) } else { None };
        let base = Extents {
            matrices: on_device[0].address() as usize,
            vectors: on_device[1].address() as usize,
            host: host.as_ref().map_or(0, Pinned::address) as usize,
        };
        let mut layout = Layout::new(base, host_embedding);
        let weights = layout.model(model, with_draft_head);
        on_device[1].write(0, &layout.vectors)?;
        let matrices = &on_device[0];
        let mut jobs: Vec<Job<'_>> = Vec::new();
        if let Some(host) = &mut host {
            let mut rest = host.bytes_mut();
            for &(source, _) in &layout.on_host {
                let bytes = source.bytes();
                let (place, more) = rest.split_at_mut(bytes.next_multiple_of(ALIGNMENT));
                jobs.push(Job { source, to: Destination::Host(&mut place[..bytes]) });
                rest = more;
            }
        }
        jobs.extend(
            layout
                .on_device
                .iter()
                .map(|&(source, offset)| Job { source, to: Destination::Device { buffer: matrices, offset } }),
        );
        upload(device, jobs, progress)?;
        Ok(Self { _device: std::mem::take(&mut on_device), _host: host, ..weights })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use openjet_engine::gguf::GgufFile;

    use super::*;

    #[test]
    fn a_matrix_past_32_bits_of_offsets_is_refused_by_name() {
        assert_eq!(check_size("output.weight", TensorType::F16, 248_320, 5120), Ok(()));
        let refused = check_size("output.weight", TensorType::F32, 248_320, 5120);
        let told = "output.weight (F32, 248320 x 5120) takes 5105459200 bytes";
        assert!(refused.as_ref().is_err_and(|error| error.contains(told)), "{refused:?}");
    }

    #[test]
    fn gate_and_up_are_a_pair_where_they_are_alike() {
        for (file, alike) in
            [("assets/openjet-tiny-Q4_K_M", true), ("engine/tests/fixtures/models/openjet-tiny-mixed", false)]
        {
            let path = format!("{}/../{file}.gguf", env!("CARGO_MANIFEST_DIR"));
            let model = Model::load(Arc::new(GgufFile::open(path.as_ref()).unwrap())).unwrap();
            let mut layout = Layout::new(Extents::default(), false);
            let weights = layout.model(&model, true);
            let head = weights.draft_head.as_ref().map(|head| &head.block);
            for block in weights.blocks.iter().chain(head) {
                assert_eq!(matches!(block.gate_up, GateUp::Pair(pair) if pair.paired), alike, "{file}: {block:?}");
            }
            // Each has its place behind the one before.
            let ends = layout.on_device.iter().map(|(source, offset)| offset + source.bytes());
            let next = layout.on_device[1..].iter().map(|&(_, offset)| offset).chain([layout.extents().matrices]);
            assert!(ends.zip(next).all(|(end, next)| end.next_multiple_of(ALIGNMENT) == next), "{file}");
        }
    }

    #[test]
    fn matrices_that_are_too_large_together_stay_two() {
        assert!(can_pair(TensorType::F32, 100_000, 5120));
        assert!(!can_pair(TensorType::F32, 110_000, 5120));
        assert_eq!(check_size("blk.0.ffn_up.weight", TensorType::F32, 110_000, 5120), Ok(()));
    }
}
