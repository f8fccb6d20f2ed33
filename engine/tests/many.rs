//! More agents than a step has rows for: they take turns, and nothing is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;
#[path = "common/serving.rs"]
mod serving;

use std::sync::Arc;

use common::*;
use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::step::MAX_DECODE_ROWS;
use openjet_proto::AgentState;
use serving::*;

fn large(name: &str, slots: usize, draft: usize) -> Engine {
    let model = model(name);
    let options = BackendOptions { slots, pages: 3 * slots, kv: KvType::Q8_0, draft_max: draft };
    let backend = CpuBackend::new(Arc::clone(&model), options).unwrap();
    let base = EngineConfig::new(256, model.config.vocab, Vec::new());
    let config = EngineConfig { agents: 1, draft, lookup: false, fixed_depth: true, queue: 1000, ..base };
    Engine::start(Box::new(backend), config).unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn from_1_to_64_agents_and_back_under_load_nothing_is_lost() {
    let engine = large(MODELS[3], 64, 0);
    let prompts: Vec<_> = (0..8).map(|i| text(i, 10 + 7 * i as usize)).collect();
    let alone: Vec<_> = prompts.iter().map(|p| finish_apart(engine.submit(request(p, 30)).unwrap())).collect();
    let mut expected = Vec::new();
    for text in alone {
        expected.push(text.await);
    }
    for agents in [64, 3, 33, 64, 1] {
        let running: Vec<_> = (0..70).map(|i| (i % 8, engine.submit(request(&prompts[i % 8], 30)).unwrap())).collect();
        assert_eq!(engine.set_agents(agents).await, Ok(agents));
        for (i, generation) in running {
            assert_eq!(finish_apart(generation).await, expected[i], "with {agents} agents");
        }
        wait("shrinking", || engine.status().agents.len() == agents);
    }
    assert!(engine.set_agents(65).await.unwrap_err().contains("1 to 64"));
    engine.forget(None).await.unwrap();
    assert_eq!(engine.status().pages_free, 3 * 64);
}

async fn finish_apart(generation: openjet_engine::engine::Generation) -> Vec<u32> {
    tokio::task::spawn_blocking(|| finish(generation).0).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_step_has_too_few_rows_agents_take_turns() {
    const AGENTS: usize = MAX_DECODE_ROWS + 8;
    let engine = large(MODELS[3], AGENTS, 0);
    engine.set_agents(AGENTS).await.unwrap();
    let running: Vec<_> = (0..AGENTS).map(|i| engine.submit(request(&text(i as u32, 20), 200)).unwrap()).collect();
    wait("writing", || engine.status().agents.iter().all(|a| a.state == AgentState::Decode));
    let before = engine.status();
    wait("going on", || engine.status().steps >= before.steps + 90);
    let after = engine.status();
    let steps = (after.steps - before.steps) as usize;
    let gained: Vec<usize> = (after.agents.iter().zip(&before.agents))
        .map(|(after, before)| after.generated_tokens - before.generated_tokens)
        .collect();
    println!("{steps} steps gave each agent {:?} to {:?} tokens", gained.iter().min(), gained.iter().max());
    // Every agent has a row in 72 of 80 steps.
    assert_eq!(gained.iter().sum::<usize>(), steps * MAX_DECODE_ROWS);
    assert!(gained.iter().all(|&n| n + 1 >= steps * MAX_DECODE_ROWS / AGENTS - 8), "{gained:?}");
    drop(running);
}
