//! What is loaded: the engine, the model's text side, and facts about both.

use std::sync::Arc;

use openjet_engine::constraint::Grammars;
use openjet_engine::engine::Engine;
use openjet_engine::text::{ChatTemplate, Tokenizer};
use openjet_proto::control::ModelStatus;

use crate::api::sampling::SamplingDefaults;

/// A loaded model that serves requests.
#[derive(Debug)]
pub struct Serving {
    /// Runs requests.
    pub engine: Engine,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to text, if the model has a chat template.
    pub template: Option<ChatTemplate>,
    /// Compiles what answers are held to.
    pub grammars: Grammars,
    /// Facts about the model.
    pub model: ModelStatus,
    /// Most tokens that one agent's context holds.
    pub context: usize,
    /// Sampling values for requests without their own.
    pub defaults: SamplingDefaults,
    /// When it was loaded, in seconds since 1970.
    pub loaded_at: u64,
}
