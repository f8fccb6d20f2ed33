//! No prompt is read twice, and what is reused gives the bits of a cold read. Tests are named after public reports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;
#[path = "common/serving.rs"]
mod serving;

use common::*;
use serving::*;

/// A prompt of `n` tokens that differs from those of other seeds from its first token on.
fn text(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 300 + (seed * 977 + i * i * 7 + i * (31 + seed)) % 4000).collect()
}

fn cold(prompt: &[u32], n: u32) -> Vec<u32> {
    finish(engine(&model(TINY), 96, |c| c.agents = 1).submit(request(prompt, n)).unwrap()).0
}

#[test]
fn four_agents_with_one_system_prompt_arriving_together_read_it_once() {
    let system = text(1, 1200);
    let prompts: Vec<_> = (0..4).map(|i| [&system[..], &text(10 + i, 100)].concat()).collect();
    let engine = engine(&model(TINY), 192, |c| c.agents = 4);
    let running: Vec<_> = prompts.iter().map(|p| engine.submit(request(p, 30)).unwrap()).collect();
    let done: Vec<_> = running.into_iter().map(finish).collect();
    wait("counting", || engine.status().requests_finished == 4);
    let status = engine.status();
    // 1,152 is the last multiple of 64 inside the system prompt.
    assert_eq!(status.prompt_tokens_computed, 1300 + 3 * (1300 - 1152));
    assert_eq!(done.iter().map(|d| d.1.usage.cached_tokens).sum::<usize>(), 3 * 1152);
    for (prompt, (text, _)) in prompts.iter().zip(&done) {
        assert_eq!(text, &cold(prompt, 30), "reuse changed a text");
    }
}

/// r_sglang_39342, r_llamacpp_27616, r_llamacpp_22942: a prefix of a busy slot is shared at once, with the bits of a cold read.
#[test]
fn r_llamacpp_27616_the_prefix_of_a_busy_agent_is_shared() {
    let system = text(2, 700);
    let (a, b) = ([&system[..], &text(3, 40)].concat(), [&system[..], &text(4, 50)].concat());
    let engine = engine(&model(TINY), 192, |c| c.agents = 2);
    // A first request leaves blocks but no state at the branch; the second one leaves it there.
    assert_eq!(finish(engine.submit(request(&a, 10)).unwrap()).1.usage.cached_tokens, 0);
    finish(engine.submit(request(&[&system[..], &text(5, 30)].concat(), 1)).unwrap());
    let mut busy = engine.submit(request(&a, 300)).unwrap();
    wait("writing", || matches!(busy.events.try_recv(), Ok(openjet_engine::request::Event::Tokens(_))));
    let (text, finished) = finish(engine.submit(request(&b, 40)).unwrap());
    assert_eq!(finished.usage.cached_tokens, 640);
    assert_eq!(text, cold(&b, 40));
    drop(busy);
}

/// r_llamacpp_21831: turn 2 resumes at a state inside the common prefix, also when history is rendered differently.
#[test]
fn r_llamacpp_21831_turn_two_with_history_rewritten_computes_little() {
    let prompt = text(6, 1000);
    let engine = engine(&model(TINY), 192, |_| ());
    let (answer, _) = finish(engine.submit(request(&prompt, 40)).unwrap());
    // The answer comes back without its first ten tokens, as when a template drops the reasoning.
    let second = [&prompt[..], &answer[10..], &text(7, 20)].concat();
    let (written, finished) = finish(engine.submit(request(&second, 30)).unwrap());
    assert_eq!(finished.usage.cached_tokens, 960);
    assert_eq!(written, cold(&second, 30));
}

/// r_llamacpp_20428: a short prompt's conversation goes on without being read again.
#[test]
fn r_llamacpp_20428_a_prompt_shorter_than_a_page_goes_on() {
    let prompt = text(8, 30);
    let engine = engine(&model(TINY), 192, |_| ());
    let (answer, _) = finish(engine.submit(request(&prompt, 20)).unwrap());
    let second = [&prompt[..], &answer, &text(9, 10)].concat();
    let finished = finish(engine.submit(request(&second, 5)).unwrap()).1;
    assert_eq!(finished.usage.cached_tokens, 30 + 19);
}

/// r_llamacpp_27148: many short conversations, fewer slots, memory for some of them only; nobody gets another's text.
#[test]
fn r_llamacpp_27148_no_text_crosses_over() {
    let engine = engine(&model(TINY), 96, |c| (c.agents, c.host_cache) = (3, 12 << 20));
    let mut conversations: Vec<_> = (0..12).map(|i| text(20 + i, 50 + 13 * i as usize)).collect();
    for turn in 0..3 {
        let running: Vec<_> = conversations.iter().map(|c| engine.submit(request(c, 12)).unwrap()).collect();
        for (i, generation) in running.into_iter().enumerate() {
            let (answer, finished) = finish(generation);
            if finished.usage.cached_tokens == 0 || turn == 0 {
                assert_eq!(answer, cold(&conversations[i], 12), "conversation {i}, turn {turn}");
            }
            conversations[i].extend(answer);
            conversations[i].extend(text(90 + turn, 8));
        }
    }
    wait("counting", || engine.status().requests_finished == 36);
    assert!(engine.status().prompt_tokens_cached > 0);
}

#[test]
fn ten_turns_on_four_agents_with_two_slots_compute_only_what_is_new() {
    let engine = engine(&model(TINY), 192, |c| c.agents = 2);
    let mut conversations: Vec<_> = (0..4).map(|i| text(40 + i, 400)).collect();
    let mut new = 0;
    for turn in 0..10 {
        for (i, conversation) in conversations.iter_mut().enumerate() {
            let (answer, _) = finish(engine.submit(request(conversation, 20)).unwrap());
            new += if turn == 0 { 400 } else { 16 };
            conversation.extend(answer);
            conversation.extend(text(60 + turn * 4 + i as u32, 15));
        }
    }
    wait("counting", || engine.status().requests_finished == 40);
    let computed = engine.status().prompt_tokens_computed;
    println!("{computed} prompt tokens computed, {new} were new");
    assert_eq!(computed, new);
}
