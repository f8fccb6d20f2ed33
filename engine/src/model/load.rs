//! From a checked file to a model: every tensor's presence, shape and type against the sizes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::config::{self, ModelConfig};
use super::matrix::Matrix;
use super::problem::{ModelError, ModelProblem, Problems};
use super::{Attention, Block, DeltaNet, DraftHead, Mixer, Model, Vector};
use crate::gguf::{GgufFile, StoredType, TensorInfo, shape};
use crate::quant::{TensorType, dequantize_row};

impl Model {
    /// Reads a model's sizes, checks every tensor against them, and copies the vectors. Matrices stay in the file.
    ///
    /// # Errors
    /// [`ModelError`] with every reason why the file can't be run.
    #[allow(clippy::needless_pass_by_value, reason = "the model shares the file's ownership")]
    pub fn load(file: Arc<GgufFile>) -> Result<Self, ModelError> {
        let mut problems = Problems::default();
        let model = config::read(&file, &mut problems).map(|config| {
            let unused = file.tensors().iter().map(|t| t.name.as_str()).collect();
            Loader { file: &file, unused, problems: &mut problems }.model(config)
        });
        match model {
            Some(model) if problems.0.is_empty() => {
                if !model.unused_tensors.is_empty() {
                    tracing::warn!(file = file.name(), tensors = ?model.unused_tensors, "unknown tensors are left out");
                }
                Ok(model)
            }
            _ => Err(ModelError { file: file.name().to_owned(), problems: problems.0 }),
        }
    }
}

/// The bit set of [`Model::usable_tokens`]. A file without token types (its tokenizer is refused elsewhere) restricts nothing.
fn usable_tokens(file: &GgufFile, vocab: usize) -> Option<Vec<u32>> {
    /// "Unused" in `tokenizer.ggml.token_type`.
    const UNUSED: i32 = 5;
    let types: Vec<i32> = file.get_opt("tokenizer.ggml.token_type").ok().flatten()?;
    if !types.contains(&UNUSED) {
        return None;
    }
    let mut bits = vec![0; vocab.div_ceil(32)];
    for (token, _) in types.iter().take(vocab).enumerate().filter(|(_, ty)| **ty != UNUSED) {
        bits[token / 32] |= 1 << (token % 32);
    }
    Some(bits)
}

/// Takes tensors out of a file. Where one is not as it should be, a problem is noted and something empty stands in for it;
/// a model with problems is never given out.
struct Loader<'a> {
    file: &'a Arc<GgufFile>,
    unused: BTreeSet<&'a str>,
    problems: &'a mut Problems,
}

impl Loader<'_> {
    fn model(mut self, config: ModelConfig) -> Model {
        let (hidden, vocab) = (config.hidden, config.vocab);
        let embedding = self.matrix("token_embd.weight", vocab, hidden);
        let output = self.own_or("output.weight", vocab, hidden, &embedding);
        let output_norm = self.vector("output_norm.weight", &[hidden]);
        let mut blocks = Vec::new();
        for (i, &recurrent) in config.recurrent.iter().enumerate() {
            if self.problems.is_full() {
                break;
            }
            blocks.push(self.block(i, recurrent, &config));
        }
        let draft_head =
            config.has_draft_head.then(|| self.draft_head(&config, &embedding, &output, output_norm.clone()));
        for name in self.unused.iter().filter(|name| name.ends_with(".scale")) {
            self.problems.push(ModelProblem::Companion { tensor: (*name).to_owned() });
        }
        let unused_tensors = self.unused.into_iter().map(str::to_owned).collect();
        let usable_tokens = usable_tokens(self.file, vocab);
        Model { config, embedding, output, output_norm, blocks, draft_head, unused_tensors, usable_tokens }
    }

    fn block(&mut self, i: usize, recurrent: bool, c: &ModelConfig) -> Block {
        let name = |part: &str| format!("blk.{i}.{part}");
        Block {
            mixer_norm: self.vector(&name("attn_norm.weight"), &[c.hidden]),
            mixer: if recurrent {
                Mixer::DeltaNet(Box::new(self.delta_net(name, c)))
            } else {
                Mixer::Attention(Box::new(self.attention(name, c)))
            },
            ffn_norm: self.vector(&name("post_attention_norm.weight"), &[c.hidden]),
            ffn_gate: self.matrix(&name("ffn_gate.weight"), c.ffn, c.hidden),
            ffn_up: self.matrix(&name("ffn_up.weight"), c.ffn, c.hidden),
            ffn_down: self.matrix(&name("ffn_down.weight"), c.hidden, c.ffn),
        }
    }

    fn attention(&mut self, name: impl Fn(&str) -> String, c: &ModelConfig) -> Attention {
        let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        Attention {
            q: self.matrix(&name("attn_q.weight"), 2 * queries, c.hidden),
            k: self.matrix(&name("attn_k.weight"), keys, c.hidden),
            v: self.matrix(&name("attn_v.weight"), keys, c.hidden),
            output: self.matrix(&name("attn_output.weight"), c.hidden, queries),
            q_norm: self.vector(&name("attn_q_norm.weight"), &[c.head_dim]),
            k_norm: self.vector(&name("attn_k_norm.weight"), &[c.head_dim]),
        }
    }

    fn delta_net(&mut self, name: impl Fn(&str) -> String, c: &ModelConfig) -> DeltaNet {
        DeltaNet {
            qkv: self.matrix(&name("attn_qkv.weight"), c.conv_channels(), c.hidden),
            gate: self.matrix(&name("attn_gate.weight"), c.inner(), c.hidden),
            alpha: self.matrix(&name("ssm_alpha.weight"), c.value_heads, c.hidden),
            beta: self.matrix(&name("ssm_beta.weight"), c.value_heads, c.hidden),
            conv: self.vector(&name("ssm_conv1d.weight"), &[c.conv_taps, c.conv_channels()]),
            dt_bias: self.vector(&name("ssm_dt.bias"), &[c.value_heads]),
            a: self.vector(&name("ssm_a"), &[c.value_heads]),
            norm: self.vector(&name("ssm_norm.weight"), &[c.state_dim]),
            output: self.matrix(&name("ssm_out.weight"), c.hidden, c.inner()),
        }
    }

    fn draft_head(&mut self, c: &ModelConfig, embedding: &Matrix, output: &Matrix, output_norm: Vector) -> DraftHead {
        let name = |part: &str| format!("blk.{}.nextn.{part}.weight", c.blocks);
        DraftHead {
            join: self.matrix(&name("eh_proj"), c.hidden, 2 * c.hidden),
            embedding_norm: self.vector(&name("enorm"), &[c.hidden]),
            hidden_norm: self.vector(&name("hnorm"), &[c.hidden]),
            block: self.block(c.blocks, false, c),
            head_norm: if self.has(&name("shared_head_norm")) {
                self.vector(&name("shared_head_norm"), &[c.hidden])
            } else {
                output_norm
            },
            embedding: self.own_or(&name("embed_tokens"), c.vocab, c.hidden, embedding),
            output: self.own_or(&name("shared_head_head"), c.vocab, c.hidden, output),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// The matrix of this name, `other` if the file has none.
    fn own_or(&mut self, name: &str, rows: usize, cols: usize, other: &Matrix) -> Matrix {
        if self.has(name) { self.matrix(name, rows, cols) } else { other.clone() }
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Matrix {
        let found = self.tensor(name, &[cols, rows]);
        let (ty, range) = found.map_or((TensorType::F32, 0..0), |(ty, tensor)| (ty, tensor.bytes.clone()));
        Matrix::new(name.to_owned(), ty, cols, self.file.clone(), range)
    }

    fn vector(&mut self, name: &str, dims: &[usize]) -> Vector {
        let Some((ty, tensor)) = self.tensor(name, dims) else { return Vector::new() };
        if !ty.is_float() {
            let (tensor, found) = (name.to_owned(), ty.to_string());
            self.problems.push(ModelProblem::Type { tensor, found, expected: "F32, F16 or BF16" });
            return Vector::new();
        }
        let mut vector = vec![0.0; tensor.elements() as usize];
        dequantize_row(ty, &self.file.bytes()[tensor.bytes.clone()], &mut vector);
        vector
    }

    /// The tensor of this name if it has this shape and a type that can be computed with.
    fn tensor(&mut self, name: &str, dims: &[usize]) -> Option<(TensorType, TensorInfo)> {
        self.unused.remove(name);
        let mut expected = [1; 4];
        for (expected, &dim) in expected.iter_mut().zip(dims) {
            *expected = dim as u64;
        }
        let Some(tensor) = self.file.tensor(name) else {
            let (tensor, expected) = (name.to_owned(), shape(&expected));
            self.problems.push(ModelProblem::MissingTensor { tensor, expected });
            return None;
        };
        if tensor.dims != expected {
            let (tensor, found, expected) = (name.to_owned(), shape(&tensor.dims), shape(&expected));
            self.problems.push(ModelProblem::Shape { tensor, found, expected });
            return None;
        }
        match tensor.ty {
            StoredType::Known(ty) => Some((ty, tensor.clone())),
            StoredType::Other(found) => {
                let (tensor, found) = (name.to_owned(), found.to_owned());
                self.problems.push(ModelProblem::Type { tensor, found, expected: READABLE });
                None
            }
        }
    }
}

/// Every type of [`TensorType`].
const READABLE: &str =
    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL or IQ4_XS; use a file of another quantisation";
