//! The engine: one thread that owns a backend and runs steps, and a handle through which everything else talks to it.

mod admit;
mod agent;
mod keep;
mod pace;
mod pages;
mod parked;
mod plan;
mod prefix;
mod queue;
mod recent;
mod share;
mod sharing;
mod status;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use openjet_proto::control::ConversationStatus;
use openjet_proto::{EngineStatus, Health};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use crate::backend::Backend;
use crate::request::{Event, Request, RequestError};
pub use crate::store::StoreOptions;
use crate::text::Tokenizer;
use queue::{OnDisk, Submission, Waiting};
use worker::{Command, Worker};

/// Bytes of host memory for recurrent states to go on from, and as many again for conversations that gave up their slot, where
/// nobody knows how much there is.
pub const DEFAULT_HOST_CACHE: usize = 1 << 30;

/// Most prompt tokens in one step without a setting: whoever comes meanwhile waits for its end.
const LARGEST_CHUNK: usize = 1024;

/// How the engine works, apart from its backend.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Agents at the start; the backend's slots are the most there can be.
    pub agents: usize,
    /// Most tokens in one agent's context: the smaller of the pool and the model's own limit.
    pub context: usize,
    /// The model's end tokens.
    pub end_tokens: Vec<u32>,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Deepest draft; 0 switches drafts off.
    pub draft: usize,
    /// Drafts by prompt lookup where the text repeats itself.
    pub lookup: bool,
    /// Deepest draft by prompt lookup.
    pub lookup_draft: usize,
    /// Always draft as deep as allowed, whatever the acceptance (for measurements).
    pub fixed_depth: bool,
    /// Requests that may wait for an agent.
    pub queue: usize,
    /// Most prompt tokens in one step, a multiple of 64; without it as many as the backend reads at once, but 1,024 at most.
    pub chunk: Option<usize>,
    /// Longest that somebody who writes should wait for the next tokens while prompts are read.
    pub step_goal: Duration,
    /// A prompt leaves a recurrent state to go on from at every multiple of this, itself a multiple of 64.
    pub snapshot_every: usize,
    /// Most bytes of host memory for such states, and as many again for conversations that gave up their slot.
    pub host_cache: usize,
    /// Where conversations are kept on disk, if they are.
    pub store: Option<StoreOptions>,
    /// Lets the status show the end of each agent's text, which this puts into words.
    pub show_text: Option<Arc<Tokenizer>>,
}

impl EngineConfig {
    /// Sensible values for a model with this context, vocabulary and end tokens.
    #[must_use]
    pub fn new(context: usize, vocab: usize, end_tokens: Vec<u32>) -> Self {
        Self {
            agents: 4,
            context,
            end_tokens,
            vocab,
            draft: 4,
            lookup: true,
            lookup_draft: 8,
            fixed_depth: false,
            queue: 64,
            chunk: None,
            step_goal: Duration::from_millis(80),
            snapshot_every: 2048,
            host_cache: DEFAULT_HOST_CACHE,
            store: None,
            show_text: None,
        }
    }

    /// Most prompt tokens in one step on a backend.
    fn chunk_on(&self, backend: &dyn Backend) -> usize {
        self.chunk.unwrap_or_else(|| backend.prompt_rows().min(LARGEST_CHUNK))
    }
}

/// A handle to the engine; clones are cheap.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
    status: Arc<ArcSwap<EngineStatus>>,
    next_id: Arc<AtomicU64>,
    turns: Arc<AtomicU64>,
    waiting: Waiting,
    vocab: usize,
    context: usize,
}

/// A request on its way. Dropping it cancels the request within a step.
#[derive(Debug)]
pub struct Generation {
    /// Number of the request, unique in this process.
    pub id: u64,
    /// What happens to it.
    pub events: UnboundedReceiver<Event>,
}

impl Engine {
    /// Starts the engine's thread. It ends when every handle is gone and nothing runs, or when the backend fails.
    ///
    /// # Errors
    /// When the configuration can't work with this backend, or the thread can't be started.
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig) -> Result<(Self, JoinHandle<()>), RequestError> {
        let invalid = |field, message: String| Err(RequestError::Invalid { field, message });
        let options = backend.options();
        if config.agents == 0 || config.agents > options.slots {
            return invalid("agents", format!("{} is not between 1 and {}", config.agents, options.slots));
        }
        let chunk = config.chunk_on(&*backend);
        if chunk == 0 || !chunk.is_multiple_of(crate::step::PAGE_TOKENS) {
            return invalid("chunk", format!("{chunk} is not a multiple of {}", crate::step::PAGE_TOKENS));
        }
        if config.snapshot_every == 0 || !config.snapshot_every.is_multiple_of(crate::step::PAGE_TOKENS) {
            let message = format!("{} is not a multiple of {}", config.snapshot_every, crate::step::PAGE_TOKENS);
            return invalid("snapshot_every", message);
        }
        if config.draft > options.draft_max {
            return invalid("draft", format!("{} is deeper than the backend's {}", config.draft, options.draft_max));
        }
        let (commands, inbox) = mpsc::channel();
        let (vocab, context, waiting) = (config.vocab, config.context, Waiting::new(config.queue));
        let worker = Worker::new(backend, config, inbox);
        let (status, turns) = (worker.status(), worker.turns());
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || worker.run())
            .map_err(|e| RequestError::Unavailable(format!("its thread can't be started: {e}").into()))?;
        let engine = Self { commands, status, next_id: Arc::new(AtomicU64::new(1)), turns, waiting, vocab, context };
        Ok((engine, thread))
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// When the request can't be served: [`RequestError`] says why. Nothing was started then.
    pub fn submit(&self, request: Request) -> Result<Generation, RequestError> {
        self.check(&request)?;
        let status = self.status.load();
        match &status.health {
            Health::Ready => {}
            Health::Loading { detail } => return Err(RequestError::Unavailable(detail.as_str().into())),
            Health::Draining => return Err(RequestError::Unavailable("it is draining before a stop".into())),
            Health::Unloaded { .. } => return Err(RequestError::Unavailable("no model is loaded".into())),
            Health::Failed { reason } => return Err(RequestError::Unavailable(reason.as_str().into())),
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (events, receiver) = unbounded_channel();
        let ticket = self.waiting.enter()?;
        let disk = OnDisk::default();
        let submission = Box::new(Submission { id, request, events, ticket, at: Instant::now(), disk });
        let gone = || RequestError::Unavailable("its thread has ended".into());
        self.commands.send(Command::Submit(submission)).map_err(|_| gone())?;
        Ok(Generation { id, events: receiver })
    }

    /// The engine as of its latest step.
    #[must_use]
    pub fn status(&self) -> Arc<EngineStatus> {
        self.status.load_full()
    }

    /// How often the thread has gone round its loop: it grows several times a second, also while there is nothing to do, for as
    /// long as no step hangs.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Ends the request that an agent serves, with an error that says so; what was written stays as its conversation. `false`
    /// when the agent served none.
    ///
    /// # Errors
    /// With the agents that there are when there is no such agent, or when the engine has ended.
    pub async fn kick(&self, agent: usize) -> Result<bool, String> {
        self.ask(|reply| Command::Kick { agent, reply }).await?
    }

    /// Ends the engine: running and waiting requests fail with `reason`, conversations that rest go to disk, and its memory is
    /// given back when the thread has ended, which its handle tells.
    pub async fn shut_down(&self, reason: &str) {
        // Either is an error only where the thread has ended already.
        let _ = self.keep().await;
        let _ = self.ask(|reply| Command::ShutDown { reason: reason.into(), reply }).await;
    }

    /// Brings conversations that rest to disk, then leaves the folder to another engine; nothing is kept from then on.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn release_store(&self) -> Result<(), String> {
        self.keep().await?;
        self.ask(|reply| Command::ReleaseStore { reply }).await
    }

    /// Changes the number of agents while requests run: growing takes effect at once, shrinking when the agents beyond the new
    /// number have finished their requests.
    ///
    /// # Errors
    /// With the possible range when `agents` is outside it.
    pub async fn set_agents(&self, agents: usize) -> Result<usize, String> {
        self.ask(|reply| Command::SetAgents { agents, reply }).await?
    }

    /// Forgets conversations that serve no request, in slots, in host memory and on disk: those with this name or session, or all
    /// and every prompt that was read. Returns how many conversations were forgotten. Prompts are shared by content and have no
    /// session: they are forgotten with all only.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn forget(&self, which: Option<String>) -> Result<usize, String> {
        let forgotten = self.ask(|reply| Command::Forget { which, reply }).await?;
        // The files are gone when the disk has come so far.
        self.keep().await?;
        Ok(forgotten)
    }

    /// The conversations that are kept on disk, most recently used first.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn conversations(&self) -> Result<Vec<ConversationStatus>, String> {
        self.ask(|reply| Command::List { reply }).await
    }

    /// Brings conversations that rest to disk at once. Resolves when they are there.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn keep(&self) -> Result<(), String> {
        self.ask(|reply| Command::Keep { reply }).await
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, String> {
        let (reply, answer) = oneshot::channel();
        let gone = "the engine has ended";
        self.commands.send(command(reply)).map_err(|_| gone)?;
        answer.await.map_err(|_| gone.to_owned())
    }

    /// Refuses new requests from now on and resolves when the running and waiting ones are done.
    pub async fn drain(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Drain { reply }).is_ok() {
            // An error means that the thread has ended: nothing runs any more.
            let _ = answer.await;
        }
    }

    fn check(&self, request: &Request) -> Result<(), RequestError> {
        let invalid = |field, message: String| Err(RequestError::Invalid { field, message });
        if request.prompt.is_empty() {
            return invalid("prompt", "it has no tokens".into());
        }
        if let Some(token) = request.prompt.iter().chain(&request.end_tokens).find(|&&t| t as usize >= self.vocab) {
            return invalid("prompt", format!("token {token} is not below the vocabulary's {}", self.vocab));
        }
        request.params.validate_for(self.vocab)?;
        if request.max_tokens == Some(0) {
            return invalid("max_tokens", "it must be at least 1".into());
        }
        if request.prompt.len() >= self.context {
            return Err(RequestError::ContextOverflow {
                prompt_tokens: request.prompt.len(),
                max_tokens: request.max_tokens.map_or(1, |n| n as usize),
                context: self.context,
            });
        }
        Ok(())
    }
}
