//! What is loaded: the engine, the model's text side, and facts about both.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use openjet_engine::constraint::Grammars;
use openjet_engine::engine::Engine;
use openjet_engine::text::{ChatTemplate, Tokenizer};
use openjet_proto::control::ModelStatus;
use openjet_proto::device::{MemoryStatus, TuningStatus};
use tokio::sync::watch;

use crate::api::sampling::SamplingDefaults;
use crate::card::Card;
use crate::counter::Counter;

/// Why running requests must end, if they must.
pub type Cut = Option<Arc<str>>;

/// A loaded model that serves requests.
#[derive(Debug)]
pub struct Serving {
    /// Runs requests.
    pub engine: Engine,
    /// The engine's thread, until somebody waits for it.
    pub thread: Mutex<Option<JoinHandle<()>>>,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to text, if the model has a chat template.
    pub template: Option<ChatTemplate>,
    /// Compiles what answers are held to.
    pub grammars: Grammars,
    /// Facts about the model.
    pub model: ModelStatus,
    /// What was planned for the GPU's memory, if a GPU runs it.
    pub memory: Option<MemoryStatus>,
    /// How its matmuls are shared out there.
    pub tuning: Option<TuningStatus>,
    /// That GPU.
    pub card: Option<Card>,
    /// Most tokens that one agent's context holds.
    pub context: usize,
    /// Sampling values for requests without their own.
    pub defaults: SamplingDefaults,
    /// When it was loaded, in seconds since 1970.
    pub loaded_at: u64,
    /// Bytes of the GPU's memory that unloading gives back.
    pub gpu_bytes: usize,
    /// Its requests.
    pub requests: Counter,
    /// Ends its requests.
    pub cut: watch::Sender<Cut>,
}

impl Serving {
    /// Lets running requests end, within `drain` if there is a limit, tells those that did not `reason`, and gives the memory back. Conversations
    /// that rest go to disk first.
    pub async fn retire(&self, drain: Option<Duration>, reason: &str) {
        if tokio::time::timeout(drain.unwrap_or(Duration::MAX), self.requests.wait_until_none()).await.is_err() {
            tracing::warn!(requests = self.requests.now(), "the time is over; cutting what still runs");
            self.cut.send_replace(Some(reason.into()));
        }
        self.engine.shut_down(reason).await;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of it has been told already.
            let _ended = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}
