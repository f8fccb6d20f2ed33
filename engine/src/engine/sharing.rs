//! No prompt is read twice: where a request goes on from, what a prompt leaves behind, who waits for whom.

use super::agent::Agent;
use super::worker::Worker;
use crate::backend::BackendError;
use crate::step::PAGE_TOKENS;

/// A prompt waits for another that is being read when they have at least this many tokens in common that are still to be
/// read; less is not worth a wait.
const WORTH_WAITING: usize = 256;

/// Tokens at the beginning of both prompts, rounded down to a page, with one token left to read of `mine`.
fn common(mine: &[u32], other: &[u32]) -> usize {
    let same = mine.iter().zip(other).take_while(|(a, b)| a == b).count();
    same.min(mine.len() - 1) / PAGE_TOKENS * PAGE_TOKENS
}

impl Worker {
    /// Lets prompts wait for those that are already reading what they have in common, and lets them go on from it when it is
    /// read.
    pub(super) fn share_prompts(&mut self) -> Result<(), BackendError> {
        for i in 0..self.agents.len() {
            let Some(waited) = self.agents[i].run.as_ref().filter(|r| r.prefill).map(|r| r.waits) else { continue };
            let reader = self.reader_for(i);
            if let Some((reader, at)) = reader
                && let Some(run) = &mut self.agents[reader].run
            {
                run.snapshots.insert(at);
            }
            if waited && reader.is_none() {
                self.go_on(i)?;
            }
            if let Some(run) = &mut self.agents[i].run {
                run.waits = reader.is_some();
            }
        }
        Ok(())
    }

    /// Who is reading a long beginning of agent `i`'s prompt, ahead of it, and up to where they have it in common.
    fn reader_for(&self, i: usize) -> Option<(usize, usize)> {
        let mine = &self.agents[i];
        let run = mine.run.as_ref()?;
        let ahead = |j: usize, other: &Agent| {
            let theirs = other.run.as_ref().filter(|r| r.prefill && !r.waits && other.clean && j != i)?;
            let at = common(&run.request.prompt, &theirs.request.prompt);
            let earlier = (theirs.started, theirs.id) < (run.started, run.id);
            (earlier && other.consumed < at && at >= mine.consumed + WORTH_WAITING).then_some((j, at))
        };
        self.agents.iter().enumerate().filter_map(|(j, a)| ahead(j, a)).max_by_key(|(_, at)| *at)
    }

    /// Moves agent `i`'s prompt forward to the deepest state that others have left inside it, if that is further than it is.
    pub(super) fn go_on(&mut self, i: usize) -> Result<(), BackendError> {
        let agent = &mut self.agents[i];
        let Some(prompt) = agent.run.as_ref().map(|r| &r.request.prompt) else { return Ok(()) };
        let Some(resume) = self.prefixes.resume(prompt, &mut self.pages) else { return Ok(()) };
        let reused = resume.pages.len() * PAGE_TOKENS;
        let gained = reused.saturating_sub(agent.consumed);
        if gained == 0 {
            resume.pages.into_iter().for_each(|page| self.pages.release(page));
            return Ok(());
        }
        self.backend.load_state(agent.slot, &resume.state)?;
        agent.pages.drain(..).for_each(|page| self.pages.release(page));
        agent.pages = resume.pages;
        agent.consumed = reused;
        agent.clean = true;
        agent.read = reused;
        agent.lineage = None;
        agent.facts.cached_tokens += gained;
        self.totals.prompt_tokens_cached += gained as u64;
        Ok(())
    }

    /// Where others have read the same beginning but left no state at its end, this prompt leaves one.
    pub(super) fn mark_branch(&mut self, i: usize) {
        let agent = &mut self.agents[i];
        let Some(run) = &mut agent.run else { return };
        let prompt = &run.request.prompt;
        let known = self.prefixes.known(&prompt[..prompt.len() - 1]);
        if known > agent.consumed {
            run.snapshots.insert(known);
        }
    }

    /// Takes what agent `i` has read into the tree, and its state where one is to be left.
    pub(super) fn keep_prefix(&mut self, i: usize) -> Result<(), BackendError> {
        let agent = &mut self.agents[i];
        let whole = agent.consumed / PAGE_TOKENS;
        if !agent.clean || whole == 0 {
            return Ok(());
        }
        agent.read = whole * PAGE_TOKENS;
        let tokens = &agent.tokens[..whole * PAGE_TOKENS];
        self.prefixes.insert(tokens, &mut agent.pages[..whole], &mut self.pages);
        let wanted = agent.run.as_ref().is_some_and(|r| r.snapshots.contains(&agent.consumed));
        if wanted && !self.prefixes.has_state(tokens) {
            let state = self.backend.save_state(agent.slot)?;
            self.prefixes.keep_state(tokens, state);
        }
        Ok(())
    }
}
