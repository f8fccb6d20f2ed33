//! Who gets an idle agent, which one, and what the request goes on from there.

use super::agent::Agent;
use super::queue::{OnDisk, Submission};
use super::worker::{Worker, forget};
use crate::backend::BackendError;
use crate::request::Request;
use crate::step::PAGE_TOKENS;

/// Where a request finds the conversation that it goes on from.
#[derive(Clone, Copy, Debug)]
enum Found {
    Agent(usize),
    Shelf(usize),
}

/// Tokens of `prompt` that a conversation's state has seen, if the prompt goes on from all of it.
fn goes_on(agent: &Agent, prompt: &[u32]) -> Option<usize> {
    let seen = agent.consumed;
    // At least one token must be computed, for its logits.
    (seen > 0 && seen < prompt.len() && agent.tokens[..seen] == prompt[..seen]).then_some(seen)
}

/// Whether a request is the next turn of an agent's conversation, its last answer rendered in another way: it begins with all
/// that the answer was an answer to.
fn supersedes(request: &Request, agent: &Agent) -> bool {
    let history = agent.history.min(agent.consumed);
    history > 0 && agent.session == request.session && request.prompt.starts_with(&agent.tokens[..history])
}

impl Worker {
    /// Gives parked conversations, then waiting requests, to idle agents.
    pub(super) fn admit(&mut self) -> Result<(), BackendError> {
        while let Some(parked) = self.parked.front() {
            // Two pages more than it had, or it would be parked again at once.
            let needed = (parked.image.cells.len() + 2).min(self.pages.total());
            let Some(i) = self.idle_agent(None) else { return Ok(()) };
            while self.pages.free() < needed && self.free_a_page()? {}
            if self.pages.free() < needed {
                return Ok(());
            }
            let Some(parked) = self.parked.pop_front() else { return Ok(()) };
            self.shelve(i)?;
            self.restore(i, parked)?;
        }
        while let Some(place) = self.queue.iter().position(Submission::ready) {
            let Some(own) = self.idle_agent(Some(&self.queue[place].request)) else { return Ok(()) };
            if self.look_on_disk(place) {
                continue;
            }
            let Some(mut submission) = self.queue.remove(place) else { return Ok(()) };
            let (i, reused) = self.prepare(own, &mut submission)?;
            let agent = &mut self.agents[i];
            // From an unaligned start the bits are not those of a cold read.
            agent.clean &= reused.is_multiple_of(PAGE_TOKENS);
            self.totals.prompt_tokens_cached += reused as u64;
            agent.begin(submission, &self.config, reused);
            self.go_on(i)?;
            // Before its caller hears of it: whoever asks then finds it there.
            self.publish();
            self.agents[i].tell_started();
            self.mark_branch(i);
        }
        Ok(())
    }

    /// Brings the conversation that a request goes on from into an agent: `own`, or the one that holds it already. Returns
    /// the agent and how many tokens its slot's state has seen.
    fn prepare(&mut self, own: usize, submission: &mut Submission) -> Result<(usize, usize), BackendError> {
        let request = &submission.request;
        let found = self.longest(request);
        let in_tree = self.prefixes.reach(&request.prompt);
        let in_memory = found.map_or(0, |(_, seen)| seen).max(in_tree);
        let fetched = match std::mem::take(&mut submission.disk) {
            OnDisk::Found(parked) if parked.agent.consumed > in_memory => Some(*parked),
            _ => None,
        };
        let (mut back, mut kept) = (fetched, None);
        if back.is_none() {
            match found {
                Some((Found::Agent(i), seen)) => return Ok((i, seen)),
                Some((Found::Shelf(entry), seen)) if seen == self.shelf[entry].agent.consumed => {
                    back = self.shelf.remove(entry);
                }
                Some((Found::Shelf(entry), seen)) if seen > in_tree => {
                    back = self.shelf[entry].part(seen, &mut self.pages);
                }
                _ => {}
            }
        }
        // Earlier versions of this conversation are of no more use.
        let whole = back.as_ref().is_some_and(|parked| parked.agent.kept.is_some());
        if !whole {
            while let Some(entry) = self.shelf.iter().position(|p| supersedes(request, &p.agent)) {
                let Some(earlier) = self.shelf.remove(entry) else { break };
                kept = earlier.agent.kept.or(kept);
                self.let_go(earlier);
            }
        }
        if !whole && supersedes(request, &self.agents[own]) {
            kept = self.agents[own].kept.or(kept);
            forget(&mut self.agents[own], &mut self.pages);
        } else {
            self.shelve(own)?;
        }
        if let Some(mut parked) = back {
            parked.agent.kept = parked.agent.kept.or(kept);
            let seen = parked.agent.consumed;
            if self.take_back(parked, own)? {
                return Ok((own, seen));
            }
        }
        forget(&mut self.agents[own], &mut self.pages);
        self.agents[own].kept = kept;
        self.backend.reset_slot(self.agents[own].slot)?;
        Ok((own, 0))
    }

    /// The conversation that a request can go on from the furthest: all of it in an idle agent or on the shelf, or a
    /// beginning of one on the shelf. Of equals, all of one.
    fn longest(&self, request: &Request) -> Option<(Found, usize)> {
        let idle = self.agents.iter().enumerate().filter(|(i, a)| *i < self.wanted && a.run.is_none());
        let idle = idle.filter_map(|(i, a)| Some((Found::Agent(i), goes_on(a, &request.prompt)?, true)));
        let shelf = self.shelf.iter().enumerate().filter_map(|(i, p)| {
            let seen = p.reach(&request.prompt)?;
            Some((Found::Shelf(i), seen, seen == p.agent.consumed))
        });
        idle.chain(shelf).max_by_key(|&(_, seen, whole)| (seen, whole)).map(|(found, seen, _)| (found, seen))
    }

    /// How far a request can go on without the disk.
    pub(super) fn reach_in_memory(&mut self, place: usize) -> usize {
        let request = &self.queue[place].request;
        self.longest(request).map_or(0, |(_, seen)| seen).max(self.prefixes.reach(&request.prompt))
    }

    /// The idle agent for a request: that of its conversation, one of its session, an empty one, or the one that has been idle
    /// longest.
    fn idle_agent(&self, request: Option<&Request>) -> Option<usize> {
        let idle = self.agents.iter().enumerate().filter(|(i, a)| *i < self.wanted && a.run.is_none());
        idle.min_by_key(|(_, a)| {
            let session = request.is_some_and(|r| r.session.is_some() && a.session == r.session);
            let own = request.is_some_and(|r| supersedes(r, a));
            (!own, !session, a.consumed > 0, a.last_used)
        })
        .map(|(i, _)| i)
    }
}
