//! The synthetic 27B on a GPU: its known greedy text for several agents and draft depths, and every draft right or wrong as
//! the list beside the model says. Prints what each setting yields in tokens per second.
//!
//! `OPENJET_SYNTH` names a model written by `openjetctl synth`; `OPENJET_SYNTH_TOKENS` (2000), `OPENJET_SYNTH_AGENTS` (1,4,8) and
//! `OPENJET_SYNTH_DRAFTS` (0,1,2,3,4,5,6,7,8) say how many tokens each agent writes, in which settings. Without a GPU the device
//! code runs on the CPU, which is slow: for a small model (`--tiny`) and a few tokens.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openjet_engine::backend::{Backend, BackendOptions, KvType};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::{PAGE_TOKENS, PageId, SampleSpec, Segment, SegmentKind, Step};
use openjet_kernels::CudaBackend;

const AGENTS: usize = 8;
const DRAFTS: usize = 8;
/// Each agent's prompt is so much longer than the one's before, so that they stand at different positions.
const PROMPT_STEP: usize = 37;
/// Tokens of the longest prompt that is read alone.
const PROMPT: usize = 23_000;

/// Pages of one agent: its prompt, its text, what it writes while a less lucky agent gets there, and what is drafted past it.
fn pages_of(tokens: usize) -> usize {
    (PROMPT_STEP * AGENTS + tokens + tokens / 4 + 2 * (1 + DRAFTS)).div_ceil(PAGE_TOKENS)
}

/// The text that the model must write.
struct Chain {
    next: Vec<u32>,
    wrong: HashSet<u32>,
}

impl Chain {
    fn read(model: &Path) -> Self {
        let bytes = std::fs::read(model.with_extension("chain.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let list = |name: &str| -> Vec<u32> {
            json[name].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
        };
        Self { next: list("next"), wrong: list("wrong_drafts").into_iter().collect() }
    }
}

struct Agent {
    text: Vec<u32>,
    prompt: usize,
    pages: Vec<PageId>,
    drafts: Vec<u32>,
}

/// What a setting gave.
#[derive(Default)]
struct Count {
    steps: usize,
    tokens: usize,
    offered: usize,
    accepted: usize,
    prefill: Duration,
    decode: Duration,
}

fn run(backend: &mut CudaBackend, chain: &Chain, agents: usize, depth: usize, tokens: usize) -> Count {
    let params = SamplingParams::default();
    let pages = pages_of(tokens);
    let vocab = chain.next.len() as u32;
    let mut all: Vec<Agent> = (0..agents)
        .map(|a| {
            let prompt = 5 + PROMPT_STEP * a;
            Agent {
                text: (0..prompt).map(|i| 300 + (7919 * (i * agents + a + 1)) as u32 % (vocab - 400)).collect(),
                prompt,
                pages: (0..pages).map(|p| (p * agents + a) as PageId).collect(),
                drafts: Vec::new(),
            }
        })
        .collect();
    for slot in 0..agents {
        backend.reset_slot(slot).unwrap();
    }
    let mut count = Count::default();
    let mut first = true;
    while first || all.iter().any(|a| a.text.len() - a.prompt < tokens) {
        let rows: Vec<Vec<u32>> = all
            .iter()
            .map(|a| {
                if first {
                    a.text.clone()
                } else {
                    a.text[a.text.len() - 1..].iter().chain(&a.drafts).copied().collect()
                }
            })
            .collect();
        let segment = |(slot, a): (usize, &'_ Agent)| (slot, if first { 0 } else { a.text.len() as u32 - 1 });
        let places: Vec<_> = all.iter().enumerate().map(segment).collect();
        let segments = all
            .iter()
            .zip(&rows)
            .zip(&places)
            .map(|((a, rows), &(slot, position))| Segment {
                slot,
                position,
                tokens: rows,
                pages: &a.pages,
                kind: if first { SegmentKind::Prompt } else { SegmentKind::Decode },
                sample: Some(SampleSpec {
                    params: &params,
                    prompt: &a.text[..a.prompt],
                    output: &a.text[a.prompt..],
                    end_tokens: &[],
                    budget: 100,
                    masks: &[],
                    draft_depth: depth,
                }),
            })
            .collect();
        let started = Instant::now();
        let outputs = backend.step(&Step { segments }).unwrap();
        *if first { &mut count.prefill } else { &mut count.decode } += started.elapsed();
        for (slot, (a, output)) in all.iter_mut().zip(&outputs).enumerate() {
            let setting =
                || format!("{agents} agents, {depth} drafts, agent {slot}, token {}", a.text.len() - a.prompt);
            assert_eq!(output.dead_end, None, "{}", setting());
            if !first {
                // What was accepted is what the list says: the drafts up to the first wrong one.
                let mut before = a.text[a.text.len() - 1];
                let right = a.drafts.iter().take_while(|&&d| {
                    let right = chain.next[before as usize] == d;
                    before = d;
                    right
                });
                assert_eq!(output.accepted, right.count(), "{}: accepted drafts", setting());
                count.offered += a.drafts.len();
                count.accepted += output.accepted;
                count.tokens += output.tokens.len();
            }
            for sampled in &output.tokens {
                let expected = chain.next[a.text[a.text.len() - 1] as usize];
                assert_eq!(
                    sampled.token,
                    expected,
                    "{agents} agents, {depth} drafts, agent {slot}: text breaks at {}",
                    a.text.len()
                );
                a.text.push(sampled.token);
            }
            let mut before = a.text[a.text.len() - 1];
            assert_eq!(output.drafts.len(), depth);
            for &draft in &output.drafts {
                let expected = chain.next[before as usize];
                assert_eq!(
                    draft != expected,
                    chain.wrong.contains(&expected),
                    "{agents} agents: the draft after {before}"
                );
                before = draft;
            }
            a.drafts.clone_from(&output.drafts);
        }
        count.steps += usize::from(!first);
        first = false;
    }
    count
}

/// Reads a prompt of so many tokens and prints how fast; the token after it is the known one.
fn read_prompt(backend: &mut CudaBackend, chain: &Chain, tokens: usize) {
    let params = SamplingParams::default();
    let vocab = chain.next.len() as u32;
    let text: Vec<u32> = (0..tokens as u32).map(|i| 300 + 7919 * i % (vocab - 400)).collect();
    let pages: Vec<PageId> = (0..tokens.div_ceil(PAGE_TOKENS) as PageId + 1).collect();
    backend.reset_slot(0).unwrap();
    let sample = SampleSpec {
        params: &params,
        prompt: &text,
        output: &[],
        end_tokens: &[],
        budget: 100,
        masks: &[],
        draft_depth: 0,
    };
    let segment =
        Segment { slot: 0, position: 0, tokens: &text, pages: &pages, kind: SegmentKind::Prompt, sample: Some(sample) };
    let started = Instant::now();
    let outputs = backend.step(&Step { segments: vec![segment] }).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    println!("prompt of {tokens:6} tokens {:9.1} ms {:9.0} tokens/s", 1e3 * seconds, tokens as f64 / seconds);
    assert_eq!(outputs[0].tokens[0].token, chain.next[text[tokens - 1] as usize], "after a prompt of {tokens}");
}

#[test]
fn known_text_of_the_synthetic_model() {
    let Some(path) = std::env::var_os("OPENJET_SYNTH") else {
        println!("skipped: OPENJET_SYNTH names no model (write one with `openjetctl synth`)");
        return;
    };
    let list = |name: &str, default: &str| -> Vec<usize> {
        let text = std::env::var(name).unwrap_or_else(|_| default.to_owned());
        text.split(',').map(|n| n.trim().parse().unwrap_or_else(|_| panic!("{name}: {n} is no number"))).collect()
    };
    let (agents, depths) = (list("OPENJET_SYNTH_AGENTS", "1,4,8"), list("OPENJET_SYNTH_DRAFTS", "0,1,2,3,4,5,6,7,8"));
    assert!(agents.iter().all(|&n| n <= AGENTS) && depths.iter().all(|&n| n <= DRAFTS), "too many");
    let device = common::device();
    let tokens: usize = std::env::var("OPENJET_SYNTH_TOKENS").map_or(2000, |n| n.parse().unwrap());
    let path = Path::new(&path);
    let chain = Chain::read(path);
    let started = Instant::now();
    let model = Arc::new(Model::load(Arc::new(GgufFile::open(path).unwrap())).unwrap());
    let pages = (AGENTS * pages_of(tokens)).max(PROMPT.div_ceil(PAGE_TOKENS) + 1);
    let options = BackendOptions { slots: AGENTS, pages, kv: KvType::Q8_0, draft_max: DRAFTS };
    println!("{}", device.describe());
    let mut backend = CudaBackend::new(device, model, options, &mut |_, _| ()).unwrap();
    println!("loaded in {:.1} s", started.elapsed().as_secs_f64());
    for prompt in [64, 512, 4096, 4096, PROMPT] {
        read_prompt(&mut backend, &chain, prompt);
    }
    println!("agents drafts  tokens/s  ms a step  tokens a step and agent  accepted  prompts ms");
    for &agents in &agents {
        for &depth in &depths {
            let c = run(&mut backend, &chain, agents, depth, tokens);
            let seconds = c.decode.as_secs_f64();
            println!(
                "{agents:6} {depth:6} {:9.1} {:10.2} {:24.2} {:8.0}% {:11.0}",
                c.tokens as f64 / seconds,
                1e3 * seconds / c.steps as f64,
                c.tokens as f64 / (c.steps * agents) as f64,
                100.0 * c.accepted as f64 / c.offered.max(1) as f64,
                1e3 * c.prefill.as_secs_f64(),
            );
        }
    }
}
