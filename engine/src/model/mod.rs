//! The model family's shape and tensors, read from a GGUF file and validated.

mod config;
mod header;
mod load;
mod matrix;
mod problem;
mod rope;

pub use config::ModelConfig;
pub use header::ARCHITECTURE;
pub use matrix::Matrix;
pub use problem::{ModelError, ModelProblem};

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
    /// Names of the file's tensors that the model has no use for.
    pub unused_tensors: Vec<String>,
    /// Tokens that may be chosen, as a bit set over the vocabulary (bit `t % 32` of word `t / 32`); `None` where all may.
    /// Fillers of the vocabulary (type "unused" in the file) have logits too, but no meaning.
    pub usable_tokens: Option<Vec<u32>>,
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

impl Model {
    /// This model with [`Matrix::rounds_inputs`] set everywhere.
    #[must_use]
    pub fn with_rounded_inputs(mut self) -> Self {
        fn of_block(block: &mut Block) {
            match &mut block.mixer {
                Mixer::Attention(m) => round([&mut m.q, &mut m.k, &mut m.v, &mut m.output]),
                Mixer::DeltaNet(m) => round([&mut m.qkv, &mut m.gate, &mut m.alpha, &mut m.beta, &mut m.output]),
            }
            round([&mut block.ffn_gate, &mut block.ffn_up, &mut block.ffn_down]);
        }
        fn round<const N: usize>(matrices: [&mut Matrix; N]) {
            matrices.into_iter().for_each(|matrix| matrix.rounds_inputs = true);
        }
        round([&mut self.output]);
        self.blocks.iter_mut().for_each(of_block);
        if let Some(head) = &mut self.draft_head {
            round([&mut head.join, &mut head.output]);
            of_block(&mut head.block);
        }
        self
    }
}

#[cfg(test)]
mod tests;
