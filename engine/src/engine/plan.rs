//! What goes into a step: every writing agent's newest token and drafts, and at most one chunk of one agent's prompt.

use std::time::Duration;

use super::EngineConfig;
use super::agent::{Agent, Drafts, Source};
use super::pace::Pace;
use crate::drafts::{Rows, StepCost, depths};
use crate::step::{MAX_DECODE_ROWS, MAX_SEGMENT_ROWS, SampleSpec, Segment, SegmentKind};

/// One agent's part of a step.
#[derive(Debug)]
pub(super) struct Part {
    /// The agent's index.
    pub(super) agent: usize,
    /// The rows' tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) drafts: Drafts,
    /// The rows are a prompt's.
    pub(super) prompt: bool,
    /// A token is chosen after the last accepted row.
    samples: bool,
    /// The tokens that may follow each row.
    masks: Vec<Option<Vec<u32>>>,
}

impl Part {
    /// Positions that must have pages: the rows and the drafts to come.
    pub(super) fn reach(&self, agent: &Agent) -> usize {
        agent.consumed + self.tokens.len() + if self.samples { self.drafts.next_depth } else { 0 }
    }

    /// Whether its agent has new tokens after the step.
    pub(super) fn samples(&self) -> bool {
        self.samples
    }

    /// The part as a segment of a step table.
    pub(super) fn segment<'a>(&'a self, agent: &'a Agent) -> Option<Segment<'a>> {
        let run = agent.run.as_ref()?;
        let prompt = &run.request.prompt;
        let sample = self.samples.then(|| SampleSpec {
            params: &run.request.params,
            prompt,
            output: agent.tokens.get(prompt.len()..).unwrap_or_default(),
            end_tokens: &run.end_tokens,
            budget: (run.budget - agent.facts.generated) as u32,
            masks: &self.masks,
            draft_depth: self.drafts.next_depth,
        });
        let kind = if self.prompt { SegmentKind::Prompt } else { SegmentKind::Decode };
        Some(Segment {
            slot: agent.slot,
            position: agent.consumed as u32,
            tokens: &self.tokens,
            pages: &agent.pages,
            kind,
            sample,
        })
    }
}

/// Composes the next step. `turn` moves on with every step: where more agents write than there are rows, they take turns.
/// `waited` is the time since the latest tokens of those who write.
pub(super) fn plan(
    agents: &mut [Agent],
    config: &EngineConfig,
    pace: &Pace,
    cost: StepCost,
    turn: usize,
    waited: Duration,
) -> Vec<Part> {
    let reads = next_prompt(agents, pace.chunks());
    // One row is the last of the prompt, in case it ends.
    let rows = MAX_DECODE_ROWS - usize::from(reads.is_some());
    let mut writing: Vec<usize> =
        (0..agents.len()).filter(|&i| agents[i].run.as_ref().is_some_and(|r| !r.prefill)).collect();
    if writing.len() > rows {
        let start = turn % writing.len();
        writing.rotate_left(start);
        writing.truncate(rows);
    }
    let most = rows.checked_div(writing.len()).unwrap_or(rows).min(MAX_SEGMENT_ROWS) - 1;
    let waited = (!writing.is_empty()).then_some(waited);
    let chunk = reads.and_then(|i| Some((i, chunk_end(&agents[i], pace, waited)?)));
    let ends = |&(i, end): &(usize, usize)| agents[i].run.as_ref().is_some_and(|r| r.request.prompt.len() == end);
    let then: Vec<usize> = writing.iter().copied().chain(chunk.filter(ends).map(|(i, _)| i)).collect();
    let next = next_depths(agents, &then, config, cost, most);
    // What this step has if everybody takes what the draft head proposed.
    let mut step = Rows::plain(writing.len());
    for run in writing.iter().filter_map(|&i| agents[i].run.as_ref()) {
        step.add(run.proposed());
    }
    let mut parts: Vec<Part> = Vec::with_capacity(next.len());
    for (&i, &next_depth) in writing.iter().zip(&next) {
        if let Some(run) = &agents[i].run {
            step.remove(run.proposed());
        }
        let part = decode(i, &mut agents[i], config, most, next_depth, (cost, step));
        if let (Some(part), Some(run)) = (&part, &agents[i].run) {
            step.add((part.drafts.tokens.len(), run.acceptance(part.drafts.source)));
        }
        parts.extend(part);
    }
    if let Some((i, end)) = chunk {
        parts.extend(prompt(i, &mut agents[i], config, end, next.get(writing.len()).copied().unwrap_or(0)));
    }
    parts
}

/// How deep the draft head is to draft for each of `writing` in the step after this one.
fn next_depths(
    agents: &mut [Agent],
    writing: &[usize],
    config: &EngineConfig,
    cost: StepCost,
    most: usize,
) -> Vec<usize> {
    let chance = |&i: &usize| {
        let agent = &agents[i];
        agent.run.as_ref().map_or((0.0, 0), |run| run.chance(config, &agent.facts, most))
    };
    let chances: Vec<_> = writing.iter().map(chance).collect();
    if config.fixed_depth {
        return chances.into_iter().map(|(_, most)| most).collect();
    }
    let best = depths(cost, Rows::plain(writing.len()), &chances);
    let settled = writing.iter().zip(&chances).zip(best);
    settled.map(|((&i, &(_, most)), best)| agents[i].run.as_mut().map_or(0, |r| r.settle(best, most))).collect()
}

fn decode(
    i: usize,
    agent: &mut Agent,
    config: &EngineConfig,
    most: usize,
    next_depth: usize,
    step: (StepCost, Rows),
) -> Option<Part> {
    let run = agent.run.as_mut()?;
    let newest = *agent.tokens.last()?;
    let left = run.budget - agent.facts.generated;
    let room = config.context - agent.consumed - 1;
    let mut drafts = run.choose_drafts(config, most.min(left - 1).min(room), next_depth, step);
    let masks = run.constrain(&mut drafts.tokens);
    let drafts = within_context(drafts, config, agent.consumed + 1);
    let tokens = std::iter::once(newest).chain(drafts.tokens.iter().copied()).collect();
    Some(Part { agent: i, tokens, drafts, prompt: false, samples: true, masks })
}

/// The draft head writes cells past the newest token: they too must lie inside the context.
fn within_context(mut drafts: Drafts, config: &EngineConfig, consumed: usize) -> Drafts {
    drafts.next_depth = drafts.next_depth.min(config.context.saturating_sub(consumed + drafts.tokens.len()));
    drafts
}

/// Whose prompt goes next: the one with the least left to read, so that a short question need not wait for long texts. Now and
/// then it is the oldest one, so that none starves.
fn next_prompt(agents: &[Agent], chunks: u64) -> Option<usize> {
    /// One chunk of so many goes to the oldest.
    const OLDEST: u64 = 4;
    let reading =
        agents.iter().enumerate().filter_map(|(i, a)| Some((i, a, a.run.as_ref().filter(|r| r.prefill && !r.waits)?)));
    let next = reading.min_by_key(|(_, agent, run)| {
        let left = if chunks.is_multiple_of(OLDEST) { 0 } else { agent.tokens.len() - agent.consumed };
        (left, run.started)
    });
    next.map(|(i, ..)| i)
}

/// Where the next chunk of an agent's prompt ends, if there is to be one.
fn chunk_end(agent: &Agent, pace: &Pace, waited: Option<Duration>) -> Option<usize> {
    let run = agent.run.as_ref()?;
    // A state can be kept only where a step ends.
    let stop = run.snapshots.range(agent.consumed + 1..).next().copied().unwrap_or(usize::MAX);
    pace.reach(agent.consumed, stop.min(run.request.prompt.len()), waited)
}

/// The part of an agent's prompt up to `end`.
fn prompt(i: usize, agent: &mut Agent, config: &EngineConfig, end: usize, next_depth: usize) -> Option<Part> {
    let run = agent.run.as_mut()?;
    let samples = end == run.request.prompt.len();
    let drafts = Drafts { source: Source::Head, tokens: Vec::new(), next_depth: if samples { next_depth } else { 0 } };
    let drafts = within_context(drafts, config, end);
    let masks = if samples { run.constrain(&mut Vec::new()) } else { Vec::new() };
    let tokens = run.request.prompt[agent.consumed..end].to_vec();
    Some(Part { agent: i, tokens, drafts, prompt: true, samples, masks })
}
