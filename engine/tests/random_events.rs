//! Random arrivals, lengths, cancellations, resizes and evictions: every conversation's text, greedy or sampled, equals the
//! one computed alone, and at the end every page is free again and nothing is left on disk.
//!
//! `OPENJET_EVENTS` sets how many events each seed has (120 if it is not set), `OPENJET_SEEDS` which seeds there are (1-3).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "common/serving.rs"]
mod serving;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use openjet_engine::engine::{Generation, StoreOptions};
use openjet_engine::request::{FinishReason, Request};
use openjet_engine::sampling::SamplingParams;
use serving::*;

/// Pages of the pool: five of the longest prompts need more.
const PAGES: usize = 18;

/// Most tokens of an answer.
const LONGEST: u64 = 12;

/// A small generator of numbers (xorshift64*), so that a seed is a scenario.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

/// Prompts of a few families that share beginnings of different lengths.
fn prompt(random: &mut Random) -> Vec<u32> {
    let family = random.below(3) as u32;
    let shared = [70, 140, 260][random.below(3) as usize];
    let own = random.below(3) as u32;
    let length = 5 + 40 * random.below(3) as u32;
    let beginning = (0..shared).map(|i| 300 + (family * 911 + i * i * 7 + i * 31) % 350);
    beginning.chain((0..length).map(|i| 650 + (own * 577 + i * i * 13 + i * 17) % 350)).collect()
}

/// A request whose prompt decides how its text is chosen.
fn ask(prompt: &[u32], tokens: u32) -> Request {
    let temperature = if prompt.last().is_some_and(|token| token % 2 == 0) { 0.9 } else { 0.0 };
    let params = SamplingParams { temperature, seed: prompt.len() as u64, ..SamplingParams::default() };
    Request { params, ..request(prompt, tokens) }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_texts_are_those_of_a_conversation_alone_and_nothing_leaks() {
    let events: u64 = std::env::var("OPENJET_EVENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(120);
    let model = small();
    let seeds = std::env::var("OPENJET_SEEDS").unwrap_or_else(|_| "1-3".into());
    let (first, last) = seeds.split_once('-').unwrap_or((&seeds, &seeds));
    let alone = engine(&model, PAGES, |c| (c.agents, c.host_cache) = (1, 0));
    let mut expected: HashMap<Vec<u32>, Vec<u32>> = HashMap::new();
    for seed in first.parse::<u64>().unwrap()..=last.parse().unwrap() {
        let disk = tempfile::tempdir().unwrap();
        let mut random = Random(seed);
        // Few pages and little room in host memory and on disk, so that conversations are parked, shelved, written, fetched
        // and dropped.
        let engine = engine(&model, PAGES, |c| {
            (c.agents, c.queue, c.host_cache, c.snapshot_every) = (3, 1000, 500_000, 128);
            c.store = Some(StoreOptions {
                folder: disk.path().to_owned(),
                model: [1; 32],
                limit: 2_000_000,
                keep_for: Duration::from_secs(3600),
                settle: Duration::from_millis(20),
            });
        });
        let mut running: Vec<(Vec<u32>, Generation)> = Vec::new();
        let (mut checked, mut dropped) = (0, 0);
        for _ in 0..events {
            match random.below(10) {
                0 => {
                    let wanted = 1 + random.below(6) as usize;
                    assert_eq!(engine.set_agents(wanted).await, Ok(wanted));
                }
                1 if !running.is_empty() => {
                    let victim = random.below(running.len() as u64) as usize;
                    drop(running.swap_remove(victim));
                    dropped += 1;
                }
                2 => tokio::time::sleep(Duration::from_millis(random.below(30))).await,
                3 if random.below(10) == 0 => {
                    engine.forget(None).await.unwrap();
                }
                _ => {
                    let prompt = prompt(&mut random);
                    let tokens = 1 + random.below(LONGEST) as u32;
                    running.push((prompt.clone(), engine.submit(ask(&prompt, tokens)).unwrap()));
                }
            }
            while running.len() > 12 {
                let (prompt, generation) = running.remove(0);
                check(&alone, &mut expected, prompt, generation).await;
                checked += 1;
            }
        }
        for (prompt, generation) in running {
            check(&alone, &mut expected, prompt, generation).await;
            checked += 1;
        }
        engine.set_agents(1).await.unwrap();
        wait("emptying", || engine.status().agents.iter().all(|a| a.request.is_none()) && engine.status().queued == 0);
        let status = engine.status();
        let distinct: HashSet<_> = expected.values().collect();
        assert!(distinct.len() * 4 > expected.len() * 3, "{} texts of {} prompts", distinct.len(), expected.len());
        println!(
            "seed {seed}: {checked} texts equal, {dropped} cancelled, {} tokens computed and {} reused of the prompts",
            status.prompt_tokens_computed, status.prompt_tokens_cached
        );
        assert!(status.prompt_tokens_cached > 0);
        engine.forget(None).await.unwrap();
        assert_eq!(engine.status().pages_free, PAGES, "pages leaked");
        for place in ["heads", "parts", "damaged"] {
            assert_eq!(std::fs::read_dir(disk.path().join(place)).unwrap().count(), 0, "files are left in {place}");
        }
    }
}

/// Compares a finished request with the same prompt on an engine that runs nothing else and remembers nothing.
async fn check(
    alone: &openjet_engine::engine::Engine,
    expected: &mut HashMap<Vec<u32>, Vec<u32>>,
    prompt: Vec<u32>,
    generation: Generation,
) {
    let (text, finished) = tokio::task::spawn_blocking(|| finish(generation)).await.unwrap();
    assert_eq!(finished.reason, FinishReason::Length);
    if !expected.contains_key(&prompt) {
        alone.forget(None).await.unwrap();
        let generation = alone.submit(ask(&prompt, LONGEST as u32)).unwrap();
        let (text, _) = tokio::task::spawn_blocking(|| finish(generation)).await.unwrap();
        expected.insert(prompt.clone(), text);
    }
    assert_eq!(text, expected[&prompt][..text.len()], "the text of a prompt of {} tokens", prompt.len());
}
