//! Conversations in host memory, and how agents come by slots and pages.

use tokio::sync::mpsc::UnboundedSender;

use super::agent::Agent;
use super::worker::{Worker, forget};
use crate::backend::{BackendError, StateImage};
use crate::request::{Event, Request};
use crate::step::PAGE_TOKENS;

/// A running conversation that had to give up its slot and pages for a while.
#[derive(Debug)]
pub(super) struct Parked {
    agent: Agent,
    state: StateImage,
    pages: Vec<Vec<u8>>,
}

impl Parked {
    pub(super) fn cancelled(&self) -> bool {
        self.agent.run.as_ref().is_none_or(|r| r.events.is_closed())
    }

    /// Where its caller listens.
    pub(super) fn into_events(self) -> UnboundedSender<Event> {
        self.agent.run.map(|r| r.events).unwrap_or_else(|| tokio::sync::mpsc::unbounded_channel().0)
    }
}

impl Worker {
    /// Gives parked conversations, then waiting requests, to idle agents.
    pub(super) fn admit(&mut self) -> Result<(), BackendError> {
        while let Some(parked) = self.parked.front() {
            // Two pages more than it had, or it would be parked again at once.
            let needed = parked.pages.len() + 2;
            let Some(i) = self.least_recent_idle() else { return Ok(()) };
            while self.pages.free() < needed && self.drop_idle_conversation() {}
            if self.pages.free() < needed.min(self.pages.total()) {
                return Ok(());
            }
            let Some(parked) = self.parked.pop_front() else { return Ok(()) };
            self.resume(i, parked)?;
        }
        while let Some(submission) = self.queue.front() {
            let Some((i, reused)) = self.best_agent(&submission.request) else { return Ok(()) };
            let Some(submission) = self.queue.pop_front() else { return Ok(()) };
            let agent = &mut self.agents[i];
            if reused == 0 {
                forget(agent, &mut self.pages);
                self.backend.reset_slot(agent.slot)?;
            }
            self.totals.prompt_tokens_cached += reused as u64;
            agent.begin(submission, &self.config, reused);
        }
        Ok(())
    }

    /// The idle agent for a request and how many of its prompt's tokens that agent's state has seen: the one whose whole
    /// conversation the prompt goes on from, longest first, then the one of its session, then the least recently used.
    fn best_agent(&self, request: &Request) -> Option<(usize, usize)> {
        let idle = || self.agents.iter().enumerate().filter(|(i, a)| *i < self.wanted && a.run.is_none());
        let goes_on = |a: &Agent| {
            // At least one token must be computed, for its logits.
            let seen = a.consumed;
            seen > 0 && seen < request.prompt.len() && a.tokens[..seen] == request.prompt[..seen]
        };
        let longest = idle().filter(|(_, a)| goes_on(a)).max_by_key(|(_, a)| a.consumed);
        if let Some((i, agent)) = longest {
            return Some((i, agent.consumed));
        }
        let session = request.session.as_ref();
        let own = idle().find(|(_, a)| session.is_some() && a.session.as_ref() == session);
        own.map(|(i, _)| i).or_else(|| self.least_recent_idle()).map(|i| (i, 0))
    }

    fn least_recent_idle(&self) -> Option<usize> {
        let idle = self.agents.iter().enumerate().filter(|(i, a)| *i < self.wanted && a.run.is_none());
        idle.min_by_key(|(_, a)| a.last_used).map(|(i, _)| i)
    }

    /// Frees pages for `agent`: those of the least recently used idle conversation, or else by parking the request that
    /// started last. `false` when `agent` itself started last: it has to wait for the others.
    pub(super) fn make_room(&mut self, agent: usize) -> Result<bool, BackendError> {
        if self.drop_idle_conversation() {
            return Ok(true);
        }
        let running = self.agents.iter().enumerate().filter_map(|(i, a)| Some((i, a.run.as_ref()?.started)));
        match running.max_by_key(|(_, started)| *started) {
            Some((victim, _)) if victim != agent => self.park(victim).map(|()| true),
            _ => Ok(false),
        }
    }

    fn drop_idle_conversation(&mut self) -> bool {
        let idle = self.agents.iter_mut().filter(|a| a.run.is_none() && !a.pages.is_empty());
        let Some(agent) = idle.min_by_key(|a| a.last_used) else { return false };
        forget(agent, &mut self.pages);
        true
    }

    /// Moves a running conversation to host memory.
    fn park(&mut self, i: usize) -> Result<(), BackendError> {
        let slot = self.agents[i].slot;
        let mut agent = std::mem::replace(&mut self.agents[i], Agent::new(slot));
        let used = agent.consumed.div_ceil(PAGE_TOKENS);
        let pages = agent.pages[..used].iter().map(|&p| self.backend.save_page(p)).collect::<Result<_, _>>()?;
        let state = self.backend.save_state(slot)?;
        agent.pages.drain(..).for_each(|p| self.pages.release(p));
        tracing::info!(agent = slot, tokens = agent.consumed, "conversation parked: the pool is full");
        self.parked.push_back(Parked { agent, state, pages });
        Ok(())
    }

    fn resume(&mut self, i: usize, parked: Parked) -> Result<(), BackendError> {
        let Parked { agent, state, pages } = parked;
        let slot = self.agents[i].slot;
        forget(&mut self.agents[i], &mut self.pages);
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
