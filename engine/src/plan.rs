//! How much device memory a model takes with so many agents and so much context, before anything is loaded.
//!
//! Weights, key-value pages and recurrent state follow from the file and the settings to the byte. What a backend works in
//! and what the driver keeps is given by the caller; [`workspace_estimate`] and [`DRIVER_ESTIMATE`] are for a plan without
//! the device at hand.

use serde::Serialize;

use crate::backend::KvType;
use crate::model::{Block, Matrix, Mixer, Model, ModelConfig, Vector};
use crate::quant::TensorType;
use crate::step::PAGE_TOKENS;

/// What a CUDA context with a program's kernels takes on current drivers, roughly.
pub const DRIVER_ESTIMATE: u64 = 450 << 20;

/// Rows of a prompt that are computed at once, for the estimate.
const PROMPT_ROWS: u64 = 512;

/// What a model is to be run with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanOptions {
    /// Conversations worked on at once, each with its own recurrent state.
    pub agents: usize,
    /// Tokens of the pool that all agents share.
    pub pool_tokens: usize,
    /// Type of the pool's cells.
    pub kv: KvType,
    /// Deepest draft; 0 leaves the draft head out.
    pub draft: usize,
    /// Keep the embedding table in host memory, where the device reads single rows. Saves nothing where it is also the head.
    pub embedding_on_host: bool,
    /// Bytes that the backend works in: activations, logits, replay rings, staging.
    pub workspace: u64,
    /// Bytes that the driver keeps.
    pub driver: u64,
    /// Bytes that are to stay free, for a display for example.
    pub reserve: u64,
}

/// One entry of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it is for.
    pub name: &'static str,
    /// How it comes about, for people.
    pub detail: String,
    /// Device memory.
    pub bytes: u64,
}

/// Where the device's memory goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// What it was made for.
    pub options: PlanOptions,
    /// Every part, in a fixed order.
    pub parts: Vec<Part>,
    /// Their sum.
    pub total: u64,
    /// Bytes of a page of the pool.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub pages: u64,
    /// Bytes of weights in host memory.
    pub host: u64,
}

impl MemoryPlan {
    /// Whether `available` bytes of device memory are enough.
    #[must_use]
    pub fn fits(&self, available: u64) -> bool {
        self.total <= available
    }

    /// The largest pool, in tokens, that fits into `available` bytes with everything else as planned; 0 if none does.
    #[must_use]
    pub fn largest_pool(&self, available: u64) -> u64 {
        let others = self.total - self.pages * self.page_bytes;
        available.saturating_sub(others) / self.page_bytes * PAGE_TOKENS as u64
    }
}

/// Plans the device memory of `model`.
#[must_use]
pub fn plan(model: &Model, options: &PlanOptions) -> MemoryPlan {
    let config = &model.config;
    let drafts = options.draft > 0 && config.has_draft_head;
    let weights = Weights::of(model, drafts);
    let (table, host) = if options.embedding_on_host { (0, weights.table) } else { (weights.table, 0) };
    let page_bytes = page_bytes(config, options.kv, drafts);
    let pages = options.pool_tokens.div_ceil(PAGE_TOKENS) as u64;
    let agents = options.agents as u64;
    let parts = vec![
        Part {
            name: "weights",
            detail: match (drafts, host > 0) {
                (true, true) => "draft head included, embedding table in host memory".into(),
                (true, false) => "draft head included".into(),
                (false, true) => "embedding table in host memory".into(),
                (false, false) => String::new(),
            },
            bytes: weights.resident + table,
        },
        Part {
            name: "key-value pool",
            detail: format!("tokens: {}, in {pages} pages of {page_bytes} bytes", options.pool_tokens),
            bytes: pages * page_bytes,
        },
        Part {
            name: "recurrent state",
            detail: format!("agents: {agents}, {} bytes each", state_bytes(config)),
            bytes: agents * state_bytes(config),
        },
        Part { name: "workspace", detail: "activations, logits, replay".into(), bytes: options.workspace },
        Part { name: "driver", detail: "context and kernels".into(), bytes: options.driver },
        Part { name: "reserve", detail: "left alone".into(), bytes: options.reserve },
    ];
    let total = parts.iter().map(|part| part.bytes).sum();
    MemoryPlan { options: *options, parts, total, page_bytes, pages, host }
}

/// Bytes of a page of the key-value pool: keys and values of [`PAGE_TOKENS`] tokens in every attention layer, the draft
/// head's included if `drafts`.
#[must_use]
pub fn page_bytes(config: &ModelConfig, kv: KvType, drafts: bool) -> u64 {
    let trunk = config.recurrent.iter().filter(|&&recurrent| !recurrent).count();
    let layers = trunk + usize::from(drafts && config.has_draft_head);
    let ty = match kv {
        KvType::F32 => TensorType::F32,
        KvType::F16 => TensorType::F16,
        KvType::Q8_0 => TensorType::Q8_0,
        KvType::Q4_0 => TensorType::Q4_0,
    };
    (PAGE_TOKENS * layers * 2 * config.kv_heads * ty.row_bytes(config.head_dim)) as u64
}

/// Bytes of one agent's recurrent state: every `DeltaNet` layer's state matrices and convolution inputs in f32.
#[must_use]
pub fn state_bytes(config: &ModelConfig) -> u64 {
    let layers = config.recurrent.iter().filter(|&&recurrent| recurrent).count();
    let state = config.inner() * config.state_dim;
    let conv = (config.conv_taps - 1) * config.conv_channels();
    (layers * (state + conv) * size_of::<f32>()) as u64
}

/// What a backend will need besides weights, pool and state, in bytes, for a plan without the backend: activations of a
/// prompt chunk, logits and draft distributions of every row, and what accepted rows are replayed from.
#[must_use]
pub fn workspace_estimate(config: &ModelConfig, agents: usize, draft: usize) -> u64 {
    let layers = config.recurrent.iter().filter(|&&recurrent| recurrent).count();
    let widest_mixer = (config.conv_channels() + 2 * config.inner()).max(3 * config.heads * config.head_dim);
    let activations = PROMPT_ROWS as usize * (3 * config.hidden + 2 * config.ffn + widest_mixer);
    let rows = agents * (1 + draft);
    let logits = (rows + agents * draft) * config.vocab;
    let replay_row =
        config.key_heads * config.state_dim + config.inner() + 2 * config.value_heads + config.conv_channels();
    ((activations + logits + rows * layers * replay_row) * size_of::<f32>()) as u64
}

/// Bytes of a model's tensors on the device.
struct Weights {
    /// Embedding tables that are of use for single rows only.
    table: u64,
    /// Everything else.
    resident: u64,
}

impl Weights {
    fn of(model: &Model, drafts: bool) -> Self {
        let tied = model.output.name == model.embedding.name;
        let mut weights = Self { table: 0, resident: 0 };
        weights.table += if tied { 0 } else { matrix(&model.embedding) };
        weights.resident += matrix(&model.output) + vector(&model.output_norm);
        weights.resident += model.blocks.iter().map(block).sum::<u64>();
        if let Some(head) = model.draft_head.as_ref().filter(|_| drafts) {
            weights.resident += matrix(&head.join) + block(&head.block);
            weights.resident += vector(&head.embedding_norm) + vector(&head.hidden_norm) + vector(&head.head_norm);
            if head.embedding.name != model.embedding.name {
                weights.table += matrix(&head.embedding);
            }
            if head.output.name != model.output.name {
                weights.resident += matrix(&head.output);
            }
        }
        weights
    }
}

fn block(block: &Block) -> u64 {
    let mixer = match &block.mixer {
        Mixer::Attention(a) => {
            [&a.q, &a.k, &a.v, &a.output].map(matrix).iter().sum::<u64>() + vector(&a.q_norm) + vector(&a.k_norm)
        }
        Mixer::DeltaNet(d) => {
            [&d.qkv, &d.gate, &d.alpha, &d.beta, &d.output].map(matrix).iter().sum::<u64>()
                + [&d.conv, &d.dt_bias, &d.a, &d.norm].map(vector).iter().sum::<u64>()
        }
    };
    let ffn = [&block.ffn_gate, &block.ffn_up, &block.ffn_down].map(matrix).iter().sum::<u64>();
    mixer + ffn + vector(&block.mixer_norm) + vector(&block.ffn_norm)
}

fn matrix(matrix: &Matrix) -> u64 {
    matrix.bytes().len() as u64
}

fn vector(vector: &Vector) -> u64 {
    size_of_val(vector.as_slice()) as u64
}
