//! What goes over the control socket, as JSON over HTTP.
//!
//! `GET /v1/status` gives a [`DaemonStatus`], `GET /v1/agents` a list of [`crate::AgentStatus`], `PUT /v1/agents` takes an
//! [`AgentCount`] and gives the one that is now in force. `GET /v1/conversations` lists those on disk, each a
//! [`ConversationStatus`]; `POST /v1/forget` takes a [`Forget`] and gives [`Forgotten`]. What fails gives an [`ErrorReply`].

use serde::{Deserialize, Serialize};

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
