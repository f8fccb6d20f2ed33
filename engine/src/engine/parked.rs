//! Conversations without a slot: those that had to give it up, and how they come back.
//!
//! Their states are in host memory. Their pages stay in the pool until it needs them, and then go to host memory a few at a time,
//! the last ones first, so that no step waits for a whole conversation to be copied.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::agent::Agent;
use super::pages::PagePool;
use super::worker::{Worker, forget};
use crate::backend::{BackendError, StateImage};
use crate::request::Event;
use crate::step::{PAGE_TOKENS, PageId};
use crate::store::{Id, reach};

/// Most states inside a conversation's prompt that go with it; the deepest ones.
const SNAPSHOTS: usize = 4;

/// Pages that go to host memory at a time.
const BATCH: usize = 8;

/// A conversation that had to give up its slot: with a request, until there is room again; without one, until it goes on or
/// host memory runs short.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) agent: Agent,
    pub(super) image: Image,
}

/// A conversation's bytes. What is in host memory is shared with the tree of prefixes and with the thread that writes to disk.
#[derive(Debug)]
pub(super) struct Image {
    /// After all of its tokens.
    pub(super) state: Arc<StateImage>,
    /// After so many of them, all multiples of a page within what was read as prompt; ascending.
    pub(super) snapshots: Vec<(usize, Arc<StateImage>)>,
    /// Its first pages, which are still in the pool; it is one of their users.
    pub(super) pool: Vec<PageId>,
    /// Cells of the pages after them, in order.
    pub(super) cells: VecDeque<Arc<Vec<u8>>>,
}

/// Where conversations without a slot are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// With a request.
    Parked,
    /// Without one.
    Shelf,
}

impl Parked {
    pub(super) fn cancelled(&self) -> bool {
        self.agent.run.as_ref().is_none_or(|r| r.events.is_closed())
    }

    /// Where its caller listens.
    pub(super) fn into_events(self) -> Option<UnboundedSender<Event>> {
        self.agent.run.map(|r| r.events)
    }

    /// Bytes of host memory that it takes.
    fn bytes(&self) -> usize {
        // States that the tree of prefixes holds too are counted there.
        let own = self.image.snapshots.iter().map(|(_, state)| state).filter(|state| Arc::strong_count(state) == 1);
        let states = std::iter::once(&self.image.state).chain(own);
        states.map(|s| s.len()).sum::<usize>() + self.image.cells.iter().map(|p| p.len()).sum::<usize>()
    }

    /// Where `prompt` can go on from it: after all of it, or at a snapshot inside what they have in common.
    pub(super) fn reach(&self, prompt: &[u32]) -> Option<usize> {
        let snapshots: Vec<usize> = self.image.snapshots.iter().map(|(at, _)| *at).collect();
        reach(&self.agent.tokens[..self.agent.consumed], &snapshots, prompt)
    }

    /// A copy of its first `at` tokens, where it has a snapshot; it shares the pages that are in the pool.
    pub(super) fn part(&self, at: usize, pages: &mut PagePool) -> Option<Self> {
        let (before, from) =
            self.image.snapshots.split_at(self.image.snapshots.partition_point(|(here, _)| *here < at));
        let (_, state) = from.first().filter(|(here, _)| *here == at)?;
        let in_pool = self.image.pool.len().min(at / PAGE_TOKENS);
        let pool = self.image.pool[..in_pool].to_vec();
        let cells: VecDeque<_> = self.image.cells.iter().take(at / PAGE_TOKENS - in_pool).cloned().collect();
        if pool.len() + cells.len() < at / PAGE_TOKENS {
            return None;
        }
        pool.iter().for_each(|&page| pages.share(page));
        let image = Image { state: Arc::clone(state), snapshots: before.to_vec(), pool, cells };
        let tokens = self.agent.tokens[..at].to_vec();
        Some(Self { agent: Agent { tokens, consumed: at, read: at, clean: true, ..Agent::default() }, image })
    }
}

impl Worker {
    /// Frees pages for `agent`. Where nothing else is left, the request that started last is parked. `false` when that is
    /// `agent` itself: it has to wait for the others.
    pub(super) fn make_room(&mut self, agent: usize) -> Result<bool, BackendError> {
        if self.free_a_page()? || self.move_out(Place::Parked, BATCH)? {
            return Ok(true);
        }
        let running = self.agents.iter().enumerate().filter_map(|(i, a)| Some((i, a.run.as_ref()?.started)));
        match running.max_by_key(|(_, started)| *started) {
            Some((victim, _)) if victim != agent => self.park(victim).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Frees pages that no request needs: of the longest idle conversation, else of a prompt that was read and is not in use.
    pub(super) fn free_a_page(&mut self) -> Result<bool, BackendError> {
        loop {
            let before = self.pages.free();
            if self.move_out(Place::Shelf, BATCH)? {
                // What was read as prompt has another user in the tree of prefixes.
                while self.pages.free() < before + BATCH && self.prefixes.evict(&mut self.pages) {}
                if self.pages.free() > before {
                    return Ok(true);
                }
                continue;
            }
            let idle = self.agents.iter().enumerate().filter(|(_, a)| a.run.is_none() && !a.pages.is_empty());
            let oldest = idle.min_by_key(|(_, a)| a.last_used).map(|(i, _)| i);
            let Some(oldest) = oldest else { return Ok(self.prefixes.evict(&mut self.pages)) };
            self.shelve(oldest)?;
        }
    }

    /// Moves the last pages, `most` at most, of the conversation that has been in a place for longest to host memory. `false` where
    /// none has pages in the pool.
    fn move_out(&mut self, place: Place, most: usize) -> Result<bool, BackendError> {
        let among = self.among(place);
        let Some(entry) = among.iter().position(|p| !p.image.pool.is_empty()) else { return Ok(false) };
        self.move_pages_out(place, entry, most)?;
        Ok(true)
    }

    /// Moves the last pages, `most` at most, of the conversation at `entry` of a place to host memory; if they were the last ones in the
    /// pool, it can go to disk.
    pub(super) fn move_pages_out(&mut self, place: Place, entry: usize, most: usize) -> Result<(), BackendError> {
        let Some(mut parked) = self.among(place).remove(entry) else { return Ok(()) };
        let pages = parked.image.pool.split_off(parked.image.pool.len().saturating_sub(most));
        let saved = self.backend.save_pages(&pages)?;
        saved.into_iter().rev().for_each(|cells| parked.image.cells.push_front(Arc::new(cells)));
        pages.into_iter().for_each(|page| self.pages.release(page));
        if place == Place::Shelf {
            self.keep_parked(&mut parked);
        }
        self.among(place).insert(entry, parked);
        if place == Place::Shelf {
            self.limit_shelf();
        }
        Ok(())
    }

    fn among(&mut self, place: Place) -> &mut VecDeque<Parked> {
        match place {
            Place::Shelf => &mut self.shelf,
            Place::Parked => &mut self.parked,
        }
    }

    /// Drops the oldest conversations on the shelf while they take too much of host memory.
    fn limit_shelf(&mut self) {
        while self.shelf.iter().map(Parked::bytes).sum::<usize>() > self.config.host_cache {
            self.drop_parked(Place::Shelf, 0);
        }
    }

    /// Drops the conversation at `entry` of a place.
    pub(super) fn drop_parked(&mut self, place: Place, entry: usize) {
        if let Some(parked) = self.among(place).remove(entry) {
            self.let_go(parked);
        }
    }

    /// Drops a conversation.
    pub(super) fn let_go(&mut self, parked: Parked) {
        parked.image.pool.into_iter().for_each(|page| self.pages.release(page));
    }

    /// The deepest states inside what an agent's conversation has read.
    pub(super) fn snapshots(&mut self, i: usize) -> Vec<(usize, Arc<StateImage>)> {
        let agent = &self.agents[i];
        let mut states = self.prefixes.states(&agent.tokens[..agent.read.min(agent.consumed)]);
        states.drain(..states.len().saturating_sub(SNAPSHOTS));
        states
    }

    /// Takes an agent's conversation and leaves the agent empty. The pages stay in the pool.
    fn lift(&mut self, i: usize) -> Result<Parked, BackendError> {
        let snapshots = self.snapshots(i);
        let slot = self.agents[i].slot;
        let mut agent = std::mem::replace(&mut self.agents[i], Agent::new(slot));
        let used = agent.consumed.div_ceil(PAGE_TOKENS);
        let state = self.backend.save_state(slot)?;
        agent.pages.drain(used..).for_each(|p| self.pages.release(p));
        let pool = std::mem::take(&mut agent.pages);
        Ok(Parked { agent, image: Image { state, snapshots, pool, cells: VecDeque::new() } })
    }

    /// Parks a running conversation until there is room again.
    fn park(&mut self, i: usize) -> Result<(), BackendError> {
        let mut parked = self.lift(i)?;
        parked.agent.run.iter_mut().for_each(|run| run.parked_at = Some(Instant::now()));
        tracing::info!(agent = i, tokens = parked.agent.consumed, "conversation parked: the pool is full");
        self.parked.push_back(parked);
        Ok(())
    }

    /// Puts an idle agent's conversation on the shelf; the oldest ones there leave when they are too many.
    pub(super) fn shelve(&mut self, i: usize) -> Result<(), BackendError> {
        let facts = self.agents[i].facts.clone();
        if self.agents[i].consumed == 0 {
            forget(&mut self.agents[i], &mut self.pages);
            return Ok(());
        }
        let mut parked = self.lift(i)?;
        // The agent's status goes on to show its last request.
        self.agents[i].facts = facts;
        self.keep_parked(&mut parked);
        self.shelf.push_back(parked);
        self.limit_shelf();
        Ok(())
    }

    /// Empties idle agents and the shelf: of one session's conversations or the one of this name, or of all, and then the
    /// prompts too; on disk likewise. Returns how many conversations there were.
    pub(super) fn forget_conversations(&mut self, which: Option<&str>) -> usize {
        let mut names: Vec<Id> = self.store.as_ref().map(|store| store.forget(which)).unwrap_or_default();
        let matches = |agent: &Agent| {
            let named = |which: &str| agent.kept.is_some_and(|id| id.to_string() == which);
            which.is_none_or(|which| agent.session.as_deref() == Some(which) || named(which))
        };
        let mut nameless = 0;
        let mut count = |agent: &Agent| match agent.kept {
            Some(id) if !names.contains(&id) => names.push(id),
            Some(_) => {}
            None => nameless += 1,
        };
        self.shelf.iter().map(|p| &p.agent).filter(|a| matches(a)).for_each(&mut count);
        while let Some(entry) = self.shelf.iter().position(|p| matches(&p.agent)) {
            self.drop_parked(Place::Shelf, entry);
        }
        for agent in self.agents.iter_mut().filter(|a| a.run.is_none() && a.consumed > 0 && matches(a)) {
            count(agent);
            forget(agent, &mut self.pages);
        }
        while which.is_none() && self.prefixes.evict(&mut self.pages) {}
        names.len() + nameless
    }

    /// Brings a conversation back into the empty agent `i`. `false`, and the conversation is dropped, when the pool has no
    /// room for it.
    pub(super) fn take_back(&mut self, mut parked: Parked, i: usize) -> Result<bool, BackendError> {
        let needed = parked.image.cells.len();
        while self.pages.free() < needed && self.free_a_page()? {}
        if self.pages.free() < needed {
            self.let_go(parked);
            return Ok(false);
        }
        let others = self.agents.iter().chain(self.shelf.iter().map(|p| &p.agent));
        if others.clone().any(|a| a.kept.is_some() && a.kept == parked.agent.kept) {
            // It was brought back from disk twice: from here on they are two.
            (parked.agent.kept, parked.agent.lineage) = (None, None);
        }
        let (state, snapshots) = (Arc::clone(&parked.image.state), parked.image.snapshots.clone());
        self.restore(i, parked)?;
        // What was read as prompt is there for others too.
        let agent = &mut self.agents[i];
        let read = agent.read / PAGE_TOKENS;
        let tokens = &agent.tokens[..read * PAGE_TOKENS];
        self.prefixes.insert(tokens, &mut agent.pages[..read], &mut self.pages);
        let end = (agent.clean && agent.consumed == tokens.len()).then_some((tokens.len(), state));
        for (at, state) in snapshots.into_iter().chain(end).filter(|(at, _)| *at <= tokens.len()) {
            self.prefixes.keep_state(&tokens[..at], state);
        }
        Ok(true)
    }

    /// Puts a conversation into the empty agent `i`; there are pages enough.
    pub(super) fn restore(&mut self, i: usize, parked: Parked) -> Result<(), BackendError> {
        let Parked { agent, image } = parked;
        let slot = self.agents[i].slot;
        self.agents[i] = Agent { slot, ..agent };
        self.agents[i].pages = image.pool;
        let mut loads: Vec<(PageId, &[u8])> = Vec::with_capacity(image.cells.len());
        for cells in &image.cells {
            let Some(page) = self.pages.take() else { break };
            loads.push((page, cells));
            self.agents[i].pages.push(page);
        }
        self.backend.load_pages(&loads)?;
        if let Some(run) = &mut self.agents[i].run {
            // Its draft distributions stayed behind.
            run.proposal.clear();
        }
        self.backend.load_state(slot, &image.state)
    }
}
