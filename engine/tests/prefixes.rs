//! No prompt is read twice, and what is reused gives the bits of a cold read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "common/serving.rs"]
mod serving;

use openjet_engine::request::Request;
use serving::*;

#[test]
fn four_agents_with_one_system_prompt_arriving_together_read_it_once() {
    let system = text(1, 1200);
    let prompts: Vec<_> = (0..4).map(|i| [&system[..], &text(10 + i, 100)].concat()).collect();
    let engine = engine(&small(), 192, |c| c.agents = 4);
    let running: Vec<_> = prompts.iter().map(|p| engine.submit(request(p, 30)).unwrap()).collect();
    let done: Vec<_> = running.into_iter().map(finish).collect();
    wait("counting", || engine.status().requests_finished == 4);
    let status = engine.status();
    // 1,152 is the last multiple of 64 inside the system prompt.
    assert_eq!(status.prompt_tokens_computed, 1300 + 3 * (1300 - 1152));
    assert_eq!(done.iter().map(|d| d.1.usage.cached_tokens).sum::<usize>(), 3 * 1152);
    for (prompt, (text, _)) in prompts.iter().zip(&done) {
        assert_eq!(text, &cold(&small(), prompt, 30), "reuse changed a text");
    }
}

#[test]
fn a_beginning_that_arrives_again_is_not_read_again() {
    let system = text(3, 1200);
    // Where the system message ends is known of conversations; of other texts it is not.
    for (known, cached) in [(Some(1200), 1152), (None, 1024)] {
        let engine = engine(&small(), 192, |c| c.agents = 4);
        for (i, cached) in [0, cached, 1152].into_iter().enumerate() {
            let prompt = [&system[..], &text(10 + i as u32, 100)].concat();
            let (text, finish) =
                finish(engine.submit(Request { system_until: known, ..request(&prompt, 10) }).unwrap());
            assert_eq!(finish.usage.cached_tokens, cached, "request {i}, {known:?}");
            assert_eq!(text, cold(&small(), &prompt, 10), "reuse changed a text");
        }
    }
}

#[test]
fn ten_turns_on_four_agents_with_two_slots_compute_only_what_is_new() {
    let engine = engine(&small(), 192, |c| c.agents = 2);
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
