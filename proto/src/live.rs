//! What open pages are told over the WebSocket `/ws`: a snapshot, then what has changed since the message before.
//!
//! Every message is JSON in a text frame. The page answers each [`ToPage`] with a [`FromPage::Seen`]; a reader that is
//! behind with that gets nothing more until it catches up, and then a snapshot.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::DaemonStatus;
use crate::patch::Patch;

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToPage {
    /// Everything.
    Snapshot {
        /// Its number; the same for all readers, and one more each time.
        number: u64,
        /// A [`Live`] as JSON.
        state: Value,
    },
    /// What has changed since the message with the number before.
    Update {
        /// Its number.
        number: u64,
        /// The change of the state.
        change: Patch,
    },
}

/// From a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromPage {
    /// The message with this number was taken in.
    Seen(u64),
}

/// All that a page shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Live {
    /// The daemon.
    pub daemon: DaemonStatus,
    /// The latest requests that are over, oldest first.
    pub requests: Vec<RequestRecord>,
    /// What the page may change.
    pub actions: Actions,
}

/// Who may use `/control` over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actions {
    /// Nobody.
    Off,
    /// Whoever has the admin key.
    Key,
    /// Everybody who reaches the page, which are users of this machine alone.
    Open,
}

/// A request that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Its number; none if it was refused before it had one.
    pub id: Option<u64>,
    /// Milliseconds since 1970 when it ended.
    pub ended_ms: u64,
    /// The endpoint.
    pub path: String,
    /// Key of the conversation that it is pinned to.
    pub session: Option<String>,
    /// Who served it.
    pub agent: Option<usize>,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Of these, not computed again.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Tokens a second after the first.
    pub tokens_per_second: f64,
    /// Drafts verified.
    pub drafts_offered: usize,
    /// Drafts accepted.
    pub drafts_accepted: usize,
    /// Milliseconds in the queue.
    pub queued_ms: f64,
    /// Milliseconds from an agent to the first token.
    pub first_token_ms: f64,
    /// How it ended: `stop`, `length`, `tool_calls`, `cancelled`, `failed` or `refused`.
    pub finish: String,
    /// Status and reason if it failed or was refused.
    pub error: Option<String>,
}
