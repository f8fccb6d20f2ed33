//! An agent: a slot that holds a conversation, and the request that it serves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::EngineConfig;
use super::queue::Submission;
use super::recent::Recent;
use crate::drafts::{DepthController, Lookup, Rows, StepCost, depths};
use crate::request::{Event, Finish, FinishReason, Request, RequestError, Usage};
use crate::step::{PAGE_TOKENS, PageId, SlotId};
use crate::store::Id;

/// A conversation in a slot.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// Its slot in the backend.
    pub(super) slot: SlotId,
    /// Key of the conversation that it is pinned to.
    pub(super) session: Option<String>,
    /// The conversation: `consumed` tokens that the slot's state has seen, then the rest of a prompt or the newest token.
    pub(super) tokens: Vec<u32>,
    /// Tokens that the slot's state has seen.
    pub(super) consumed: usize,
    /// Everything consumed was read as prompt from an aligned start: the bits are those of a cold read, fit for sharing.
    pub(super) clean: bool,
    /// Tokens at the beginning, whole pages of them, that stand in the tree of prefixes or stood there: cold bits.
    pub(super) read: usize,
    /// Where the answer of the last request begins: its generation prompt, or the end of its prompt.
    pub(super) history: usize,
    /// Its name on disk, once it has one.
    pub(super) kept: Option<Id>,
    /// Tells the cells that were written here from those of other conversations with the same tokens.
    pub(super) lineage: Option<u64>,
    /// What the disk has is this version, or it is not worth keeping.
    pub(super) saved: bool,
    /// Since when no request runs here, if one has run.
    pub(super) idle_since: Option<Instant>,
    /// The conversation's pages in order.
    pub(super) pages: Vec<PageId>,
    /// When a request last ended here, in the worker's count of requests.
    pub(super) last_used: u64,
    /// The request that it serves.
    pub(super) run: Option<Run>,
    /// Facts of the current or last request.
    pub(super) facts: Facts,
}

/// What status shows of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) generated: usize,
    /// Drafts verified and accepted, by place.
    pub(super) offered: Vec<u64>,
    pub(super) accepted: Vec<u64>,
    pub(super) queued: Duration,
    pub(super) first_token: Option<Duration>,
    pub(super) tokens_per_second: f64,
    /// Tokens as they come.
    pub(super) recent: Recent,
    /// What was asked, in a line.
    pub(super) task: Option<String>,
}

/// A request being served.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: u64,
    pub(super) request: Request,
    pub(super) events: UnboundedSender<Event>,
    /// Tokens that end the text.
    pub(super) end_tokens: Vec<u32>,
    /// Most tokens to generate, the context considered.
    pub(super) budget: usize,
    /// The prompt has not produced its first token yet.
    pub(super) prefill: bool,
    pub(super) started: Instant,
    first_token: Option<Instant>,
    latest_token: Option<Instant>,
    /// Positions, multiples of a page, at which the prompt leaves a state to go on from.
    pub(super) snapshots: BTreeSet<usize>,
    /// When it last had to give up its slot.
    pub(super) parked_at: Option<Instant>,
    /// Another agent is reading what this prompt begins with; it waits to share it.
    pub(super) waits: bool,
    /// What the draft head proposes to follow the newest token.
    pub(super) proposal: Vec<u32>,
    lookup: Lookup,
    head_depth: DepthController,
    lookup_depth: DepthController,
}

/// Where drafts come from. Of each kind another share is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The model's draft head.
    Head,
    /// The only continuation that is allowed, or the context.
    Given,
}

/// Drafts for one step.
#[derive(Debug)]
pub(super) struct Drafts {
    pub(super) source: Source,
    pub(super) tokens: Vec<u32>,
    /// How deep the draft head is to draft for the step after.
    pub(super) next_depth: usize,
}

impl Agent {
    pub(super) fn new(slot: SlotId) -> Self {
        Self { slot, ..Self::default() }
    }

    /// Begins to serve a request whose first `reused` prompt tokens the slot's state has seen.
    pub(super) fn begin(&mut self, submission: Submission, config: &EngineConfig, reused: usize) {
        let Submission { id, request, events, ticket, at, .. } = submission;
        drop(ticket);
        let prompt_tokens = request.prompt.len();
        let room = config.context - prompt_tokens;
        let mut end_tokens = request.end_tokens.clone();
        if !request.ignore_end {
            end_tokens.extend_from_slice(&config.end_tokens);
        }
        self.tokens.clone_from(&request.prompt);
        self.consumed = reused;
        self.session.clone_from(&request.session);
        self.history = request.generation_prompt_at.unwrap_or(prompt_tokens);
        self.saved = false;
        let task = request.task.clone();
        self.facts = Facts { prompt_tokens, cached_tokens: reused, queued: at.elapsed(), task, ..Facts::default() };
        let mut lookup = Lookup::default();
        if config.lookup {
            lookup.extend(&request.prompt);
        }
        let run = Run {
            id,
            events,
            end_tokens,
            budget: request.max_tokens.map_or(room, |n| room.min(n as usize)),
            prefill: true,
            started: Instant::now(),
            first_token: None,
            latest_token: None,
            snapshots: snapshots(&request, config, reused),
            parked_at: None,
            waits: false,
            proposal: Vec::new(),
            lookup,
            head_depth: DepthController::default(),
            lookup_depth: DepthController::default(),
            request,
        };
        self.run = Some(run);
    }

    /// Tells the caller that its request has an agent.
    pub(super) fn tell_started(&self) {
        if let Some(run) = &self.run {
            run.send(Event::Started { agent: self.slot, cached_tokens: self.facts.cached_tokens });
        }
    }

    /// Takes a step's new tokens (an end token last, if any) after `drafts` were offered and `accepted` of them taken.
    /// Returns how the request ends, if it does.
    pub(super) fn take(
        &mut self,
        sampled: Vec<crate::step::Sampled>,
        drafts: &Drafts,
        accepted: usize,
        lookup: bool,
    ) -> Option<(FinishReason, Option<u32>)> {
        let run = self.run.as_mut()?;
        run.observe(&mut self.facts, drafts, accepted);
        let mut sampled = sampled;
        let mut end = None;
        if let Some(last) = sampled.last().filter(|s| run.end_tokens.contains(&s.token)) {
            end = Some((FinishReason::Stop, Some(last.token)));
            sampled.pop();
        }
        let ids: Vec<u32> = sampled.iter().map(|s| s.token).collect();
        if let Some(constraint) = &mut run.request.constraint {
            ids.iter().for_each(|&id| constraint.accept(id));
        }
        self.tokens.extend_from_slice(&ids);
        if lookup {
            run.lookup.extend(&ids);
        }
        self.facts.generated += ids.len();
        self.facts.recent.add(Instant::now(), ids.len());
        run.clock(&mut self.facts);
        if end.is_none() && self.facts.generated >= run.budget {
            end = Some((FinishReason::Length, None));
        }
        if !drafts.tokens.is_empty() {
            run.send(Event::Drafted { offered: drafts.tokens.len(), accepted });
        }
        if !sampled.is_empty() {
            run.send(Event::Tokens(sampled));
        }
        end
    }

    /// Ends the request if its text can't be held any longer to what it was held to.
    pub(super) fn fail_constraint(&mut self) -> bool {
        let constraint = self.run.as_ref().and_then(|run| run.request.constraint.as_ref());
        let Some(message) = constraint.and_then(|constraint| constraint.error()).map(str::to_owned) else {
            return false;
        };
        self.end_with(RequestError::Constraint { tokens: self.facts.generated, message })
    }

    /// Ends the request with an error; the conversation ends with what the slot's state has seen. `false` without a request.
    pub(super) fn end_with(&mut self, error: RequestError) -> bool {
        let Some(run) = self.run.take() else { return false };
        run.send(Event::Failed(error));
        self.tokens.truncate(self.consumed);
        self.idle_since = Some(Instant::now());
        true
    }

    /// Ends the request, if there is one; its caller is still to be told so.
    pub(super) fn finish(&mut self, reason: FinishReason, end_token: Option<u32>) -> Option<(Run, Finish)> {
        let run = self.run.take()?;
        let usage = run.usage(&self.facts);
        // The newest token was never consumed: the conversation ends before it.
        self.tokens.truncate(self.consumed);
        self.idle_since = Some(Instant::now());
        Some((run, Finish { reason, end_token, usage }))
    }
}

/// A beginning of so many tokens that others have too is not to be read a second time.
const WORTH_SHARING: usize = 1024;

/// Where a prompt leaves states: at the last multiple of a page inside the system message, with which others may begin as
/// well; at intervals, and sooner in the first one; at the last multiple before the generation prompt, since a template may
/// render what follows differently the next time; and at the last one before the prompt's end, for who asks again.
fn snapshots(request: &Request, config: &EngineConfig, reused: usize) -> BTreeSet<usize> {
    let end = request.prompt.len() - 1;
    let whole = |at: usize| at.min(end) / PAGE_TOKENS * PAGE_TOKENS;
    let history = whole(request.generation_prompt_at.unwrap_or(end));
    let system = request.system_until.map(whole);
    let every = (1..).map(|i| i * config.snapshot_every).take_while(|&at| at <= history);
    let first = Some(WORTH_SHARING).filter(|&at| at <= history);
    every.chain(first).chain(system).chain([history, whole(end)]).filter(|&at| at > reused).collect()
}

impl Run {
    /// A caller that has gone away needs no events.
    pub(super) fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// The chance of a draft of the draft head to be accepted, and the most of them for the next step, of which `most` can be
    /// verified.
    pub(super) fn chance(&self, config: &EngineConfig, facts: &Facts, most: usize) -> (f32, usize) {
        let allowed = self.request.draft.unwrap_or(usize::MAX);
        // One token comes of this step, and one of the next without a draft.
        let left = (self.budget - facts.generated).saturating_sub(2);
        (self.head_depth.acceptance(), config.draft.min(allowed).min(most).min(left))
    }

    /// The depth for the draft head where `best` of at most `most` pay.
    pub(super) fn settle(&mut self, best: usize, most: usize) -> usize {
        self.head_depth.settle(best, most)
    }

    /// How many drafts there are from the draft head, and the share of them that is accepted.
    pub(super) fn proposed(&self) -> (usize, f32) {
        (self.proposal.len(), self.acceptance(Source::Head))
    }

    /// The share of drafts from `source` that is accepted.
    pub(super) fn acceptance(&self, source: Source) -> f32 {
        match source {
            Source::Head => self.head_depth.acceptance(),
            Source::Given => self.lookup_depth.acceptance(),
        }
    }

    /// Chooses this step's drafts, at most `limit`; `next_depth` are to be proposed for the next one. The pair is what rows
    /// cost, and the step's rows apart from these drafts.
    pub(super) fn choose_drafts(
        &mut self,
        config: &EngineConfig,
        limit: usize,
        next_depth: usize,
        (cost, rows): (StepCost, Rows),
    ) -> Drafts {
        let allowed = self.request.draft.unwrap_or(usize::MAX);
        let forced = self.request.constraint.as_mut().map(|constraint| constraint.forced(limit.min(allowed)));
        if let Some(tokens) = forced.filter(|tokens| !tokens.is_empty()) {
            return Drafts { source: Source::Given, tokens, next_depth };
        }
        let lookup = config.lookup_draft.min(allowed).min(limit);
        if config.lookup && lookup > 0 {
            let found = self.lookup.propose(lookup);
            if !found.is_empty() {
                let free = StepCost { draft: 0.0, ..cost };
                let depth = if config.fixed_depth {
                    found.len()
                } else {
                    let chance = [(self.lookup_depth.acceptance(), found.len())];
                    let best = depths(free, rows, &chance).pop().unwrap_or(0);
                    self.lookup_depth.settle(best, found.len())
                };
                if depth > 0 {
                    return Drafts { source: Source::Given, tokens: found[..depth].to_vec(), next_depth };
                }
            }
        }
        self.proposal.truncate(limit);
        Drafts { source: Source::Head, tokens: std::mem::take(&mut self.proposal), next_depth }
    }

    /// What may follow the newest token and each draft; drafts that may not be accepted are cut off.
    pub(super) fn constrain(&mut self, drafts: &mut Vec<u32>) -> Vec<Option<Vec<u32>>> {
        self.request.constraint.as_mut().map_or_else(Vec::new, |constraint| constraint.masks(drafts))
    }

    fn observe(&mut self, facts: &mut Facts, drafts: &Drafts, accepted: usize) {
        let offered = drafts.tokens.len();
        if facts.offered.len() < offered {
            facts.offered.resize(offered, 0);
            facts.accepted.resize(offered, 0);
        }
        facts.offered[..offered].iter_mut().for_each(|n| *n += 1);
        facts.accepted[..accepted].iter_mut().for_each(|n| *n += 1);
        match drafts.source {
            Source::Head => self.head_depth.observe(offered, accepted),
            Source::Given => self.lookup_depth.observe(offered, accepted),
        }
    }

    fn clock(&mut self, facts: &mut Facts) {
        let now = Instant::now();
        let first = *self.first_token.get_or_insert(now);
        facts.first_token.get_or_insert(first - self.started);
        self.latest_token = Some(now);
        let decode = (now - first).as_secs_f64();
        if decode > 0.0 {
            facts.tokens_per_second = (facts.generated.saturating_sub(1)) as f64 / decode;
        }
    }

    fn usage(&self, facts: &Facts) -> Usage {
        let between =
            |from: Option<Instant>, to: Option<Instant>| from.zip(to).map(|(from, to)| to - from).unwrap_or_default();
        Usage {
            prompt_tokens: facts.prompt_tokens,
            cached_tokens: facts.cached_tokens,
            completion_tokens: facts.generated,
            drafts_offered: facts.offered.iter().sum::<u64>() as usize,
            drafts_accepted: facts.accepted.iter().sum::<u64>() as usize,
            queued: facts.queued,
            prefill: between(Some(self.started), self.first_token),
            decode: between(self.first_token, self.latest_token),
        }
    }
}
