//! The model family's shape and tensors, read from a GGUF file and validated.

use std::sync::Arc;

use crate::quant::TensorType;

/// Sizes and constants of a model, all from its file's header.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// `general.name`, or the file's stem.
    pub name: String,
    /// Trunk blocks; the draft head's block is not counted.
    pub blocks: usize,
    /// For each trunk block: `true` for gated `DeltaNet`, `false` for attention.
    pub recurrent: Vec<bool>,
    /// A draft head (MTP block) is present.
    pub has_draft_head: bool,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward network.
    pub ffn: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Longest context that the model was made for, in tokens.
    pub context: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Width of a query, key and value head.
    pub head_dim: usize,
    /// Dimensions of a head that are rotated.
    pub rope_dims: usize,
    /// Angle of every rotary pair per position, in radians: `rope_dims / 2` numbers, formed in f64, `YaRN` applied.
    pub rope_freqs: Vec<f64>,
    /// Factor on cosine and sine (`YaRN`), 1 without.
    pub rope_scale: f32,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Taps of the causal convolution.
    pub conv_taps: usize,
    /// Key heads of a `DeltaNet` layer.
    pub key_heads: usize,
    /// Value heads of a `DeltaNet` layer, 1, 2 or 3 times the key heads.
    pub value_heads: usize,
    /// Width of a `DeltaNet` key and value head.
    pub state_dim: usize,
}

impl ModelConfig {
    /// Channels of the convolution: queries, keys and values of a `DeltaNet` layer.
    #[must_use]
    pub fn conv_channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.state_dim
    }

    /// Width of all value heads of a `DeltaNet` layer.
    #[must_use]
    pub fn inner(&self) -> usize {
        self.value_heads * self.state_dim
    }

    /// Attention layers that hold key-value cells, the draft head's included.
    #[must_use]
    pub fn kv_layers(&self) -> usize {
        self.recurrent.iter().filter(|&&r| !r).count() + usize::from(self.has_draft_head)
    }
}

/// A matrix in its file's own bits: `rows` outputs of `cols` inputs, `y[r] = sum_c W[r][c] x[c]`.
#[derive(Clone)]
pub struct Matrix {
    /// Name in the file.
    pub name: String,
    /// How a row's bytes are coded.
    pub ty: TensorType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    bytes: Bytes,
}

/// A validated part of a mapped file.
#[derive(Clone)]
struct Bytes {
    file: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {}x{}", self.name, self.ty, self.rows, self.cols)
    }
}

impl Matrix {
    /// All rows' bytes, one after the other without padding.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &(*self.bytes.file).as_ref()[self.bytes.start..self.bytes.start + self.bytes.len]
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.bytes.len / self.rows
    }

    /// Bytes of row `r`.
    #[must_use]
    pub fn row(&self, r: usize) -> &[u8] {
        let n = self.row_bytes();
        &self.bytes()[r * n..(r + 1) * n]
    }
}

/// A vector of f32, read out of the file.
pub type Vector = Vec<f32>;

/// Everything that a backend needs to run the model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Sizes and constants.
    pub config: ModelConfig,
    /// Token embeddings, a row for each token.
    pub embedding: Matrix,
    /// The head; the embedding again where it is tied.
    pub output: Matrix,
    /// Norm before the head.
    pub output_norm: Vector,
    /// The trunk.
    pub blocks: Vec<Block>,
    /// The draft head.
    pub draft_head: Option<DraftHead>,
}

/// One pre-norm block: mixer, then feed-forward network.
#[derive(Clone, Debug)]
pub struct Block {
    /// Norm before the mixer (`attn_norm`).
    pub mixer_norm: Vector,
    /// Attention or `DeltaNet`.
    pub mixer: Mixer,
    /// Norm before the feed-forward network (`post_attention_norm`).
    pub ffn_norm: Vector,
    /// `ffn_gate`.
    pub ffn_gate: Matrix,
    /// `ffn_up`.
    pub ffn_up: Matrix,
    /// `ffn_down`.
    pub ffn_down: Matrix,
}

/// What mixes tokens in a block.
#[derive(Clone, Debug)]
pub enum Mixer {
    /// Gated full attention.
    Attention(Box<Attention>),
    /// Gated `DeltaNet`.
    DeltaNet(Box<DeltaNet>),
}

/// Tensors of a gated attention layer.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Queries and gates, interleaved by head.
    pub q: Matrix,
    /// Keys.
    pub k: Matrix,
    /// Values.
    pub v: Matrix,
    /// Output.
    pub output: Matrix,
    /// Norm of each query head.
    pub q_norm: Vector,
    /// Norm of each key head.
    pub k_norm: Vector,
}

/// Tensors of a gated `DeltaNet` layer.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    /// Queries, keys and values.
    pub qkv: Matrix,
    /// Output gate z.
    pub gate: Matrix,
    /// Decay input.
    pub alpha: Matrix,
    /// Write strength.
    pub beta: Matrix,
    /// Convolution, `taps` numbers a channel, oldest first.
    pub conv: Vector,
    /// Bias of the decay input, one a value head.
    pub dt_bias: Vector,
    /// `-exp(A_log)`, one a value head.
    pub a: Vector,
    /// Norm of each value head's output.
    pub norm: Vector,
    /// Output.
    pub output: Matrix,
}

/// The draft head: one attention block behind a joiner of embedding and hidden state.
#[derive(Clone, Debug)]
pub struct DraftHead {
    /// Joiner, input `[embedding ; hidden]`.
    pub join: Matrix,
    /// Norm of the embedding.
    pub embedding_norm: Vector,
    /// Norm of the hidden state.
    pub hidden_norm: Vector,
    /// The block.
    pub block: Block,
    /// Norm before the head; the trunk's output norm where the file has none of its own.
    pub head_norm: Vector,
    /// Embedding of its own, if the file has one; else the trunk's.
    pub embedding: Matrix,
    /// Head of its own, if the file has one; else the trunk's.
    pub output: Matrix,
}
