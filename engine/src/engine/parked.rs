//! Conversations in host memory, and how agents come by slots and pages.

use tokio::sync::mpsc::UnboundedSender;

use super::agent::Agent;
use super::worker::{Worker, forget};
use crate::backend::{BackendError, StateImage};
use crate::request::{Event, Request};
use crate::step::PAGE_TOKENS;

/// A conversation that had to give up its slot and pages: with a request, until there is room again; without one, until
/// it goes on or host memory runs short.
#[derive(Debug)]
pub(super) struct Parked {
    agent: Agent,
    state: StateImage,
    pages: Vec<Vec<u8>>,
}

/// Where a request finds the conversation that it goes on from.
#[derive(Clone, Copy, Debug)]
enum Found {
    Agent(usize),
    Shelf(usize),
}

impl Parked {
    pub(super) fn cancelled(&self) -> bool {
        self.agent.run.as_ref().is_none_or(|r| r.events.is_closed())
    }

    /// Where its caller listens.
    pub(super) fn into_events(self) -> Option<UnboundedSender<Event>> {
        self.agent.run.map(|r| r.events)
    }

    fn bytes(&self) -> usize {
        self.state.0.len() + self.pages.iter().map(Vec::len).sum::<usize>()
    }
}

/// Tokens of `prompt` that a conversation's state has seen, if the prompt goes on from all of it.
fn goes_on(agent: &Agent, prompt: &[u32]) -> Option<usize> {
    let seen = agent.consumed;
    // At least one token must be computed, for its logits.
    (seen > 0 && seen < prompt.len() && agent.tokens[..seen] == prompt[..seen]).then_some(seen)
}

impl Worker {
    /// Gives parked conversations, then waiting requests, to idle agents.
    pub(super) fn admit(&mut self) -> Result<(), BackendError> {
        while let Some(parked) = self.parked.front() {
            // Two pages more than it had, or it would be parked again at once.
            let needed = (parked.pages.len() + 2).min(self.pages.total());
            let Some(i) = self.least_recent_idle(None) else { return Ok(()) };
            while self.pages.free() < needed && self.free_a_page()? {}
            if self.pages.free() < needed {
                return Ok(());
            }
            let Some(parked) = self.parked.pop_front() else { return Ok(()) };
            self.shelve(i)?;
            self.restore(i, parked)?;
        }
        while let Some(request) = self.queue.front().map(|s| &s.request) {
            let Some(own) = self.least_recent_idle(request.session.as_ref()) else { return Ok(()) };
            let (i, reused) = match self.longest(request) {
                Some((Found::Agent(i), seen)) => (i, seen),
                Some((Found::Shelf(entry), seen)) => {
                    let parked = self.shelf.remove(entry);
                    self.shelve(own)?;
                    (own, if self.take_back(parked, own)? { seen } else { 0 })
                }
                None => (own, 0),
            };
            let Some(submission) = self.queue.pop_front() else { return Ok(()) };
            if reused == 0 {
                self.shelve(i)?;
                self.backend.reset_slot(self.agents[i].slot)?;
            }
            let agent = &mut self.agents[i];
            // From an unaligned start the bits are not those of a cold read.
            agent.clean &= reused.is_multiple_of(PAGE_TOKENS);
            self.totals.prompt_tokens_cached += reused as u64;
            agent.begin(submission, &self.config, reused);
            self.go_on(i)?;
            self.mark_branch(i);
        }
        Ok(())
    }

    /// The longest conversation, in an idle agent or on the shelf, that a request goes on from as a whole.
    fn longest(&self, request: &Request) -> Option<(Found, usize)> {
        let idle = self.agents.iter().enumerate().filter(|(i, a)| *i < self.wanted && a.run.is_none());
        let idle = idle.map(|(i, a)| (Found::Agent(i), a));
        let shelf = self.shelf.iter().enumerate().map(|(i, p)| (Found::Shelf(i), &p.agent));
        let found = idle.chain(shelf).filter_map(|(found, a)| Some((found, goes_on(a, &request.prompt)?)));
        found.max_by_key(|(_, seen)| *seen)
    }

    /// The idle agent of a session, or else the one that has been idle longest; empty ones first.
    fn least_recent_idle(&self, session: Option<&String>) -> Option<usize> {
        let idle = self.agents.iter().enumerate().filter(|(i, a)| *i < self.wanted && a.run.is_none());
        idle.min_by_key(|(_, a)| {
            let own = session.is_some() && a.session.as_ref() == session;
            (!own, a.consumed > 0, a.last_used)
        })
        .map(|(i, _)| i)
    }

    /// Frees pages for `agent`. Where nothing else is left, the request that started last is parked. `false` when that is
    /// `agent` itself: it has to wait for the others.
    pub(super) fn make_room(&mut self, agent: usize) -> Result<bool, BackendError> {
        if self.free_a_page()? {
            return Ok(true);
        }
        let running = self.agents.iter().enumerate().filter_map(|(i, a)| Some((i, a.run.as_ref()?.started)));
        match running.max_by_key(|(_, started)| *started) {
            Some((victim, _)) if victim != agent => self.park(victim).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Frees pages that no request needs: of the longest idle conversation, else of a prompt that was read and is not in use.
    fn free_a_page(&mut self) -> Result<bool, BackendError> {
        let idle = self.agents.iter().enumerate().filter(|(_, a)| a.run.is_none() && !a.pages.is_empty());
        let oldest = idle.min_by_key(|(_, a)| a.last_used).map(|(i, _)| i);
        let Some(oldest) = oldest else { return Ok(self.prefixes.evict(&mut self.pages)) };
        self.shelve(oldest)?;
        Ok(true)
    }

    /// Moves an agent's conversation to host memory and leaves the agent empty.
    fn lift(&mut self, i: usize) -> Result<Parked, BackendError> {
        let slot = self.agents[i].slot;
        let mut agent = std::mem::replace(&mut self.agents[i], Agent::new(slot));
        let used = agent.consumed.div_ceil(PAGE_TOKENS);
        let pages = agent.pages[..used].iter().map(|&p| self.backend.save_page(p)).collect::<Result<_, _>>()?;
        let state = self.backend.save_state(slot)?;
        agent.pages.drain(..).for_each(|p| self.pages.release(p));
        Ok(Parked { agent, state, pages })
    }

    /// Parks a running conversation until there is room again.
    fn park(&mut self, i: usize) -> Result<(), BackendError> {
        let parked = self.lift(i)?;
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
        let parked = self.lift(i)?;
        // The agent's status goes on to show its last request.
        self.agents[i].facts = facts;
        self.shelf.push_back(parked);
        while self.shelf.iter().map(Parked::bytes).sum::<usize>() > self.config.host_cache {
            self.shelf.pop_front();
        }
        Ok(())
    }

    /// Empties idle agents and the shelf: of one session's conversations, or of all, and then the prompts too. Returns how many
    /// conversations there were.
    pub(super) fn forget_conversations(&mut self, session: Option<&String>) -> usize {
        let matches = |agent: &Agent| session.is_none() || agent.session.as_ref() == session;
        let before = self.shelf.len();
        self.shelf.retain(|p| !matches(&p.agent));
        let mut forgotten = before - self.shelf.len();
        for agent in self.agents.iter_mut().filter(|a| a.run.is_none() && a.consumed > 0 && matches(a)) {
            forget(agent, &mut self.pages);
            forgotten += 1;
        }
        while session.is_none() && self.prefixes.evict(&mut self.pages) {}
        forgotten
    }

    /// Brings a conversation that was taken off the shelf back into the empty agent `i`. `false`, and the conversation is
    /// dropped, when the pool has no room for it.
    fn take_back(&mut self, parked: Option<Parked>, i: usize) -> Result<bool, BackendError> {
        let Some(parked) = parked else { return Ok(false) };
        let needed = parked.pages.len();
        while self.pages.free() < needed && self.free_a_page()? {}
        if self.pages.free() < needed {
            return Ok(false);
        }
        self.restore(i, parked).map(|()| true)
    }

    /// Puts a conversation from host memory into the empty agent `i`; there are pages enough.
    fn restore(&mut self, i: usize, parked: Parked) -> Result<(), BackendError> {
        let Parked { agent, state, pages } = parked;
        let slot = self.agents[i].slot;
        self.agents[i] = Agent { slot, ..agent };
        for cells in pages {
            let Some(page) = self.pages.take() else { break };
            self.backend.load_page(page, &cells)?;
            self.agents[i].pages.push(page);
        }
        if let Some(run) = &mut self.agents[i].run {
            // Its draft distributions stayed behind.
            run.proposal.clear();
        }
        self.backend.load_state(slot, &state)
    }
}
