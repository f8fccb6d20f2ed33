//! What goes over the control socket, as JSON over HTTP.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | [`DaemonStatus`] |
//! | `GET /v1/agents` | | a list of [`crate::AgentStatus`] |
//! | `PUT /v1/agents` | [`AgentCount`] | the [`AgentCount`] that is now in force |
//! | `POST /v1/agents/ID/kick` | | [`Kicked`] |
//! | `GET /v1/models` | | a list of [`ModelFile`] |
//! | `POST /v1/plan` | [`LoadModel`] | the [`ModelPlan`] of what `load` would do |
//! | `POST /v1/load` | [`LoadModel`] | the [`ModelStatus`] once it serves |
//! | `POST /v1/unload` | | [`Unloaded`] |
//! | `PUT /v1/drain` | [`Drain`] | [`Draining`] |
//! | `GET /v1/conversations` | | a list of [`ConversationStatus`] |
//! | `POST /v1/forget` | [`Forget`] | [`Forgotten`] |
//! | `GET /v1/metrics` | | a list of [`MetricSample`] |
//! | `GET /v1/log`, `PUT /v1/log` | [`LogFilter`] | the [`LogFilter`] in force |
//! | `GET /v1/events` | | lines of [`crate::events::Event`], for as long as the connection lives |
//!
//! What fails gives an [`ErrorReply`]. The first part of a path is the version of all this: what is there stays as it is,
//! members may be added, and anything else gets another version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::{DeviceStatus, MemoryStatus, TuningStatus};
use crate::{EngineStatus, Health};

/// The daemon at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Address of the HTTP API, as in `127.0.0.1:18080`.
    pub listen: String,
    /// Where it stands; before the engine runs, and after, it says more than `engine.health`.
    pub health: Health,
    /// Requests in the daemon, waiting ones too.
    pub requests: usize,
    /// What is loaded.
    pub model: Option<ModelStatus>,
    /// What was planned for the GPU's memory, if a GPU runs it.
    pub memory: Option<MemoryStatus>,
    /// How the matmuls are shared out there.
    #[serde(default)]
    pub tuning: Option<TuningStatus>,
    /// That GPU.
    pub device: Option<DeviceStatus>,
    /// What is being done to load another model while this one serves.
    #[serde(default)]
    pub change: Option<String>,
    /// The engine, once it runs.
    pub engine: Option<EngineStatus>,
}

/// The loaded model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStatus {
    /// Its own name.
    pub name: String,
    /// Its file; none for the model that ships with the program.
    pub file: Option<String>,
    /// Bytes of its file.
    pub bytes: u64,
    /// Longest context that it was made for, in tokens.
    pub context: usize,
    /// Tokens in its vocabulary.
    pub vocab: usize,
    /// Whether it has a draft head.
    pub draft_head: bool,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Trunk blocks.
    pub blocks: usize,
    /// Of these, blocks with attention; the others are recurrent.
    pub attention_blocks: usize,
    /// How the tensors are coded, most bytes first.
    pub types: Vec<TensorType>,
}

/// Tensors of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorType {
    /// Name of the type.
    pub name: String,
    /// How many tensors have it.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A model that could be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// What `load` takes: the file's name without its ending.
    pub id: String,
    /// Where it lies; none for the model that ships with the program.
    pub file: Option<String>,
    /// Bytes of its file.
    pub bytes: u64,
    /// The name that the file gives, where it could be read.
    pub name: Option<String>,
    /// The first reason why it can't be run.
    pub problem: Option<String>,
    /// It is the one that serves.
    pub loaded: bool,
}

/// Load another model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadModel {
    /// A name from the list of models, or an absolute path; the one that was loaded last without it.
    #[serde(default)]
    pub model: Option<String>,
    /// Agents; the setting's without it.
    #[serde(default)]
    pub agents: Option<usize>,
    /// Tokens of the pool; the setting's without it.
    #[serde(default)]
    pub ctx: Option<usize>,
    /// Give the old model's memory up first, though both would fit.
    #[serde(default)]
    pub replace: bool,
}

/// What a model would take if it were loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// The model.
    pub model: ModelStatus,
    /// Its plan; none where it would run on the CPU.
    pub memory: Option<MemoryStatus>,
    /// Bytes of the GPU's memory that it may take.
    pub available: Option<u64>,
    /// It could be loaded.
    pub fits: bool,
    /// The same in words, with what would fit if it does not.
    pub verdict: String,
}

/// What was unloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unloaded {
    /// The model's name; none when nothing was loaded.
    pub model: Option<String>,
}

/// Whether new requests are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Refuse them, or take them again.
    pub on: bool,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// New requests are refused.
    pub on: bool,
    /// Requests that still run or wait.
    pub requests: usize,
}

/// What came of a kick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kicked {
    /// The agent.
    pub agent: usize,
    /// It served a request, which was ended.
    pub ended: bool,
}

/// One number of the metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSample {
    /// As Prometheus reads it.
    pub name: String,
    /// What tells it from others of the same name.
    pub labels: BTreeMap<String, String>,
    /// The number.
    pub value: f64,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogFilter {
    /// A level, or filters as the setting `log` takes them.
    pub filter: String,
}

/// How many agents there are to be, or are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentCount {
    /// At least 1.
    pub count: usize,
}

/// A conversation that is kept on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationStatus {
    /// Its name.
    pub id: String,
    /// Key that its requests were pinned to.
    pub session: Option<String>,
    /// Tokens.
    pub tokens: usize,
    /// Bytes on disk; what conversations share is counted for each.
    pub bytes: u64,
    /// Seconds since it was written or gone on from.
    pub unused_s: f64,
}

/// Which conversations to forget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forget {
    /// All, and every prompt that was read.
    All,
    /// The one with this name, or those of this session.
    Conversation(String),
}

/// How many conversations were forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// In memory or on disk; one in both places counts once.
    pub count: usize,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// The only member.
    pub error: ErrorDetail,
}

/// An error and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// What is wrong.
    pub message: String,
    /// What to do next.
    pub hint: String,
}
