//! Sizes and constants, and the rules that they must obey.

use std::path::Path;

use super::header::{ARCHITECTURE, Header};
use super::problem::{ModelError, ModelProblem, Problems};
use super::rope;
use crate::gguf::{GgufFile, shape};

/// Sizes and constants of a model, all from its file's header.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
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
    /// Query heads, a multiple of the key-value heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Width of a query, key and value head, a multiple of 32.
    pub head_dim: usize,
    /// Dimensions of a head that are rotated, an even number up to `head_dim`.
    pub rope_dims: usize,
    /// Angle of every rotary pair per position, in radians: `rope_dims / 2` numbers, formed in f64, `YaRN` applied.
    pub rope_freqs: Vec<f64>,
    /// Factor on cosine and sine (`YaRN`), 1 without.
    pub rope_scale: f32,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Taps of the causal convolution, 2 to 8.
    pub conv_taps: usize,
    /// Key heads of a `DeltaNet` layer.
    pub key_heads: usize,
    /// Value heads of a `DeltaNet` layer, 1, 2 or 3 times the key heads.
    pub value_heads: usize,
    /// Width of a `DeltaNet` key and value head, a multiple of 32.
    pub state_dim: usize,
}

impl ModelConfig {
    /// Reads and checks a file's sizes, without a look at its tensors but for the size of its vocabulary.
    ///
    /// # Errors
    /// [`ModelError`] with every bad or missing key.
    pub fn read(file: &GgufFile) -> Result<Self, ModelError> {
        let mut problems = Problems::default();
        read(file, &mut problems).ok_or_else(|| ModelError { file: file.name().to_owned(), problems: problems.0 })
    }

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

/// Largest width that is believed: far over any model's, and small enough that no product of sizes overflows.
const MOST_WIDE: u64 = 1 << 20;

/// Largest head width that is believed; state and caches grow with its square.
const MOST_HEAD: u64 = 1024;

/// Which blocks a file has.
struct Layers {
    recurrent: Vec<bool>,
    has_draft_head: bool,
}

/// Reads and checks a file's sizes; `None` when a problem was noted that leaves them unknown.
pub(super) fn read(file: &GgufFile, problems: &mut Problems) -> Option<ModelConfig> {
    let noted = problems.0.len();
    if !architecture(file, problems) {
        return None;
    }
    let header = &mut Header { file, problems };
    let layers = read_layers(header)?;
    let trunk = layers.recurrent.len();
    let blocks = trunk + usize::from(layers.has_draft_head);
    let attends = |block: usize| layers.recurrent.get(block) != Some(&true);

    // Every key is read before the first that is missing ends it, so that all problems are noted.
    let hidden = header.size("embedding_length", 1..=MOST_WIDE);
    let ffn = header.size_by_block("feed_forward_length", blocks, |_| true, 1..=MOST_WIDE);
    let context = header.size("context_length", 1..=u64::from(u32::MAX >> 1));
    let heads = header.size_by_block("attention.head_count", blocks, attends, 1..=MOST_WIDE);
    let kv_heads = header.size_by_block("attention.head_count_kv", blocks, attends, 1..=MOST_WIDE);
    let head_dim = head_width(header, "attention.key_length");
    let value_dim = header.size("attention.value_length", 1..=MOST_HEAD);
    let norm_eps = header.required::<f32>("attention.layer_norm_rms_epsilon");
    let rope_dims = header.size("rope.dimension_count", 2..=MOST_HEAD);
    let rope = rope::read(header, rope_dims.unwrap_or(2));
    let conv_taps = header.size("ssm.conv_kernel", 2..=8);
    let state_dim = head_width(header, "ssm.state_size");
    let key_heads = header.size("ssm.group_count", 1..=MOST_WIDE);
    let value_heads = header.size("ssm.time_step_rank", 1..=MOST_WIDE);
    let inner = header.size("ssm.inner_size", 1..=MOST_WIDE);
    let vocab = read_vocab(header);

    let rope = rope?;
    let config = ModelConfig {
        name: name(file),
        blocks: trunk,
        has_draft_head: layers.has_draft_head,
        hidden: hidden?,
        ffn: ffn?,
        vocab: vocab?,
        context: context?,
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        rope_dims: rope_dims?,
        rope_freqs: rope.freqs,
        rope_scale: rope.scale,
        norm_eps: norm_eps?,
        conv_taps: conv_taps?,
        key_heads: key_heads?,
        value_heads: value_heads?,
        state_dim: state_dim?,
        recurrent: layers.recurrent,
    };
    check(header, &config, value_dim?, inner?);
    (problems.0.len() == noted).then_some(config)
}

/// Rules between sizes.
fn check(header: &mut Header<'_>, c: &ModelConfig, value_dim: usize, inner: usize) {
    let mut rule = |ok: bool, key: &str, found: usize, expected: String| {
        if !ok {
            header.bad::<()>(key, found, expected);
        }
    };
    rule(
        c.heads.is_multiple_of(c.kv_heads),
        "attention.head_count",
        c.heads,
        format!("a multiple of the {} key-value heads", c.kv_heads),
    );
    rule(value_dim == c.head_dim, "attention.value_length", value_dim, format!("{}, the key heads' width", c.head_dim));
    rule(
        c.rope_dims.is_multiple_of(2) && c.rope_dims <= c.head_dim,
        "rope.dimension_count",
        c.rope_dims,
        format!("an even number up to the heads' width, {}", c.head_dim),
    );
    let ratio = c.value_heads / c.key_heads;
    rule(
        c.value_heads.is_multiple_of(c.key_heads) && (1..=3).contains(&ratio),
        "ssm.time_step_rank",
        c.value_heads,
        format!("1, 2 or 3 times the {} key heads", c.key_heads),
    );
    rule(
        inner == c.inner(),
        "ssm.inner_size",
        inner,
        format!("{} ({} value heads of width {})", c.inner(), c.value_heads, c.state_dim),
    );
    if !(c.norm_eps > 0.0 && c.norm_eps < 1.0) {
        header.bad::<()>("attention.layer_norm_rms_epsilon", c.norm_eps, "a number over 0 and under 1");
    }
}

/// Notes a problem and returns `false` unless the file is a whole model of the family.
fn architecture(file: &GgufFile, problems: &mut Problems) -> bool {
    let found = match file.get::<&str>("general.architecture") {
        Ok(found) => found,
        Err(error) => {
            problems.push(ModelProblem::Header(error.problem));
            return false;
        }
    };
    if found != ARCHITECTURE {
        let note = match found {
            "qwen35moe" => "is the mixture-of-experts Qwen3.5, OpenJet runs the dense one (qwen35)",
            "qwen3next" => "is Qwen3-Next, a mixture of experts with other tensors; OpenJet runs dense qwen35",
            "clip" => "is an image encoder (mmproj); use the file of the language model that belongs to it",
            other if other.ends_with("moe") => "is a mixture-of-experts model, OpenJet runs dense qwen35",
            _ => "is not run by OpenJet, which runs the dense Qwen3.5 family (qwen35) only",
        };
        problems.push(ModelProblem::Architecture { found: found.to_owned(), note });
        return false;
    }
    match file.get_opt::<u64>("split.count") {
        Ok(None | Some(0 | 1)) => {}
        Ok(Some(count)) => {
            let part = file.get_opt::<u64>("split.no").ok().flatten().unwrap_or(0).saturating_add(1);
            problems.push(ModelProblem::Split { part, count });
            return false;
        }
        Err(error) => problems.push(ModelProblem::Header(error.problem)),
    }
    true
}

fn read_layers(header: &mut Header<'_>) -> Option<Layers> {
    // Each block has tensors of its own, so a file can't have more blocks than tensors.
    let most = header.file.tensors().len() as u64;
    let blocks = header.size("block_count", 1..=most.max(1));
    let draft_blocks = header.size_or("nextn_predict_layers", 0, 0..=1);
    let (blocks, draft_blocks) = (blocks?, draft_blocks?);
    if blocks <= draft_blocks {
        return header.bad("block_count", blocks, "a trunk block at least, besides the draft head's");
    }
    if draft_blocks > 0 && header.file.tensor("blk.0.attn_norm.weight").is_none() {
        header.problems.push(ModelProblem::DraftOnly);
        return None;
    }
    let trunk = blocks - draft_blocks;
    let recurrent = match header.optional::<Vec<bool>>("attention.recurrent_layers")? {
        Some(mut layers) => {
            let name = "attention.recurrent_layers";
            if layers.len() != blocks {
                let expected = format!("{blocks} bools, one for each block");
                return header.bad(name, format!("an array of {}", layers.len()), expected);
            }
            if layers[trunk..].contains(&true) {
                return header.bad(name, "true for the draft head's block", "false, since that block attends");
            }
            layers.truncate(trunk);
            layers
        }
        None => {
            let interval = header.size_or("full_attention_interval", 4, 1..=MOST_WIDE)?;
            (1..=trunk).map(|i| !i.is_multiple_of(interval)).collect()
        }
    };
    if !recurrent.contains(&true) || !recurrent.contains(&false) {
        return header.bad("block_count", trunk, "both attention and DeltaNet blocks among the trunk's");
    }
    Some(Layers { recurrent, has_draft_head: draft_blocks > 0 })
}

/// A head's width, which block formats and vector units want to be a multiple of 32.
fn head_width(header: &mut Header<'_>, name: &str) -> Option<usize> {
    let width = header.size(name, 1..=MOST_HEAD)?;
    if width.is_multiple_of(32) { Some(width) } else { header.bad(name, width, "a multiple of 32") }
}

/// Rows of the embedding, which must be as many as the tokenizer has tokens.
fn read_vocab(header: &mut Header<'_>) -> Option<usize> {
    let Some(embedding) = header.file.tensor("token_embd.weight") else {
        let (tensor, expected) = ("token_embd.weight".to_owned(), "embedding length x vocabulary".to_owned());
        header.problems.push(ModelProblem::MissingTensor { tensor, expected });
        return None;
    };
    let vocab = embedding.dims[1];
    let key = "tokenizer.ggml.tokens";
    if let Some(tokens) = header.file.array_len(key)
        && tokens as u64 != vocab
    {
        let (found, expected) = (format!("an array of {tokens}"), format!("{vocab} tokens, as many as embeddings"));
        header.problems.push(ModelProblem::Value { key: key.to_owned(), found, expected });
    }
    if vocab > u64::from(u32::MAX >> 1) {
        let (tensor, found) = ("token_embd.weight".to_owned(), shape(&embedding.dims));
        header.problems.push(ModelProblem::Shape { tensor, found, expected: "fewer than 2^31 rows".into() });
        return None;
    }
    Some(vocab as usize)
}

/// `general.name`, or the file's stem.
fn name(file: &GgufFile) -> String {
    let stem = Path::new(file.name()).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    match file.get_opt::<&str>("general.name") {
        Ok(Some(name)) if !name.is_empty() => name.to_owned(),
        _ => stem.unwrap_or_default(),
    }
}
