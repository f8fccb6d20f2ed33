//! What happens in the daemon, as it happens.

use serde::{Deserialize, Serialize};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A model is being loaded; what is being done.
    Loading {
        /// For people.
        detail: String,
    },
    /// A model serves.
    Loaded {
        /// Its name.
        model: String,
    },
    /// A model was unloaded.
    Unloaded {
        /// Its name.
        model: String,
    },
    /// New requests are refused, or taken again.
    Drain {
        /// Which of the two.
        on: bool,
    },
    /// A request is over.
    Request(RequestEnd),
    /// Somebody asked for a change over the control socket.
    Action {
        /// Method and path.
        action: String,
        /// Who; none over HTTP.
        uid: Option<u32>,
        /// Their process, where it is known.
        pid: Option<i32>,
        /// The answer's status.
        status: u16,
    },
    /// The reader was too slow: so many events before this one are missing.
    Missed {
        /// How many.
        events: u64,
    },
}

/// How a request ended, and what it used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestEnd {
    /// Its number.
    pub request: u64,
    /// Key of the conversation that it was pinned to.
    pub session: Option<String>,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Of these, not computed again.
    pub cached_tokens: usize,
    /// Milliseconds in the queue.
    pub queued_ms: u64,
    /// Milliseconds from an agent to the first token.
    pub first_token_ms: u64,
    /// Tokens generated.
    pub tokens: usize,
    /// Tokens a second after the first.
    pub tokens_per_second: f64,
    /// Drafts verified.
    pub drafts_offered: usize,
    /// Of these, accepted.
    pub drafts_accepted: usize,
    /// Why it ended: `stop`, `length`, `tool_calls`, `cancelled` or `failed`.
    pub finish: String,
}
