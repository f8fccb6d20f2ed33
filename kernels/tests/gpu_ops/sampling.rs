//! Sampling, acceptance, log probabilities and drafts, against the engine's sampler.

use openjet_engine::sampling::{Distribution, History, SamplingError, SamplingParams, logprobs};
use openjet_engine::step::{Logprobs, SampleSpec, Segment, SegmentKind};
use openjet_kernels::args::{
    CANDIDATE_BYTES, NO_DRAFT, PICK_BYTES, SLICE, SLICE_LIST, STATS_BYTES, SampleArgs, SlotState,
};
use openjet_kernels::program::OpKind;
use openjet_kernels::table::{Part, Row, StepResult, TableBuilder};

use crate::machine::{Machine, Memory, Random};

const VOCAB: usize = 10_000;
const HIDDEN: usize = 96;
const SLOTS: usize = 12;
const DRAFTS: usize = 3;
const ROWS: usize = 40;

/// A request in the middle of its text.
#[derive(Clone)]
struct Talk {
    slot: usize,
    params: SamplingParams,
    prompt: Vec<u32>,
    output: Vec<u32>,
    end_tokens: Vec<u32>,
    budget: u32,
    masks: Vec<Option<Vec<u32>>>,
    drafts: Vec<u32>,
    depth: usize,
    /// rows x vocabulary, and what the draft head would say, depth x vocabulary.
    logits: Vec<f32>,
    draft_logits: Vec<f32>,
    prompt_last: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    accepted: usize,
    tokens: Vec<u32>,
    logprobs: Vec<Option<Logprobs>>,
    drafts: Vec<u32>,
    error: Option<SamplingError>,
}

/// What the engine's sampler says of a talk.
fn expected(talk: &Talk) -> Outcome {
    let mut outcome = Outcome::default();
    let rows: Vec<&[f32]> = talk.logits.chunks(VOCAB).collect();
    let mut history = History::new(&talk.params, &talk.prompt, &talk.output);
    let position = position(talk);
    for (j, logits) in rows.iter().enumerate() {
        let at = position + j as u32;
        let usable = usable();
        let mask: Vec<u32> = match talk.masks.get(j).and_then(|m| m.as_deref()) {
            Some(mask) => mask.iter().zip(&usable).map(|(a, b)| a & b).collect(),
            None => usable.clone(),
        };
        let p = match Distribution::new(logits, &talk.params, &history, Some(&mask)) {
            Ok(p) => p,
            Err(error) => return Outcome { error: Some(error), ..Outcome::default() },
        };
        let token = p.sample(talk.params.seed, at);
        outcome.tokens.push(token);
        outcome.logprobs.push(talk.params.logprobs.map(|n| logprobs(logits, Some(&usable), token, n)));
        history.push(token);
        if talk.drafts.get(j) != Some(&token)
            || talk.end_tokens.contains(&token)
            || outcome.tokens.len() >= talk.budget as usize
        {
            break;
        }
    }
    outcome.accepted = outcome.tokens.len() - 1;
    let mut newest = outcome.tokens[outcome.accepted];
    for (i, logits) in talk.draft_logits.chunks(VOCAB).enumerate() {
        if talk.end_tokens.contains(&newest) {
            break;
        }
        let Ok(q) = Distribution::new(logits, &talk.params, &history, Some(&usable())) else { break };
        newest = q.sample(talk.params.seed, position + (outcome.accepted + 1 + i) as u32);
        history.push(newest);
        outcome.drafts.push(newest);
    }
    outcome
}

/// Every token but fillers: the vocabulary's last hundred, and some inside it.
fn usable() -> Vec<u32> {
    let mut bits = vec![0; VOCAB.div_ceil(32)];
    for token in (0..VOCAB - 100).filter(|token| token % 1000 != 999) {
        bits[token / 32] |= 1 << (token % 32);
    }
    bits
}

/// Position of the token that the first row chooses.
fn position(talk: &Talk) -> u32 {
    (talk.prompt.len() + talk.output.len()) as u32
}

struct Device<'a> {
    machine: &'a mut Machine,
    slots: Memory,
    pending_hidden: Memory,
    hidden: Vec<f32>,
}

impl<'a> Device<'a> {
    fn new(machine: &'a mut Machine, random: &mut Random) -> Self {
        let slots = machine.upload(&[SlotState::default(); SLOTS]);
        let pending_hidden = machine.floats(SLOTS * HIDDEN);
        let hidden = random.normals(ROWS * HIDDEN, 1.0);
        Self { machine, slots, pending_hidden, hidden }
    }

    fn step(&mut self, talks: &[&Talk], blocks: u32) -> Vec<Outcome> {
        let tokens: Vec<Vec<u32>> = talks
            .iter()
            .map(|t| {
                let newest = t.output.last().or(t.prompt.last()).copied().unwrap();
                std::iter::once(newest).chain(t.drafts.iter().copied()).collect()
            })
            .collect();
        let segments: Vec<Segment<'_>> = talks
            .iter()
            .zip(&tokens)
            .map(|(t, tokens)| Segment {
                slot: t.slot,
                position: position(t) - 1,
                tokens,
                pages: &[0],
                kind: if t.prompt_last { SegmentKind::Prompt } else { SegmentKind::Decode },
                sample: Some(SampleSpec {
                    params: &t.params,
                    prompt: &t.prompt,
                    output: &t.output,
                    end_tokens: &t.end_tokens,
                    budget: t.budget,
                    masks: &t.masks,
                    draft_depth: t.depth,
                }),
            })
            .collect();
        let listed: Vec<_> = segments
            .iter()
            .map(|s| (s, if s.kind == SegmentKind::Prompt { Part::LastRow } else { Part::Rows }))
            .collect();
        let table = self.machine.upload(TableBuilder::default().build(&listed));
        let rows: usize = tokens.iter().map(Vec::len).sum();
        assert!(rows <= ROWS);
        let slices = VOCAB.div_ceil(SLICE);
        let logits: Vec<f32> = talks.iter().flat_map(|t| t.logits.iter().copied()).collect();
        let logits = self.machine.upload(&logits);
        let draft_logits: Vec<Memory> = (0..DRAFTS)
            .map(|i| {
                let row =
                    |t: &&Talk| t.draft_logits.chunks(VOCAB).nth(i).map_or(vec![f32::NAN; VOCAB], <[f32]>::to_vec);
                self.machine.upload(&talks.iter().flat_map(row).collect::<Vec<f32>>())
            })
            .collect();
        let most = rows.max(talks.len());
        let hidden = self.machine.upload(&self.hidden);
        let usable = self.machine.upload(&usable());
        let draft_hidden = self.machine.floats(talks.len() * HIDDEN);
        let adjusted = self.machine.floats(most * VOCAB);
        let stats = self.machine.alloc(most * slices * STATS_BYTES);
        let candidates = self.machine.alloc(most * slices * SLICE_LIST * CANDIDATE_BYTES);
        let picks = self.machine.alloc(most * PICK_BYTES);
        let result = self.machine.alloc(size_of::<StepResult>());
        let draft_rows = self.machine.alloc(talks.len() * size_of::<Row>());
        let at = |memory| self.machine.address(memory);
        let args = SampleArgs {
            table: at(table),
            logits: at(logits),
            adjusted: at(adjusted),
            stats: at(stats),
            candidates: at(candidates),
            picks: at(picks),
            slots: at(self.slots),
            result: at(result),
            hidden: at(hidden),
            pending_hidden: at(self.pending_hidden),
            draft_hidden: at(draft_hidden),
            draft_rows: at(draft_rows),
            usable: at(usable),
            vocab: VOCAB as u32,
            draft: NO_DRAFT,
            draft_max: DRAFTS as u32,
            hidden_width: HIDDEN as u32,
        };
        let drafting: Vec<SampleArgs> =
            (0..DRAFTS).map(|i| SampleArgs { logits: at(draft_logits[i]), draft: i as u32, ..args }).collect();
        self.machine.run(table, blocks, |program| {
            for op in [
                OpKind::SampleAdjust,
                OpKind::SampleWeigh,
                OpKind::SamplePick,
                OpKind::SampleAccept,
                OpKind::SampleLogprobs,
            ] {
                program.then(op, args);
            }
            for args in &drafting {
                program.then(OpKind::SampleAdjust, *args);
                program.then(OpKind::SampleWeigh, *args);
                program.then(OpKind::SamplePick, *args);
            }
        });
        let result = self.machine.read::<StepResult>(result, 1)[0];
        let pending: Vec<f32> = self.machine.read(self.pending_hidden, SLOTS * HIDDEN);
        let start: Vec<f32> = self.machine.read(draft_hidden, talks.len() * HIDDEN);
        let slots: Vec<SlotState> = self.machine.read(self.slots, SLOTS);
        let mut first = 0;
        let outcome = |(n, t): (usize, &&Talk)| {
            let segment = result.segment[n];
            let accepted = segment.accepted as usize;
            if !t.prompt_last {
                assert_eq!(slots[t.slot].pending as usize, accepted + 1, "rows that the state has still to take in");
            }
            let hidden = &self.hidden[(first + accepted) * HIDDEN..(first + accepted + 1) * HIDDEN];
            assert!(
                &pending[t.slot * HIDDEN..(t.slot + 1) * HIDDEN] == hidden
                    && &start[n * HIDDEN..(n + 1) * HIDDEN] == hidden
            );
            let outcome = if let Some(error) = segment.error() {
                Outcome { error: Some(error), ..Outcome::default() }
            } else {
                let rows = first..=first + accepted;
                Outcome {
                    accepted,
                    tokens: t.drafts[..accepted].iter().copied().chain([segment.token]).collect(),
                    logprobs: rows.map(|r| t.params.logprobs.map(|_| Logprobs::from(&result.logprobs[r]))).collect(),
                    drafts: segment.draft[..segment.drafts as usize].to_vec(),
                    error: None,
                }
            };
            first += tokens[n].len();
            outcome
        };
        talks.iter().enumerate().map(outcome).collect()
    }
}

/// Equal but for rounding of log probabilities.
fn same(a: &Outcome, b: &Outcome) -> bool {
    let near = |x: f32, y: f32| (x - y).abs() < 2e-5;
    let alike = |x: &Option<Logprobs>, y: &Option<Logprobs>| match (x, y) {
        (Some(x), Some(y)) => {
            near(x.chosen, y.chosen)
                && x.top.len() == y.top.len()
                && x.top.iter().zip(&y.top).all(|(x, y)| x.0 == y.0 && near(x.1, y.1))
        }
        (None, None) => true,
        _ => false,
    };
    (a.accepted, &a.tokens, &a.drafts, a.error) == (b.accepted, &b.tokens, &b.drafts, b.error)
        && a.logprobs.len() == b.logprobs.len()
        && a.logprobs.iter().zip(&b.logprobs).all(|(x, y)| alike(x, y))
}

/// Requests of all kinds; `round` varies seeds and texts.
fn talks(random: &mut Random, round: u64) -> Vec<Talk> {
    let base = SamplingParams {
        temperature: 1.0,
        seed: round.wrapping_mul(0x1234_5678_9abc_def1),
        ..SamplingParams::default()
    };
    let mut mask = vec![0u32; VOCAB.div_ceil(32)];
    mask.iter_mut().enumerate().for_each(|(i, w)| *w = if i % 3 == 0 { random.next() as u32 } else { 0 });
    let kinds: Vec<SamplingParams> = vec![
        SamplingParams { temperature: 0.0, logprobs: Some(3), ..base.clone() },
        base.clone(),
        SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.95, ..base.clone() },
        SamplingParams { temperature: 0.6, top_p: 0.9, logprobs: Some(20), ..base.clone() },
        SamplingParams { temperature: 1.3, min_p: 0.05, ..base.clone() },
        SamplingParams { temperature: 2.0, top_k: 3000, top_p: 0.8, min_p: 0.001, ..base.clone() },
        SamplingParams { temperature: 0.0, repetition_penalty: 1.3, frequency_penalty: 0.4, ..base.clone() },
        SamplingParams {
            repetition_penalty: 1.2,
            presence_penalty: 0.8,
            frequency_penalty: -0.5,
            top_k: 40,
            logit_bias: vec![(7, 9.0), (4096, 8.0), (7, 1.5), (9_999, -100.0)],
            ..base.clone()
        },
        SamplingParams { temperature: 0.9, top_k: 5, ..base.clone() },
        SamplingParams { temperature: 1.0, top_p: 0.5, top_k: 1, ..base },
    ];
    let mut all = Vec::new();
    for (i, params) in kinds.into_iter().enumerate() {
        let drafts = if i % 5 == 4 { 0 } else { 1 + random.below(2) };
        let depth = (i + round as usize) % (DRAFTS + 1);
        // Peaked and flat rows, and coarse ones with many ties.
        let scale = [1.5f32, 6.0, 3.0][(i + round as usize) % 3];
        let mut logits = random.normals((1 + drafts) * VOCAB, scale);
        let mut draft_logits = random.normals(depth * VOCAB, scale);
        if i % 4 == 0 || i == 9 {
            for x in logits.iter_mut().chain(&mut draft_logits) {
                *x = (*x * 2.0).round() / 2.0;
            }
        }
        // Rows that are sure: no other token has a weight, or only few have one.
        if (i + round as usize) % 4 == 2 {
            for row in logits.chunks_mut(VOCAB).chain(draft_logits.chunks_mut(VOCAB)) {
                row[random.below(VOCAB - 100)] += if random.below(2) == 0 { 60.0 } else { 24.0 };
            }
        }
        let text = |random: &mut Random, n: usize| (0..n).map(|_| random.below(VOCAB) as u32).collect::<Vec<_>>();
        // Half of the drafts are the row's best token, so that some are accepted.
        let best =
            |row: &[f32]| (0..VOCAB as u32).fold(0, |b, t| if row[t as usize] > row[b as usize] { t } else { b });
        let drafts = (0..drafts)
            .map(|j| {
                if random.below(3) > 0 { best(&logits[j * VOCAB..(j + 1) * VOCAB]) } else { random.below(VOCAB) as u32 }
            })
            .collect::<Vec<_>>();
        all.push(Talk {
            slot: (i * 7 + 3) % SLOTS,
            params,
            prompt: text(random, 30),
            output: text(random, 50),
            end_tokens: if i % 3 == 2 { vec![drafts.first().copied().unwrap_or(5), 77] } else { vec![77] },
            budget: if i == 3 { 1 } else { 100 },
            masks: if i % 4 == 1 { vec![None, Some(mask.clone())] } else { Vec::new() },
            drafts,
            depth,
            logits,
            draft_logits,
            prompt_last: false,
        });
    }
    for talk in &mut all {
        // Fillers have any logits, now and then the highest.
        for row in talk.logits.chunks_mut(VOCAB).chain(talk.draft_logits.chunks_mut(VOCAB)) {
            row[VOCAB - 1 - random.below(100)] = 40.0;
            row[999] = 30.0;
        }
        // Tokens seen before are likely ones.
        let row = &talk.logits[..VOCAB];
        let mut order: Vec<u32> = (0..VOCAB as u32).collect();
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        talk.output.splice(0..6, order[..6].iter().copied());
        talk.output.splice(10..12, order[..2].iter().copied());
        talk.prompt[..4].copy_from_slice(&order[3..7]);
    }
    all
}

/// Two steps of many requests: the second verifies what the first one's draft head proposed.
#[test]
fn two_steps_follow_the_engines_sampler() {
    for machine in &mut Machine::all() {
        let mut random = Random::new(77);
        let rounds = if machine.is_gpu() { 40 } else { 3 };
        let (mut accepted, mut offered, mut mismatches, mut decisions) = (0, 0, 0, 0);
        for round in 0..rounds {
            let mut device = Device::new(machine, &mut random);
            let mut talks = talks(&mut random, round);
            talks[1].prompt_last = true;
            talks[1].masks.clear();
            let newest = VOCAB * talks[1].drafts.len();
            talks[1].logits.drain(..newest);
            talks[1].drafts.clear();
            for step in 0..2 {
                let expected: Vec<Outcome> = talks.iter().map(expected).collect();
                let got = device.step(&talks.iter().collect::<Vec<_>>(), 1 + (round as u32 * 3) % 7);
                for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    decisions += expected.tokens.len() + expected.drafts.len();
                    offered += talks[i].drafts.len();
                    accepted += expected.accepted;
                    if !same(got, expected) {
                        mismatches += 1;
                        println!("round {round} step {step} request {i}: {got:?}\n   instead of {expected:?}");
                    }
                }
                // Go on with what the draft head proposed, under logits near its own.
                for (talk, got) in talks.iter_mut().zip(&got) {
                    talk.output.extend(&got.tokens);
                    talk.drafts.clone_from(&got.drafts);
                    talk.prompt_last = false;
                    talk.masks.clear();
                    talk.logits = random.normals((1 + got.drafts.len()) * VOCAB, 1.0);
                    for (x, near) in talk.logits.iter_mut().zip(&talk.draft_logits) {
                        *x = near + 0.3 * *x;
                    }
                    talk.depth = 1;
                    talk.draft_logits = random.normals(VOCAB, 4.0);
                }
            }
        }
        println!("{decisions} decisions, {accepted} of {offered} drafts accepted, {mismatches} requests differ");
        assert_eq!(mismatches, 0);
        assert!(accepted > offered / 5 && accepted < offered);
    }
}

/// A request's outcome is the same, bit for bit, alone and among others, in any order and on any grid.
#[test]
fn company_changes_nothing() {
    for machine in &mut Machine::all() {
        let mut random = Random::new(5);
        let talks = talks(&mut random, 1);
        let mut device = Device::new(machine, &mut random);
        let together = device.step(&talks.iter().collect::<Vec<_>>(), 5);
        let backwards = device.step(&talks.iter().rev().collect::<Vec<_>>(), 3);
        assert!(together.iter().eq(backwards.iter().rev()));
        for (talk, outcome) in talks.iter().zip(&together) {
            assert_eq!(device.step(&[talk], 2)[0], *outcome);
        }
    }
}

#[test]
fn bad_logits_and_empty_masks_are_reported() {
    for machine in &mut Machine::all() {
        let mut random = Random::new(6);
        let mut talks = talks(&mut random, 2);
        talks[0].logits[VOCAB - 1] = f32::NAN;
        talks[1].logits[3] = f32::INFINITY;
        talks[2].masks = vec![Some(vec![0; VOCAB.div_ceil(32)])];
        // Only fillers.
        talks[5].masks = vec![Some(usable().iter().map(|word| !word).collect())];
        talks[6].masks = vec![Some(vec![0; VOCAB.div_ceil(32)])];
        let mut device = Device::new(machine, &mut random);
        let got = device.step(&talks.iter().collect::<Vec<_>>(), 4);
        let errors: Vec<_> = got.iter().enumerate().filter_map(|(i, o)| o.error.map(|e| (i, e))).collect();
        let (not_finite, nothing) = (SamplingError::NotFinite, SamplingError::NothingAllowed);
        assert_eq!(errors, [(0, not_finite), (1, not_finite), (2, nothing), (5, nothing), (6, nothing)]);
        for i in [3, 4, 7, 8, 9] {
            assert!(same(&got[i], &expected(&talks[i])), "request {i} was harmed by others");
        }
    }
}

/// What a row says that nobody comes to doesn't end the conversation.
#[test]
fn rows_after_a_refused_draft_do_not_count() {
    for machine in &mut Machine::all() {
        let mut random = Random::new(8);
        let mut talk = talks(&mut random, 0).swap_remove(0);
        let best = expected(&talk).tokens[0];
        talk.drafts = vec![best + 1];
        talk.logits.truncate(VOCAB);
        talk.logits.extend([f32::NAN; VOCAB]);
        let got = Device::new(machine, &mut random).step(&[&talk], 2);
        assert_eq!((got[0].error, &got[0].tokens), (None, &vec![best]));
    }
}
