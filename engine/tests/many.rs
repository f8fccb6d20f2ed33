//! More agents than a step has rows for: drafts get shallower, then agents take turns, and nothing is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "common/serving.rs"]
mod serving;

use std::sync::Arc;

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::step::MAX_DECODE_ROWS;
use openjet_proto::{AgentState, EngineStatus};
use serving::*;

/// An engine of few pages a slot that drafts as deep as it may.
fn large(slots: usize, draft: usize) -> Engine {
    let model = small();
    let options = BackendOptions { slots, pages: 3 * slots, kv: KvType::Q8_0, draft_max: draft };
    let backend = CpuBackend::new(Arc::clone(&model), options).unwrap();
    let base = EngineConfig::new(256, model.config.vocab, Vec::new());
    let config = EngineConfig { agents: 1, draft, lookup: false, fixed_depth: true, queue: 1000, ..base };
    Engine::start(Box::new(backend), config).unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn from_1_to_64_agents_and_back_under_load_nothing_is_lost() {
    let engine = large(64, 0);
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

/// Starts as many agents as there are and lets all of them write: the status then, and `steps` or a few more steps later.
async fn all_writing(engine: &Engine, agents: usize, steps: u64) -> [Arc<EngineStatus>; 2] {
    engine.set_agents(agents).await.unwrap();
    let running: Vec<_> = (0..agents).map(|i| engine.submit(request(&text(i as u32, 20), 171)).unwrap()).collect();
    wait("writing", || engine.status().agents.iter().all(|a| a.state == AgentState::Decode));
    let before = engine.status();
    wait("going on", || engine.status().steps >= before.steps + steps);
    let after = engine.status();
    drop(running);
    [before, after]
}

#[tokio::test(flavor = "multi_thread")]
async fn with_more_agents_drafts_get_shallower_before_anybody_waits() {
    let engine = large(MAX_DECODE_ROWS, 6);
    for (agents, depth) in [(8, 6), (18, 3), (36, 1), (72, 0)] {
        let [before, after] = all_writing(&engine, agents, 8).await;
        for (before, after) in before.agents.iter().zip(&after.agents) {
            let offered = |place: usize| {
                let count = |offered: &[u64]| offered.get(place).copied().unwrap_or_default();
                count(&after.drafts_offered) - count(&before.drafts_offered)
            };
            assert!((0..depth).all(|place| offered(place) > 0), "{agents} agents: {:?}", after.drafts_offered);
            assert!((depth..8).all(|place| offered(place) == 0), "{agents} agents: {:?}", after.drafts_offered);
            assert!(after.generated_tokens - before.generated_tokens >= 8, "{agents} agents: somebody waited");
        }
        wait("ending", || engine.status().agents.iter().all(|a| a.state == AgentState::Idle));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_step_has_too_few_rows_agents_take_turns() {
    const AGENTS: usize = MAX_DECODE_ROWS + 8;
    let [before, after] = all_writing(&large(AGENTS, 3), AGENTS, 40).await;
    let steps = (after.steps - before.steps) as usize;
    let gained: Vec<usize> = (after.agents.iter().zip(&before.agents))
        .map(|(after, before)| after.generated_tokens - before.generated_tokens)
        .collect();
    println!("{steps} steps gave each agent {:?} to {:?} tokens", gained.iter().min(), gained.iter().max());
    // Every agent has a row in 72 of 80 steps.
    assert_eq!(gained.iter().sum::<usize>(), steps * MAX_DECODE_ROWS);
    assert!(gained.iter().all(|&n| n + 1 >= steps * MAX_DECODE_ROWS / AGENTS - 8), "{gained:?}");
}
