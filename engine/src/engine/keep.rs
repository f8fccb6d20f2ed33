//! What goes to disk and when, and what comes back from there.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::agent::Agent;
use super::parked::{Image, Parked, Place};
use super::queue::OnDisk;
use super::worker::Worker;
use crate::backend::{BackendError, StateImage};
use crate::step::PAGE_TOKENS;
use crate::store::{About, Conversation, Id, Key, PartKind, Payload, Piece, Plan};

/// Shorter conversations are read again faster than they are fetched; nor are fewer tokens worth a fetch.
const WORTH_KEEPING: usize = 256;

/// Bytes that are copied off the device between two steps.
const PIECE: usize = 8 << 20;

/// Pages that are copied off the device at once.
const AT_ONCE: usize = 4;

/// Longest wait for the disk while there is nothing else to do.
const PATIENCE: Duration = Duration::from_millis(5);

/// An idle conversation that is being copied, a piece between two steps, for the thread that writes.
#[derive(Debug)]
pub(super) struct Copying {
    agent: usize,
    /// Tells that the conversation is still the one that it was.
    last_used: u64,
    id: Id,
    plan: Plan,
    snapshots: Vec<(usize, Arc<StateImage>)>,
    /// Parts that are done, and the pages of the next one.
    parts: Vec<Payload>,
    pages: Payload,
}

/// What is said of a conversation on disk; its identity and parts are the store's to say.
fn about(agent: &Agent, lineage: u64) -> About {
    About {
        identity: Key([0; 16]),
        session: agent.session.clone(),
        lineage,
        read: agent.read,
        history: agent.history.min(agent.consumed),
        parts: Vec::new(),
    }
}

impl Worker {
    /// Copies a piece of a conversation that has rested for a while, or gave up its slot.
    pub(super) fn keep_some(&mut self) -> Result<(), BackendError> {
        let Some(store) = &self.store else { return Ok(()) };
        if self.copying.is_none() && store.waiting() <= self.config.host_cache {
            let settle = store.settle;
            let rested = |a: &Agent| a.idle_since.is_some_and(|since| since.elapsed() >= settle);
            if let Some(i) = self.agents.iter().position(|a| a.run.is_none() && !a.saved && rested(a)) {
                self.start_copying(i);
            }
        }
        if self.copying.is_none()
            && let Some(entry) = self.unkept()
        {
            return self.move_pages_out(Place::Shelf, entry, AT_ONCE);
        }
        self.copy(PIECE)
    }

    /// A conversation on the shelf that is to go to disk, and is still in the pool.
    fn unkept(&self) -> Option<usize> {
        self.store.as_ref().filter(|store| store.waiting() <= self.config.host_cache)?;
        let worth = |p: &Parked| !p.agent.saved && p.agent.consumed >= WORTH_KEEPING && !p.image.pool.is_empty();
        self.shelf.iter().position(worth)
    }

    /// Copies all that rests, at once, and answers when it is on disk.
    pub(super) fn keep_all(&mut self, reply: oneshot::Sender<()>) -> Result<(), BackendError> {
        if self.store.is_none() {
            // Whoever asked may have gone away.
            let _ = reply.send(());
            return Ok(());
        }
        self.copy(usize::MAX)?;
        for i in 0..self.agents.len() {
            if self.agents[i].run.is_none() && !self.agents[i].saved {
                self.start_copying(i);
                self.copy(usize::MAX)?;
            }
        }
        while let Some(entry) = self.unkept() {
            self.move_pages_out(Place::Shelf, entry, usize::MAX)?;
        }
        if let Some(store) = &self.store {
            store.sync(reply);
        }
        Ok(())
    }

    /// Whether something is being copied: then the engine does not rest.
    pub(super) fn is_copying(&self) -> bool {
        self.copying.is_some() || self.unkept().is_some()
    }

    fn start_copying(&mut self, i: usize) {
        if self.agents[i].consumed < WORTH_KEEPING {
            self.agents[i].saved = true;
            return;
        }
        let snapshots = self.snapshots(i);
        let agent = &mut self.agents[i];
        let Some((id, plan)) = plan(&mut self.store, agent, &snapshots) else { return };
        let last_used = agent.last_used;
        let (parts, pages) = (Vec::new(), Vec::new());
        self.copying = Some(Copying { agent: i, last_used, id, plan, snapshots, parts, pages });
    }

    /// Goes on copying, up to about `budget` bytes; what is whole goes to the thread that writes.
    fn copy(&mut self, budget: usize) -> Result<(), BackendError> {
        let Some(mut copying) = self.copying.take() else { return Ok(()) };
        let Some(agent) = self.agents.get_mut(copying.agent) else { return Ok(()) };
        if agent.run.is_some() || agent.last_used != copying.last_used || agent.consumed == 0 {
            // It went on: there will be a newer version to write.
            return Ok(());
        }
        let mut copied = 0;
        while let Some(&part) = copying.plan.missing.get(copying.parts.len()) {
            if copied >= budget {
                self.copying = Some(copying);
                return Ok(());
            }
            match copying.plan.kind(part) {
                PartKind::Pages { first, count } => {
                    let done = copying.pages.len();
                    let some = &agent.pages[first + done..first + count.min(done + AT_ONCE)];
                    for cells in self.backend.save_pages(some)? {
                        copied += cells.len();
                        copying.pages.push(Piece::Page(Arc::new(cells)));
                    }
                    if copying.pages.len() == count {
                        copying.parts.push(std::mem::take(&mut copying.pages));
                    }
                }
                PartKind::Snapshot { at } => copying.parts.push(snapshot(&copying.snapshots, at)),
                PartKind::End => {
                    let state = self.backend.save_state(agent.slot)?;
                    copied += state.len();
                    copying.parts.push(vec![Piece::State(state)]);
                }
            }
        }
        agent.saved = true;
        if let Some(store) = &self.store {
            store.save(copying.id, copying.plan, copying.parts);
        }
        Ok(())
    }

    /// Writes a conversation that is in host memory as a whole, if that has not been done.
    pub(super) fn keep_parked(&mut self, parked: &mut Parked) {
        let Parked { agent, image } = parked;
        let busy = self.store.as_ref().is_none_or(|store| store.waiting() > self.config.host_cache);
        if agent.saved || busy || agent.consumed < WORTH_KEEPING || !image.pool.is_empty() {
            return;
        }
        agent.saved = true;
        let Some((id, plan)) = plan(&mut self.store, agent, &image.snapshots) else { return };
        let payload = |&part: &usize| match plan.kind(part) {
            PartKind::Pages { first, count } => {
                image.cells.range(first..first + count).map(|cells| Piece::Page(Arc::clone(cells))).collect()
            }
            PartKind::Snapshot { at } => snapshot(&image.snapshots, at),
            PartKind::End => vec![Piece::State(Arc::clone(&image.state))],
        };
        let parts = plan.missing.iter().map(payload).collect();
        if let Some(store) = &self.store {
            store.save(id, plan, parts);
        }
    }

    /// Asks the disk for the conversation that the request at `place` of the queue goes on from, where that is worth it. The
    /// request then waits for the answer.
    pub(super) fn look_on_disk(&mut self, place: usize) -> bool {
        if self.store.is_none() || !matches!(self.queue[place].disk, OnDisk::Unasked) {
            return false;
        }
        let have = self.reach_in_memory(place);
        let (Some(store), submission) = (&self.store, &mut self.queue[place]) else { return false };
        submission.disk = OnDisk::Nothing;
        let Some((id, at)) = store.best(&submission.request.prompt) else { return false };
        if at < have + WORTH_KEEPING || at > self.pages.total() * PAGE_TOKENS {
            return false;
        }
        store.fetch(submission.id, id, at);
        submission.disk = OnDisk::Asked;
        true
    }

    /// Hands what came from disk to the requests that wait for it.
    pub(super) fn take_fetched(&mut self) {
        if !self.queue.iter().any(|s| matches!(s.disk, OnDisk::Asked)) {
            return;
        }
        let runs = self.agents.iter().any(|a| a.run.is_some()) || !self.parked.is_empty();
        let mut patience = if runs { Duration::ZERO } else { PATIENCE };
        while let Some(fetched) = self.store.as_ref().and_then(|store| store.fetched(patience)) {
            patience = Duration::ZERO;
            // A request that was cancelled meanwhile is not there any more.
            if let Some(submission) = self.queue.iter_mut().find(|s| s.id == fetched.request) {
                submission.disk = match fetched.conversation {
                    Some(conversation) => OnDisk::Found(Box::new(Parked::from(*conversation))),
                    None => OnDisk::Nothing,
                };
            }
        }
    }
}

/// What must be written of a conversation, and its name on disk.
fn plan(
    store: &mut Option<crate::store::Store>,
    agent: &mut Agent,
    snapshots: &[(usize, Arc<StateImage>)],
) -> Option<(Id, Plan)> {
    let store = store.as_mut()?;
    let id = *agent.kept.get_or_insert_with(|| store.new_id());
    let lineage = *agent.lineage.get_or_insert_with(|| store.new_id().0);
    let positions: Vec<usize> = snapshots.iter().map(|(at, _)| *at).collect();
    Some((id, store.plan(about(agent, lineage), agent.tokens[..agent.consumed].to_vec(), &positions)))
}

fn snapshot(snapshots: &[(usize, Arc<StateImage>)], at: usize) -> Payload {
    snapshots.iter().filter(|(here, _)| *here == at).map(|(_, state)| Piece::State(Arc::clone(state))).collect()
}

impl From<Conversation> for Parked {
    fn from(conversation: Conversation) -> Self {
        let Conversation { id, about, tokens, state, snapshots, pages } = conversation;
        let consumed = tokens.len();
        let agent = Agent {
            session: about.session,
            consumed,
            read: about.read,
            clean: about.read == consumed,
            history: about.history,
            kept: id,
            lineage: id.map(|_| about.lineage),
            saved: true,
            tokens,
            ..Agent::default()
        };
        let image = Image {
            state: Arc::new(StateImage::new(state)),
            snapshots: snapshots.into_iter().map(|(at, state)| (at, Arc::new(StateImage::new(state)))).collect(),
            pool: Vec::new(),
            cells: pages.into_iter().map(Arc::new).collect(),
        };
        Self { agent, image }
    }
}
