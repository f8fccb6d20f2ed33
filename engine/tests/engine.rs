//! The engine's thread with real requests: same texts in any company, cancellation, queue, resize, a pool that is too small.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;
#[path = "common/serving.rs"]
mod serving;

use std::time::Duration;

use common::*;
use openjet_engine::engine::Engine;
use openjet_engine::request::{Event, FinishReason, Request, RequestError};
use openjet_engine::sampling::SamplingParams;
use openjet_proto::AgentState;
use serving::*;

fn prompts() -> Vec<GoldenPrompt> {
    golden(TINY).0.prompts
}

/// Prompts for tests in which it does not matter what is written.
fn texts() -> Vec<Vec<u32>> {
    [12, 38, 201, 138].into_iter().enumerate().map(|(i, n)| text(i as u32, n)).collect()
}

fn text_of(engine: &Engine, prompt: &[u32], n: u32) -> Vec<u32> {
    finish(engine.submit(request(prompt, n)).unwrap()).0
}

/// sudoingX/qwen38-mtp pull request 36: two sources of drafts together failed on the third prompt, one of them alone too.
#[test]
fn qwen38_mtp_36_head_lookup_and_both_write_the_same_greedy_text_as_neither() {
    let model = model(TINY);
    let prompts = prompts();
    let plain = engine(&model, 48, |c| (c.draft, c.lookup) = (0, false));
    let prompts =
        ["short", "chat", "repeat"].map(|name| prompts.iter().find(|p| p.name == name).unwrap().tokens.clone());
    let expected = prompts.each_ref().map(|p| text_of(&plain, p, 50));
    for (draft, lookup, fixed) in [(0, true, false), (2, false, true), (3, true, false), (6, true, true)] {
        let engine = engine(&model, 48, |c| (c.draft, c.lookup, c.fixed_depth) = (draft, lookup, fixed));
        for (prompt, expected) in prompts.iter().zip(&expected) {
            assert_eq!(&text_of(&engine, prompt, 50), expected, "draft {draft}, lookup {lookup}, fixed {fixed}");
        }
    }
}

/// With a fixed seed a sampled text is the same without drafts, at any depth, with lookup and without, alone and while others
/// come and go, with whom the depth changes.
#[test]
fn sampled_texts_depend_neither_on_drafts_nor_on_company() {
    const TOKENS: u32 = 40;
    let model = model(TINY);
    let golden = prompts();
    let mine = ["short", "chat", "repeat"].map(|name| {
        let prompt = &golden.iter().find(|p| p.name == name).unwrap().tokens;
        let params = SamplingParams { temperature: 0.8, top_p: 0.95, seed: 11, ..SamplingParams::default() };
        Request { params, ..request(prompt, TOKENS) }
    });
    let plain = engine(&model, 48, |c| (c.agents, c.draft, c.lookup) = (1, 0, false));
    let expected = mine.each_ref().map(|mine| finish(plain.submit(mine.clone()).unwrap()).0);
    let greedy = text_of(&plain, &mine[0].prompt, TOKENS);
    assert_ne!(expected[0], greedy);
    for (draft, lookup, fixed) in
        [(0, true, true), (1, false, true), (3, false, true), (3, true, false), (6, true, true)]
    {
        let engine = engine(&model, 48, |c| (c.agents, c.draft, c.lookup, c.fixed_depth) = (1, draft, lookup, fixed));
        for (mine, expected) in mine.iter().zip(&expected) {
            let (text, finish) = finish(engine.submit(mine.clone()).unwrap());
            assert_eq!(&text, expected, "draft {draft}, lookup {lookup}, fixed {fixed}");
            assert!(lookup || finish.usage.drafts_offered > 0);
        }
    }
    let crowd = engine(&model, 8 * 48, |c| (c.agents, c.draft) = (8, 6));
    let mut others = Vec::new();
    let mut next = 0;
    for round in 0..2 {
        let running = mine.each_ref().map(|mine| {
            for _ in 0..=round {
                let params = SamplingParams { temperature: 1.0, seed: next, ..SamplingParams::default() };
                let other = Request { params, ..request(&text(next as u32, 9 + next as usize), 4 + 5 * next as u32) };
                others.push(crowd.submit(other).unwrap());
                next += 1;
            }
            crowd.submit(mine.clone()).unwrap()
        });
        // Some leave before they are done.
        others.truncate(2);
        for (running, expected) in running.into_iter().zip(&expected) {
            assert_eq!(&finish(running).0, expected, "in company");
        }
    }
}

#[test]
fn eight_agents_with_prompts_arriving_all_the_time_write_what_each_writes_alone() {
    let model = model(TINY);
    let prompts: Vec<_> = prompts().into_iter().map(|p| p.tokens).filter(|p| p.len() < 300).collect();
    let alone = engine(&model, 48, |c| c.agents = 1);
    let expected: Vec<_> = prompts.iter().map(|p| text_of(&alone, p, 30)).collect();
    let crowd = engine(&model, 8 * 48, |c| c.agents = 8);
    let running: Vec<_> = (0..24)
        .map(|i| {
            std::thread::sleep(Duration::from_millis(7 * (i % 5)));
            crowd.submit(request(&prompts[i as usize % prompts.len()], 30)).unwrap()
        })
        .collect();
    for (i, generation) in running.into_iter().enumerate() {
        assert_eq!(finish(generation).0, expected[i % prompts.len()], "request {i}");
    }
    // Status is published after the step that finished the last one.
    wait("counting", || crowd.status().requests_finished == 24);
    assert_eq!(crowd.status().tokens_generated, 24 * 30);
}

#[test]
fn a_pool_too_small_for_all_parks_conversations_and_loses_nothing() {
    let model = small();
    let prompts = texts();
    let alone = engine(&model, 48, |c| c.agents = 1);
    let expected: Vec<_> = prompts[..4].iter().map(|p| text_of(&alone, p, 150)).collect();
    // Four conversations want up to 7 pages each; there are 12.
    let small = engine(&model, 12, |c| c.agents = 4);
    let running: Vec<_> = prompts[..4].iter().map(|p| small.submit(request(p, 150)).unwrap()).collect();
    for (generation, expected) in running.into_iter().zip(&expected) {
        let (text, finish) = finish(generation);
        assert_eq!(&text, expected);
        assert_eq!(finish.reason, FinishReason::Length);
    }
}

#[test]
fn a_conversation_that_goes_on_computes_only_what_is_new() {
    let model = small();
    let prompt = &texts()[1];
    let engine = engine(&model, 48, |_| ());
    let (text, _) = finish(engine.submit(request(prompt, 30)).unwrap());
    let computed = engine.status().prompt_tokens_computed;
    let longer = [&prompt[..], &text, &[198, 100, 200]].concat();
    let (_, second) = finish(engine.submit(request(&longer, 5)).unwrap());
    // The newest token was chosen but not consumed.
    assert_eq!(second.usage.cached_tokens, prompt.len() + 29);
    assert_eq!(engine.status().prompt_tokens_computed - computed, 4);
}

#[test]
fn a_full_queue_and_a_prompt_that_is_too_long_are_refused_with_numbers() {
    let model = small();
    let prompts = texts();
    let engine = engine(&model, 16, |c| (c.agents, c.queue) = (1, 2));
    let running = engine.submit(request(&prompts[1], 900)).unwrap();
    wait("starting", || engine.status().agents[0].state != AgentState::Idle);
    let waiting: Vec<_> = (0..2).map(|_| engine.submit(request(&prompts[0], 1)).unwrap()).collect();
    let error = engine.submit(request(&prompts[0], 1)).unwrap_err();
    assert!(matches!(error, RequestError::QueueFull { waiting: 2, .. }), "{error}");
    let error = engine.submit(request(&text(6, 1879), 1)).unwrap_err();
    assert!(matches!(error, RequestError::ContextOverflow { prompt_tokens: 1879, context: 1024, .. }), "{error}");
    drop(running);
    waiting.into_iter().for_each(|g| assert_eq!(finish(g).0.len(), 1));
    let full = finish(engine.submit(request(&text(5, 680), 5000)).unwrap());
    assert_eq!(full.1.reason, FinishReason::Length);
    assert_eq!(full.0.len(), 1024 - 680);
}

#[test]
fn bad_requests_are_refused_by_field() {
    let model = small();
    let engine = engine(&model, 16, |_| ());
    let refuse = |change: fn(&mut Request)| {
        let mut request = request(&[1, 2, 3], 5);
        change(&mut request);
        match engine.submit(request).unwrap_err() {
            RequestError::Invalid { field, .. } => field,
            other => panic!("{other}"),
        }
    };
    assert_eq!(refuse(|r| r.prompt.clear()), "prompt");
    assert_eq!(refuse(|r| r.prompt = vec![1024]), "prompt");
    assert_eq!(refuse(|r| r.params.temperature = f32::NAN), "temperature");
    assert_eq!(refuse(|r| r.params.top_p = 1.5), "top_p");
    assert_eq!(refuse(|r| r.params.logit_bias = vec![(9000, 1.0)]), "logit_bias");
    assert_eq!(refuse(|r| r.max_tokens = Some(0)), "max_tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_agents_changes_while_requests_run() {
    let model = small();
    let prompts = texts();
    let engine = engine(&model, 8 * 32, |c| c.agents = 1);
    let running: Vec<_> = (0..12).map(|i| engine.submit(request(&prompts[i % 4], 300)).unwrap()).collect();
    assert_eq!(engine.set_agents(6).await, Ok(6));
    assert_eq!(engine.status().agents.len(), 6);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(engine.set_agents(2).await, Ok(2));
    assert!(engine.set_agents(0).await.is_err());
    assert!(engine.set_agents(9).await.unwrap_err().contains("1 to 8"));
    let texts = tokio::task::spawn_blocking(move || running.into_iter().map(|g| finish(g).0.len()).collect::<Vec<_>>());
    assert_eq!(texts.await.unwrap(), vec![300; 12]);
    assert_eq!(engine.status().agents.len(), 2);
    engine.drain().await;
    assert!(matches!(engine.submit(request(&prompts[0], 1)), Err(RequestError::Unavailable(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_while_agents_are_to_become_fewer_takes_idle_ones_along() {
    let engine = engine(&small(), 1200, |c| (c.agents, c.draft, c.lookup) = (3, 0, false));
    let [stays, mut short, mut leaves] = [20_000, 5, 20_000].map(|n| engine.submit(request(&text(n, 30), n)).unwrap());
    while !matches!(leaves.events.recv().await, Some(Event::Started { agent: 2, .. })) {}
    assert_eq!(engine.set_agents(1).await, Ok(1));
    while !matches!(short.events.recv().await, Some(Event::Finished(_))) {}
    assert_eq!(engine.status().agents.len(), 3, "the one in the middle can't leave before the last one");
    drop(leaves);
    wait("shrinking", || engine.status().agents.len() == 1);
    drop(stays);
    let generation = engine.submit(request(&text(1, 30), 5)).unwrap();
    assert_eq!(tokio::task::spawn_blocking(|| finish(generation).0.len()).await.unwrap(), 5);
}

#[test]
fn the_same_seed_samples_the_same_text_and_another_seed_another() {
    let model = model(TINY);
    let prompt = &prompts()[1].tokens;
    let engine = engine(&model, 96, |c| c.agents = 3);
    let sampled = |seed: u64| {
        let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
        finish(engine.submit(Request { params, draft: Some(0), ..request(prompt, 40) }).unwrap()).0
    };
    assert_eq!(sampled(1), sampled(1));
    assert_ne!(sampled(1), sampled(2));
}
