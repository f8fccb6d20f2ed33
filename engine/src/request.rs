//! What a caller asks of the engine, and what it hears back.

use std::sync::Arc;
use std::time::Duration;

use crate::constraint::Constraint;
use crate::sampling::{SamplingError, SamplingParams};
use crate::step::Sampled;

/// One text to be continued.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub params: SamplingParams,
    /// Most tokens to generate; `None` for as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Tokens that end the text (besides the model's own end tokens, unless `ignore_end`).
    pub end_tokens: Vec<u32>,
    /// Go on past the model's own end tokens.
    pub ignore_end: bool,
    /// Deepest draft for this request; `None` for the engine's setting, 0 for none.
    pub draft: Option<usize>,
    /// Conversations with the same key go back to the same slot.
    pub session: Option<String>,
    /// What it is about, in a line, for people who watch.
    pub task: Option<String>,
    /// Position in `prompt` where its system message ends, if known: others may begin alike, so it is a good place for a
    /// snapshot.
    pub system_until: Option<usize>,
    /// Position in `prompt` where the template's generation prompt begins, if known: a good place for a snapshot.
    pub generation_prompt_at: Option<usize>,
    /// What the text is held to, if to anything.
    pub constraint: Option<Constraint>,
}

/// What the engine tells about a request, in order: `Started`, then `Tokens` any number of times, each after `Drafted` where there
/// were drafts, then `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// A slot took it.
    Started {
        /// The slot's number.
        agent: usize,
        /// Prompt tokens that need not be computed again, as far as that is known; [`Event::Prefill`] tells of more.
        cached_tokens: usize,
    },
    /// The prompt so far.
    Prefill {
        /// Prompt tokens computed or reused.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
        /// Of those done, the ones that were not computed for this request.
        cached_tokens: usize,
    },
    /// Drafts that the step verified before the tokens that follow.
    Drafted {
        /// How many.
        offered: usize,
        /// Of these, accepted.
        accepted: usize,
    },
    /// New tokens, at least one. An end token is not among them.
    Tokens(Vec<Sampled>),
    /// The request is over.
    Finished(Finish),
    /// The request can't go on.
    Failed(RequestError),
}

/// How a request ended.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// The end token that stopped it, if one did.
    pub end_token: Option<u32>,
    /// Counts and times.
    pub usage: Usage,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The caller went away.
    Cancelled,
}

/// What a request used.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, not computed again.
    pub cached_tokens: usize,
    /// Tokens generated, the end token not counted.
    pub completion_tokens: usize,
    /// Draft tokens that were verified.
    pub drafts_offered: usize,
    /// Draft tokens that were accepted.
    pub drafts_accepted: usize,
    /// From submission to a slot.
    pub queued: Duration,
    /// From a slot to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Why a request was refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RequestError {
    /// The prompt does not fit. Clients know it by the first words.
    #[error(
        "this model's maximum context length is {context} tokens for one agent, but the prompt has {prompt_tokens} and needs room \
         for {max_tokens} more"
    )]
    ContextOverflow {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens asked for, at least 1.
        max_tokens: usize,
        /// Tokens that one agent's context holds.
        context: usize,
    },
    /// A value that the engine can't take.
    #[error("{field}: {message}")]
    Invalid {
        /// The request's field.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// Too many requests wait.
    #[error("{waiting} requests are waiting already; try again in {retry_after_s} s")]
    QueueFull {
        /// Requests in the queue.
        waiting: usize,
        /// A guess at when there is room.
        retry_after_s: u64,
    },
    /// The engine is loading, draining or has failed.
    #[error("the engine is not available: {0}")]
    Unavailable(Arc<str>),
    /// Whoever runs the server ended it.
    #[error("the request was ended by the server's operator after {tokens} tokens")]
    Kicked {
        /// Tokens generated before it.
        tokens: usize,
    },
    /// The text can't be held any longer to what it was held to.
    #[error("the answer can't be held to its form after {tokens} tokens: {message}")]
    Constraint {
        /// Tokens generated before it.
        tokens: usize,
        /// Why.
        message: String,
    },
    /// The model's numbers are not finite any more.
    #[error("the model's output is not a number after {tokens} tokens; the conversation was dropped")]
    NotFinite {
        /// Tokens generated before it.
        tokens: usize,
    },
    /// What the request allows leaves no next token.
    #[error("no token is allowed after {tokens} tokens: what the request allows excludes all of the vocabulary")]
    NothingAllowed {
        /// Tokens generated before it.
        tokens: usize,
    },
}

impl From<(SamplingError, usize)> for RequestError {
    /// What becomes of a request that has no next token after so many.
    fn from((error, tokens): (SamplingError, usize)) -> Self {
        match error {
            SamplingError::NotFinite => Self::NotFinite { tokens },
            SamplingError::NothingAllowed => Self::NothingAllowed { tokens },
        }
    }
}
