//! What the engine tells of itself after every step.

use std::sync::Arc;
use std::time::Instant;

use openjet_proto::{AgentState, AgentStatus, EngineStatus, Health, WaitState, WaitingStatus};

use super::agent::Agent;
use super::parked::Parked;
use super::queue::Submission;
use super::worker::Worker;
use crate::text::Tokenizer;

/// Most tokens of an agent's text that are shown.
const TAIL: usize = 64;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) steps: u64,
    pub(super) tokens_generated: u64,
    pub(super) prompt_tokens_computed: u64,
    pub(super) prompt_tokens_cached: u64,
    pub(super) requests_finished: u64,
    pub(super) requests_cancelled: u64,
}

/// Before anything is known.
pub(super) fn empty() -> EngineStatus {
    EngineStatus {
        health: Health::Loading { detail: "starting".into() },
        backend: String::new(),
        queued: 0,
        queue: Vec::new(),
        agents: Vec::new(),
        pages_total: 0,
        pages_free: 0,
        pool: Vec::new(),
        resting: 0,
        steps: 0,
        steps_per_second: 0.0,
        tokens_generated: 0,
        prompt_tokens_computed: 0,
        prompt_tokens_cached: 0,
        requests_finished: 0,
        requests_cancelled: 0,
    }
}

impl Worker {
    pub(super) fn publish(&mut self) {
        let now = Instant::now();
        let status = EngineStatus {
            pool: self.pool_map(),
            health: self.health.clone(),
            backend: self.backend.describe(),
            queued: self.queue.len() + self.parked.len(),
            queue: self.parked.iter().filter_map(parked).chain(self.queue.iter().map(waiting)).collect(),
            agents: self.agents.iter().map(|a| self.agent_status(a, now)).collect(),
            pages_total: self.pages.total(),
            pages_free: self.pages.free(),
            resting: self.shelf.len(),
            steps: self.totals.steps,
            steps_per_second: self.recent_steps.per_second(now),
            tokens_generated: self.totals.tokens_generated,
            prompt_tokens_computed: self.totals.prompt_tokens_computed,
            prompt_tokens_cached: self.totals.prompt_tokens_cached,
            requests_finished: self.totals.requests_finished,
            requests_cancelled: self.totals.requests_cancelled,
        };
        self.published.store(Arc::new(status));
    }

    fn agent_status(&self, agent: &Agent, now: Instant) -> AgentStatus {
        let facts = &agent.facts;
        let state = match &agent.run {
            None => AgentState::Idle,
            Some(run) if run.waits => AgentState::Sharing,
            Some(run) if run.prefill => AgentState::Prefill,
            Some(_) => AgentState::Decode,
        };
        AgentStatus {
            id: agent.slot,
            state,
            request: agent.run.as_ref().map(|r| r.id),
            session: agent.session.clone(),
            context_tokens: agent.tokens.len(),
            context_limit: self.config.context,
            prompt_done: agent.consumed.min(facts.prompt_tokens),
            prompt_tokens: facts.prompt_tokens,
            cached_tokens: facts.cached_tokens,
            generated_tokens: facts.generated,
            tokens_per_second: facts.tokens_per_second,
            tokens_per_second_now: if agent.run.is_some() { facts.recent.per_second(now) } else { 0.0 },
            pages: agent.pages.len(),
            pages_shared: agent.pages.iter().filter(|&&p| self.pages.users(p) > 1).count(),
            drafts_offered: facts.offered.clone(),
            drafts_accepted: facts.accepted.clone(),
            first_token_ms: facts.first_token.map(|d| d.as_secs_f64() * 1e3),
            queued_ms: facts.queued.as_secs_f64() * 1e3,
            task: self.config.show_text.as_ref().and(facts.task.clone()),
            tail: self.config.show_text.as_ref().map(|tokenizer| {
                let written = agent.tokens.get(facts.prompt_tokens..).unwrap_or_default();
                let shown = written.len().min(facts.generated).min(TAIL);
                tail(tokenizer, &written[written.len() - shown..])
            }),
        }
    }
}

fn waiting(submission: &Submission) -> WaitingStatus {
    WaitingStatus {
        request: submission.id,
        state: if submission.ready() { WaitState::Queued } else { WaitState::Fetching },
        session: submission.request.session.clone(),
        prompt_tokens: submission.request.prompt.len(),
        waited_ms: submission.at.elapsed().as_secs_f64() * 1e3,
    }
}

fn parked(parked: &Parked) -> Option<WaitingStatus> {
    let run = parked.agent.run.as_ref()?;
    Some(WaitingStatus {
        request: run.id,
        state: WaitState::Parked,
        session: parked.agent.session.clone(),
        prompt_tokens: run.request.prompt.len(),
        waited_ms: run.parked_at.map_or(0.0, |at| at.elapsed().as_secs_f64() * 1e3),
    })
}

/// The text of some tokens, without the characters that are cut at either end.
fn tail(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer.token_bytes(token)).copied().collect();
    String::from_utf8_lossy(&bytes).trim_matches(char::REPLACEMENT_CHARACTER).to_owned()
}
