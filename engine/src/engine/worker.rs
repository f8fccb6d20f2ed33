//! The engine's thread: takes commands, gives requests to agents, runs steps, hands out what came of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use openjet_proto::control::ConversationStatus;
use openjet_proto::{EngineStatus, Health};
use tokio::sync::oneshot;

use super::EngineConfig;
use super::agent::Agent;
use super::keep::Copying;
use super::pace::{ChunkRows, Pace};
use super::pages::PagePool;
use super::parked::{Parked, Place};
use super::plan::{Part, plan};
use super::prefix::PrefixTree;
use super::queue::{OnDisk, Submission};
use super::recent::Recent;
use super::share::PoolMap;
use super::status::Totals;
use crate::backend::{Backend, BackendError};
use crate::request::{Event, FinishReason, RequestError};
use crate::step::{PAGE_TOKENS, SegmentOutput, Step};
use crate::store::{ImageSizes, Store};

/// What the handle asks of the thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Serve a request.
    Submit(Box<Submission>),
    /// Change the number of agents.
    SetAgents { agents: usize, reply: oneshot::Sender<Result<usize, String>> },
    /// Forget conversations without a request: those with this name or session, or all and every prompt that was read.
    Forget { which: Option<String>, reply: oneshot::Sender<usize> },
    /// List the conversations on disk.
    List { reply: oneshot::Sender<Vec<ConversationStatus>> },
    /// Bring to disk what rests; answer when it and all before it is there.
    Keep { reply: oneshot::Sender<()> },
    /// End the request of an agent; answer whether it had one.
    Kick { agent: usize, reply: oneshot::Sender<Result<bool, String>> },
    /// Let the folder of conversations go.
    ReleaseStore { reply: oneshot::Sender<()> },
    /// Fail what runs and waits, for this reason, and end.
    ShutDown { reason: Arc<str>, reply: oneshot::Sender<()> },
    /// Refuse new requests; answer when nothing runs or waits any more.
    Drain { reply: oneshot::Sender<()> },
}

/// How often an idle engine looks for callers that have gone away.
const IDLE_TICK: Duration = Duration::from_millis(200);

/// The thread's state.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) backend: Box<dyn Backend>,
    pub(super) config: EngineConfig,
    inbox: Receiver<Command>,
    pub(super) agents: Vec<Agent>,
    /// Agents wanted; those beyond it finish what they have and leave.
    pub(super) wanted: usize,
    pub(super) pages: PagePool,
    pub(super) queue: VecDeque<Submission>,
    pub(super) parked: VecDeque<Parked>,
    /// Conversations without a request that gave up their slot, oldest first.
    pub(super) shelf: VecDeque<Parked>,
    pub(super) prefixes: PrefixTree,
    pub(super) store: Option<Store>,
    pub(super) copying: Option<Copying>,
    pace: Pace,
    /// When the latest tokens were handed out, if somebody was left writing.
    handed_out: Option<Instant>,
    pub(super) totals: Totals,
    /// Steps as they are run.
    pub(super) recent_steps: Recent,
    pub(super) pool: PoolMap,
    draining: Vec<oneshot::Sender<()>>,
    pub(super) health: Health,
    pub(super) published: Arc<ArcSwap<EngineStatus>>,
    turns: Arc<AtomicU64>,
    /// The engine is to end.
    over: bool,
}

impl Worker {
    pub(super) fn new(mut backend: Box<dyn Backend>, config: EngineConfig, inbox: Receiver<Command>) -> Self {
        let options = backend.options();
        let store = open_store(&mut *backend, &config);
        let mut worker = Self {
            pages: PagePool::new(options.pages),
            agents: (0..config.agents).map(Agent::new).collect(),
            wanted: config.agents,
            pace: Pace::new(config.chunk_on(&*backend), config.step_goal),
            handed_out: None,
            queue: VecDeque::new(),
            parked: VecDeque::new(),
            shelf: VecDeque::new(),
            prefixes: PrefixTree::new(config.host_cache),
            store,
            copying: None,
            totals: Totals::default(),
            recent_steps: Recent::default(),
            pool: PoolMap::default(),
            draining: Vec::new(),
            health: Health::Ready,
            published: Arc::new(ArcSwap::from_pointee(super::status::empty())),
            turns: Arc::default(),
            over: false,
            backend,
            config,
            inbox,
        };
        worker.publish();
        worker
    }

    pub(super) fn status(&self) -> Arc<ArcSwap<EngineStatus>> {
        Arc::clone(&self.published)
    }

    pub(super) fn turns(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.turns)
    }

    /// Runs until every handle is gone and nothing is left to do, or the backend fails.
    pub(super) fn run(mut self) {
        loop {
            match self.turn() {
                Ok(true) => self.publish(),
                Ok(false) => return,
                Err(error) => return self.fail(&error),
            }
        }
    }

    /// Does what there is to do, one step at most. `false` when the engine should end.
    fn turn(&mut self) -> Result<bool, BackendError> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        if !self.take_commands()? || self.over {
            return Ok(false);
        }
        self.drop_cancelled()?;
        self.take_fetched();
        self.admit()?;
        self.share_prompts()?;
        self.step()?;
        self.keep_some()?;
        Ok(true)
    }

    fn idle(&self) -> bool {
        self.queue.is_empty() && self.parked.is_empty() && self.agents.iter().all(|a| a.run.is_none())
    }

    /// Takes what has arrived, waiting while there is nothing to do. `false` when the engine should end.
    fn take_commands(&mut self) -> Result<bool, BackendError> {
        if self.idle() {
            self.draining.drain(..).for_each(|reply| {
                // Whoever asked may have gone away.
                let _ = reply.send(());
            });
            let patience = if self.is_copying() { Duration::ZERO } else { IDLE_TICK };
            match self.inbox.recv_timeout(patience) {
                Ok(command) => self.obey(command)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
        while let Ok(command) = self.inbox.try_recv() {
            self.obey(command)?;
        }
        Ok(true)
    }

    fn obey(&mut self, command: Command) -> Result<(), BackendError> {
        match command {
            Command::Submit(submission) => self.queue.push_back(*submission),
            Command::SetAgents { agents, reply } => {
                let most = self.backend.options().slots;
                let answer = if (1..=most).contains(&agents) {
                    self.wanted = agents;
                    self.resize()?;
                    Ok(agents)
                } else {
                    Err(format!("{agents} agents are not possible here; choose 1 to {most}"))
                };
                self.publish();
                let _ = reply.send(answer);
            }
            Command::Forget { which, reply } => {
                let forgotten = self.forget_conversations(which.as_deref());
                self.publish();
                let _ = reply.send(forgotten);
            }
            Command::List { reply } => {
                let _ = reply.send(self.store.as_ref().map(Store::list).unwrap_or_default());
            }
            Command::Keep { reply } => self.keep_all(reply)?,
            Command::Kick { agent, reply } => {
                let answer = self.kick(agent)?;
                self.publish();
                let _ = reply.send(answer);
            }
            Command::ReleaseStore { reply } => {
                self.copying = None;
                self.store = None;
                // Nobody will bring what these wait for.
                for waiting in self.queue.iter_mut().filter(|waiting| !waiting.ready()) {
                    waiting.disk = OnDisk::Nothing;
                }
                let _ = reply.send(());
            }
            Command::ShutDown { reason, reply } => {
                self.over = true;
                self.health = Health::Draining;
                self.publish();
                self.fail_all(&reason);
                let _ = reply.send(());
            }
            Command::Drain { reply } => {
                self.health = Health::Draining;
                self.draining.push(reply);
                self.publish();
            }
        }
        Ok(())
    }

    /// Ends an agent's request as its operator wishes; the conversation stays up to what the slot's state has seen.
    fn kick(&mut self, agent: usize) -> Result<Result<bool, String>, BackendError> {
        let there = self.agents.len();
        let Some(kicked) = self.agents.get_mut(agent) else {
            return Ok(Err(format!("there is no agent {agent}; they are 0 to {}", there.saturating_sub(1))));
        };
        let served = kicked.end_with(RequestError::Kicked { tokens: kicked.facts.generated });
        if served {
            self.totals.requests_finished += 1;
            self.agents[agent].last_used = self.totals.requests_finished;
            self.resize()?;
        }
        Ok(Ok(served))
    }

    /// Grows at once; shrinks by the idle agents at the end of the list, whose conversations go to the shelf.
    pub(super) fn resize(&mut self) -> Result<(), BackendError> {
        while self.agents.len() < self.wanted {
            self.agents.push(Agent::new(self.agents.len()));
        }
        while self.agents.len() > self.wanted && self.agents.last().is_some_and(|a| a.run.is_none()) {
            self.shelve(self.agents.len() - 1)?;
            self.agents.pop();
        }
        Ok(())
    }

    /// Ends what nobody listens to any more: in the queue, parked or running.
    fn drop_cancelled(&mut self) -> Result<(), BackendError> {
        let before = self.queue.len() + self.parked.len();
        self.queue.retain(|s| !s.events.is_closed());
        while let Some(entry) = self.parked.iter().position(Parked::cancelled) {
            self.drop_parked(Place::Parked, entry);
        }
        let mut gone = before - self.queue.len() - self.parked.len();
        // From the end: agents that leave are the last ones, idle ones before them included.
        for i in (0..self.agents.len()).rev() {
            let run = self.agents.get(i).and_then(|agent| agent.run.as_ref());
            if run.is_some_and(|run| run.events.is_closed()) {
                self.finish(i, FinishReason::Cancelled, None)?;
                gone += 1;
            }
        }
        self.totals.requests_cancelled += gone as u64;
        Ok(())
    }

    /// Composes and runs one step, and hands out its results.
    fn step(&mut self) -> Result<(), BackendError> {
        let waited = self.handed_out.take().map(|at| at.elapsed());
        let steps = self.totals.steps as usize;
        let parts =
            plan(&mut self.agents, &self.config, &self.pace, self.backend.cost(), steps, waited.unwrap_or_default());
        let parts = self.find_pages(parts)?;
        if parts.is_empty() {
            // Agents that write may lack pages while a prompt that could go on has had its share.
            self.pace.forgive();
            return Ok(());
        }
        let segments = parts.iter().filter_map(|p| p.segment(&self.agents[p.agent])).collect();
        let began = Instant::now();
        let outputs = self.backend.step(&Step { segments })?;
        let took = began.elapsed();
        let writes = parts.iter().any(|p| !p.prompt);
        let chunk = parts.iter().find(|p| p.prompt).map(|p| {
            let from = self.agents[p.agent].consumed;
            ChunkRows::between(from, from + p.tokens.len())
        });
        let chunk = chunk.unwrap_or_default();
        self.pace.observe(took, writes.then(|| waited.unwrap_or_default()), chunk);
        self.handed_out = parts.iter().any(Part::samples).then(Instant::now);
        self.totals.steps += 1;
        self.recent_steps.add(Instant::now(), 1);
        self.totals.prompt_tokens_computed += chunk.count() as u64;
        for (part, output) in parts.into_iter().zip(outputs) {
            self.apply(&part, output)?;
        }
        Ok(())
    }

    /// Makes sure that every part has its pages; parts that can't have them sit this step out.
    fn find_pages(&mut self, parts: Vec<Part>) -> Result<Vec<Part>, BackendError> {
        let mut ready = Vec::with_capacity(parts.len());
        for part in parts {
            if self.agents[part.agent].run.is_none() {
                // Parked to make room for another part of this step.
                continue;
            }
            let reach = part.reach(&self.agents[part.agent]).div_ceil(PAGE_TOKENS);
            let mut served = true;
            while self.agents[part.agent].pages.len() < reach {
                match self.pages.take() {
                    Some(page) => self.agents[part.agent].pages.push(page),
                    None if self.make_room(part.agent)? => {}
                    None => {
                        served = false;
                        break;
                    }
                }
            }
            if served {
                ready.push(part);
            }
        }
        ready.retain(|p| self.agents[p.agent].run.is_some());
        Ok(ready)
    }

    fn apply(&mut self, part: &Part, output: SegmentOutput) -> Result<(), BackendError> {
        let agent = &mut self.agents[part.agent];
        if let Some(error) = output.dead_end {
            let tokens = agent.facts.generated;
            tracing::error!(agent = agent.slot, tokens, "{error}; the conversation is dropped");
            if let Some(run) = agent.run.take() {
                run.send(Event::Failed(RequestError::from((error, tokens))));
            }
            self.totals.requests_finished += 1;
            forget(agent, &mut self.pages);
            self.backend.reset_slot(self.agents[part.agent].slot)?;
            return self.resize();
        }
        agent.consumed += if part.prompt { part.tokens.len() } else { output.accepted + 1 };
        agent.clean &= part.prompt;
        self.keep_prefix(part.agent)?;
        let agent = &mut self.agents[part.agent];
        let Some(run) = agent.run.as_mut() else { return Ok(()) };
        run.proposal = output.drafts;
        if part.prompt {
            let (total, cached_tokens) = (run.request.prompt.len(), agent.facts.cached_tokens);
            run.send(Event::Prefill { done: agent.consumed, total, cached_tokens });
        }
        if output.tokens.is_empty() {
            return Ok(());
        }
        run.prefill = false;
        self.totals.tokens_generated += output.tokens.len() as u64;
        let end = agent.take(output.tokens, &part.drafts, output.accepted, self.config.lookup);
        if agent.fail_constraint() {
            self.totals.requests_finished += 1;
            self.resize()?;
        } else if let Some((reason, token)) = end {
            self.finish(part.agent, reason, token)?;
        }
        Ok(())
    }

    fn finish(&mut self, agent: usize, reason: FinishReason, end_token: Option<u32>) -> Result<(), BackendError> {
        self.totals.requests_finished += 1;
        self.agents[agent].last_used = self.totals.requests_finished;
        let ended = self.agents[agent].finish(reason, end_token);
        let resized = self.resize();
        // Before the caller hears of it: whoever asks then finds it counted.
        self.publish();
        if let Some((run, finish)) = ended {
            run.send(Event::Finished(finish));
        }
        resized
    }

    /// The backend can't go on: everybody is told why, and the thread ends.
    fn fail(mut self, error: &BackendError) {
        tracing::error!(%error, "the engine has failed");
        let reason: Arc<str> = error.to_string().into();
        self.health = Health::Failed { reason: reason.to_string() };
        // Before anybody hears of it: whoever asks then is told the same.
        self.publish();
        self.fail_all(&reason);
    }

    /// Fails every request that runs, is parked or waits.
    fn fail_all(&mut self, reason: &Arc<str>) {
        let running = self.agents.iter_mut().filter_map(|a| a.run.take()).map(|r| r.events);
        let parked = self.parked.drain(..).filter_map(Parked::into_events);
        for events in running.chain(parked).chain(self.queue.drain(..).map(|s| s.events)) {
            // Callers that have gone away need no answer.
            let _ = events.send(Event::Failed(RequestError::Unavailable(Arc::clone(reason))));
        }
    }
}

/// Gives an agent's pages back and empties its conversation.
pub(super) fn forget(agent: &mut Agent, pages: &mut PagePool) {
    agent.pages.drain(..).for_each(|page| pages.release(page));
    agent.tokens.clear();
    (agent.consumed, agent.read, agent.history) = (0, 0, 0);
    agent.clean = true;
    agent.session = None;
    (agent.kept, agent.lineage, agent.idle_since) = (None, None, None);
}

/// The store of conversations, if there is to be one and it can be used.
fn open_store(backend: &mut dyn Backend, config: &EngineConfig) -> Option<Store> {
    let options = config.store.as_ref()?;
    let opened = backend.save_state(0).map_err(|error| error.to_string()).and_then(|state| {
        let page = backend.save_page(0).map_err(|error| error.to_string())?;
        let layout = format!("{}, {:?} cells", backend.layout(), backend.options().kv);
        Store::open(options, &layout, ImageSizes { state: state.len(), page: page.len() })
    });
    opened.inspect_err(|reason| tracing::warn!("conversations are not kept on disk: {reason}")).ok()
}
