//! What users of other servers reported about slots, prefixes, scheduling and cancellation, as tests; each is named after the
//! report. Those about restarts are in `kept.rs`, those that need HTTP in the daemon's tests, those about drafts in
//! `speculation.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;
#[path = "common/serving.rs"]
mod serving;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{Backend, BackendError, BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig, Generation};
use openjet_engine::request::{Event, Request, RequestError};
use openjet_engine::step::{SegmentKind, Step};
use openjet_proto::{AgentState, Health};
use serving::*;

/// Waits until a request has begun to write.
fn until_it_writes(generation: &mut Generation) {
    wait("writing", || matches!(generation.events.try_recv(), Ok(Event::Tokens(_))));
}

/// ggml-org/llama.cpp issues 21831, 20153 and 22746: every turn of a hybrid model was read from the start.
#[test]
fn llama_cpp_21831_turn_two_reads_only_what_is_new() {
    let engine = engine(&small(), 192, |_| ());
    let prompt = text(6, 1000);
    let (answer, _) = finish(engine.submit(request(&prompt, 40)).unwrap());
    let second = [&prompt[..], &answer, &text(7, 20)].concat();
    let finished = finish(engine.submit(request(&second, 1)).unwrap()).1;
    assert_eq!(finished.usage.cached_tokens, 1000 + 39);
    // The answer comes back without its first ten tokens, as when a template drops the reasoning.
    let rewritten = [&prompt[..], &answer[10..], &text(7, 20)].concat();
    let (written, finished) = finish(engine.submit(request(&rewritten, 30)).unwrap());
    assert_eq!(finished.usage.cached_tokens, 960);
    assert_eq!(written, cold(&small(), &rewritten, 30));
}

/// ggml-org/llama.cpp issues 20428 and 21099: a short prompt left nothing to go on from.
#[test]
fn llama_cpp_20428_a_prompt_shorter_than_a_page_goes_on() {
    let prompt = text(8, 30);
    let engine = engine(&small(), 192, |_| ());
    let (answer, _) = finish(engine.submit(request(&prompt, 20)).unwrap());
    let second = [&prompt[..], &answer, &text(9, 10)].concat();
    let finished = finish(engine.submit(request(&second, 5)).unwrap()).1;
    assert_eq!(finished.usage.cached_tokens, 30 + 19);
}

/// ggml-org/llama.cpp issue 22942: a prefix that another slot had read was cold.
#[test]
fn llama_cpp_22942_what_one_agent_has_read_another_need_not() {
    let system = text(2, 1100);
    let engine = engine(&small(), 192, |c| c.agents = 2);
    let ask = |session: &str, own: u32| {
        let prompt = [&system[..], &text(own, 40)].concat();
        let request = Request { session: Some(session.to_owned()), ..request(&prompt, 10) };
        let mut generation = engine.submit(request).unwrap();
        let mut agent = None;
        wait("starting", || match generation.events.try_recv() {
            Ok(Event::Started { agent: slot, .. }) => agent.replace(slot).is_none(),
            _ => false,
        });
        let (text, finish) = finish(generation);
        (agent.unwrap(), text, finish.usage.cached_tokens, prompt)
    };
    // The first leaves a state in the last page that the two have in common, since its own part is short.
    let (first, ..) = ask("a", 3);
    let (second, written, cached, prompt) = ask("b", 4);
    assert_ne!(first, second);
    assert_eq!((cached, written), (1088, cold(&small(), &prompt, 10)));
    let (_, written, cached, prompt) = ask("c", 5);
    assert_eq!((cached, written), (1088, cold(&small(), &prompt, 10)));
}

/// ggml-org/llama.cpp issue 27148: texts of other conversations appeared after a restore under load.
#[test]
fn llama_cpp_27148_no_text_crosses_over() {
    let engine = engine(&small(), 96, |c| (c.agents, c.host_cache) = (3, 600_000));
    let mut conversations: Vec<_> = (0..12).map(|i| text(20 + i, 50 + 13 * i as usize)).collect();
    for turn in 0..3 {
        // To and fro, so that the least recently used are not always the next ones.
        let order = (0..12).map(|i| if turn % 2 == 0 { i } else { 11 - i });
        let running: Vec<_> = order.map(|i| (i, engine.submit(request(&conversations[i], 12)).unwrap())).collect();
        for (i, generation) in running {
            let (answer, finished) = finish(generation);
            if finished.usage.cached_tokens == 0 || turn == 0 {
                assert_eq!(answer, cold(&small(), &conversations[i], 12), "conversation {i}, turn {turn}");
            }
            conversations[i].extend(answer);
            conversations[i].extend(text(90 + turn, 8));
        }
    }
    wait("counting", || engine.status().requests_finished == 36);
    assert!(engine.status().prompt_tokens_cached > 0);
}

/// ggml-org/llama.cpp issue 28139: pinned to an empty slot, a request read a prefix again that was there.
#[test]
fn llama_cpp_28139_a_new_session_uses_a_prefix_that_is_there() {
    let system = text(50, 700);
    let engine = engine(&small(), 192, |c| c.agents = 4);
    let ask = |session: &str, own: u32| {
        let prompt = [&system[..], &text(own, 70)].concat();
        finish(engine.submit(Request { session: Some(session.to_owned()), ..request(&prompt, 3) }).unwrap()).1.usage
    };
    assert_eq!(ask("a", 51).cached_tokens, 0);
    ask("b", 52);
    assert_eq!(ask("new", 53).cached_tokens, 640);
}

/// ggml-org/llama.cpp issue 27616: the prefix of a busy slot could not be shared.
#[test]
fn llama_cpp_27616_the_prefix_of_a_busy_agent_is_shared() {
    let system = text(2, 700);
    let (a, b) = ([&system[..], &text(3, 40)].concat(), [&system[..], &text(4, 50)].concat());
    let engine = engine(&small(), 192, |c| c.agents = 2);
    // A first request leaves blocks but no state at the branch; the second one leaves it there.
    assert_eq!(finish(engine.submit(request(&a, 10)).unwrap()).1.usage.cached_tokens, 0);
    finish(engine.submit(request(&[&system[..], &text(5, 30)].concat(), 1)).unwrap());
    let mut busy = engine.submit(request(&a, 4000)).unwrap();
    until_it_writes(&mut busy);
    let (text, finished) = finish(engine.submit(request(&b, 40)).unwrap());
    assert_eq!(finished.usage.cached_tokens, 640);
    assert_eq!(text, cold(&small(), &b, 40));
    drop(busy);
}

/// sgl-project/sglang issue 39342: a chunk read in one step with somebody's decoding left a state that had not been written.
#[test]
fn sglang_39342_a_state_left_while_others_write_is_that_of_a_cold_read() {
    let engine = engine(&small(), 192, |c| c.agents = 2);
    let mut writing = engine.submit(request(&text(60, 80), 4000)).unwrap();
    until_it_writes(&mut writing);
    let prompt = text(61, 500);
    finish(engine.submit(request(&prompt, 1)).unwrap());
    assert!(engine.status().agents.iter().any(|a| a.state == AgentState::Decode), "it was read in company");
    drop(writing);
    let next = [&prompt[..460], &text(62, 40)].concat();
    let (written, finished) = finish(engine.submit(request(&next, 40)).unwrap());
    assert_eq!(finished.usage.cached_tokens, 448);
    assert_eq!(written, cold(&small(), &next, 40));
}

/// noonghunna/club-3090 issue 1052: drafts after a resume at an unaligned length wrote out of bounds, and none was accepted
/// later on.
#[test]
fn club_3090_1052_drafts_go_on_being_accepted_after_an_unaligned_resume() {
    let engine = engine(&model(TINY), 192, |c| (c.draft, c.lookup) = (3, false));
    let prompt = golden(TINY).0.prompts[1].tokens.clone();
    let (answer, _) = finish(engine.submit(request(&prompt, 37)).unwrap());
    let next = [&prompt[..], &answer, &[198]].concat();
    let share = |finish: &openjet_engine::request::Finish| {
        finish.usage.drafts_accepted as f64 / finish.usage.drafts_offered.max(1) as f64
    };
    let (text, early) = finish(engine.submit(request(&next, 200)).unwrap());
    assert!(!early.usage.cached_tokens.is_multiple_of(64) && early.usage.cached_tokens > prompt.len());
    let (_, late) = finish(engine.submit(request(&[&next[..], &text, &[198]].concat(), 600)).unwrap());
    println!("accepted {:.2}, then {:.2}", share(&early), share(&late));
    assert!(share(&early) > 0.5 && share(&late) > share(&early) - 0.25);
}

/// spiritbuun/buun-llama-cpp issue 111: drafts were accepted on the first slot alone.
#[test]
fn buun_llama_cpp_111_drafts_are_accepted_alike_on_every_agent() {
    let engine = engine(&model(TINY), 96, |c| (c.agents, c.draft, c.fixed_depth) = (4, 3, true));
    let prompt = golden(TINY).0.prompts[1].tokens.clone();
    let running = [0; 4].map(|_| engine.submit(request(&prompt, 40)).unwrap());
    let done = running.map(finish);
    let drafts =
        done.each_ref().map(|(text, finish)| (text, finish.usage.drafts_offered, finish.usage.drafts_accepted));
    assert!(drafts[0].2 > 10, "{drafts:?}");
    assert!(drafts.iter().all(|other| *other == drafts[0]), "{drafts:?}");
}

/// ggml-org/llama.cpp issues 25908, 22931 and 28196: drafts made texts slower that accept none.
#[test]
fn llama_cpp_25908_drafts_that_are_never_right_cost_next_to_nothing() {
    const TOKENS: u32 = 600;
    // Nothing ties the draft head of random weights to the model.
    let model = small();
    let engine = engine(&model, 96, |c| (c.agents, c.draft) = (1, 6));
    let usage = finish(engine.submit(request(&text(75, 100), TOKENS)).unwrap()).1.usage;
    wait("counting", || engine.status().requests_finished == 1);
    let cost =
        CpuBackend::new(model, BackendOptions { slots: 1, pages: 1, kv: KvType::Q8_0, draft_max: 0 }).unwrap().cost();
    // The prompt is a step too.
    let time = (engine.status().steps - 1) as f64 + f64::from(cost.row + cost.draft) * usage.drafts_offered as f64;
    let speed = f64::from(TOKENS - 1) / time;
    println!("{} of {} drafts accepted: {speed:.3} of the plain speed", usage.drafts_accepted, usage.drafts_offered);
    assert!(usage.drafts_accepted * 3 < usage.drafts_offered.max(1), "this text is no case");
    assert!(speed >= 0.95, "{speed:.3} of the plain speed");
}

/// signalnine/q27 issue 47: with several slots, one that was used alone was slow.
#[test]
fn q27_47_idle_agents_cost_nothing() {
    let cost = |agents: usize| {
        let engine = engine(&small(), 96, |c| c.agents = agents);
        let text = finish(engine.submit(request(&text(70, 200), 100)).unwrap()).0;
        wait("counting", || engine.status().requests_finished == 1);
        let status = engine.status();
        let held: usize = status.agents.iter().map(|a| a.pages).sum();
        (text, status.steps, status.prompt_tokens_computed, held)
    };
    assert_eq!(cost(1), cost(8));
}

/// ggml-org/llama.cpp issue 9016: the context was divided by the number of slots, and nobody said so.
#[test]
fn llama_cpp_9016_one_agent_of_four_may_use_the_whole_context_and_an_error_names_it() {
    let engine = engine(&small(), 24, |c| c.agents = 4);
    assert_eq!(finish(engine.submit(request(&text(71, 1200), 5)).unwrap()).0.len(), 5);
    let error = engine.submit(request(&text(72, 1600), 5)).unwrap_err();
    assert!(matches!(error, RequestError::ContextOverflow { prompt_tokens: 1600, context: 1536, .. }));
    assert!(error.to_string().contains("1600") && error.to_string().contains("1536"), "{error}");
}

/// ggml-org/llama.cpp issue 29175: one chunk of a long prompt stopped all others for half a minute.
#[test]
fn llama_cpp_29175_whoever_writes_keeps_two_fifths_of_its_speed_and_waits_80_ms_at_most() {
    // What a step takes on some device, in milliseconds.
    let cost = |prompt: usize| 20.0 + if prompt > 0 { 20.0 + 0.4 * prompt as f64 } else { 0.0 };
    let steps = Arc::new(Mutex::new(Vec::new()));
    let model = small();
    let options = BackendOptions { slots: 2, pages: 192, kv: KvType::Q8_0, draft_max: 0 };
    let seen = Arc::clone(&steps);
    let before = move |step: &Step<'_>| {
        let rows = |kind: fn(&SegmentKind) -> bool| {
            step.segments.iter().filter(|s| kind(&s.kind)).map(|s| s.tokens.len()).sum::<usize>()
        };
        let prompt = rows(|kind| *kind == SegmentKind::Prompt);
        seen.lock().unwrap().push((prompt, rows(|kind| *kind != SegmentKind::Prompt)));
        std::thread::sleep(Duration::from_secs_f64(cost(prompt) / 1e3));
        Ok(())
    };
    let backend = Hooked {
        backend: CpuBackend::new(model.clone(), options).unwrap(),
        before,
        prompt_rows: 512,
        copied: Arc::default(),
    };
    let config = EngineConfig { agents: 2, draft: 0, lookup: false, ..EngineConfig::new(8192, 1024, Vec::new()) };
    let (engine, _thread) = Engine::start(Box::new(backend), config).unwrap();
    let mut writing = engine.submit(request(&text(73, 64), 5000)).unwrap();
    until_it_writes(&mut writing);
    wait("writing for a while", || engine.status().steps > 10);
    finish(engine.submit(request(&text(74, 1500), 1)).unwrap());

    let steps = steps.lock().unwrap();
    let first = steps.iter().rposition(|&(_, decode)| decode == 0).unwrap() + 1;
    let from = first + steps[first..].iter().position(|&(prompt, _)| prompt > 0).unwrap();
    let to = steps.iter().rposition(|&(prompt, _)| prompt > 0).unwrap() + 1;
    let company = &steps[from..to];
    let time: f64 = company.iter().map(|&(prompt, _)| cost(prompt)).sum();
    let kept = company.len() as f64 * cost(0) / time;
    let longest = company.iter().map(|&(prompt, _)| cost(prompt)).fold(0.0, f64::max);
    println!("{} steps, {kept:.2} of the speed, {longest:.0} ms at most: {company:?}", company.len());
    assert!(company.iter().all(|&(_, decode)| decode == 1), "it wrote in every step");
    assert!(kept >= 0.4, "it kept {kept:.2} of its speed");
    assert!(longest <= 80.0, "it waited {longest} ms");
    // Nor does the prompt wait longer than that takes.
    assert!(kept < 0.75, "the prompt had {:.2} of the time", 1.0 - kept);
    drop(writing);
}

#[test]
fn prompts_are_read_by_as_many_rows_as_the_backend_takes_up_to_1024_where_nobody_writes() {
    let model = small();
    let chunks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&chunks);
    let before = move |step: &Step<'_>| {
        let prompts = step.segments.iter().filter(|s| s.kind == SegmentKind::Prompt);
        seen.lock().unwrap().extend(prompts.map(|s| s.tokens.len()));
        Ok(())
    };
    let (all, most) = (vec![1024, 1024, 52], vec![640, 384, 640, 384, 52]);
    for (prompt_rows, chunk, expected) in
        [(640, None, &most), (1024, None, &all), (2048, None, &all), (512, Some(640), &most)]
    {
        let options = BackendOptions { slots: 1, pages: 48, kv: KvType::Q8_0, draft_max: 0 };
        let backend = CpuBackend::new(model.clone(), options).unwrap();
        let backend = Hooked { backend, before: before.clone(), prompt_rows, copied: Arc::default() };
        let config = EngineConfig { agents: 1, draft: 0, chunk, ..EngineConfig::new(3072, 1024, Vec::new()) };
        let (engine, _thread) = Engine::start(Box::new(backend), config).unwrap();
        finish(engine.submit(request(&text(75, 2100), 1)).unwrap());
        // States are left at 1024 and 2048.
        assert_eq!(&std::mem::take(&mut *chunks.lock().unwrap()), expected, "{prompt_rows} rows, {chunk:?}");
    }
}

/// jundot/omlx pull request 3726: a short question waited for all the long prompts before it.
#[test]
fn omlx_3726_a_short_question_goes_before_the_rest_of_long_prompts() {
    let engine = engine(&small(), 420, |c| c.agents = 5);
    let long: Vec<_> = (0..4).map(|i| engine.submit(request(&text(80 + i, 6000), 1)).unwrap()).collect();
    wait("reading", || engine.status().agents.iter().filter(|a| a.state == AgentState::Prefill).count() == 4);
    assert_eq!(finish(engine.submit(request(&text(90, 20), 1)).unwrap()).0.len(), 1);
    let reading = engine.status().agents.iter().filter(|a| a.state == AgentState::Prefill).count();
    assert!(reading >= 3, "only {reading} of 4 long prompts were still being read");
    long.into_iter().for_each(|generation| assert_eq!(finish(generation).0.len(), 1));
}

/// ggml-org/llama.cpp issues 24496, 13262 and 11720: texts went on being written after their readers had left.
#[test]
fn llama_cpp_24496_who_leaves_frees_the_agent_within_a_step() {
    let engine = engine(&model(TINY), 96, |c| c.agents = 1);
    for state in [AgentState::Decode, AgentState::Prefill] {
        let prompt = if state == AgentState::Prefill { text(91, 1500) } else { text(92, 60) };
        let leaving = engine.submit(request(&prompt, 2000)).unwrap();
        wait("running", || engine.status().agents[0].state == state);
        let steps = engine.status().steps;
        drop(leaving);
        wait("leaving", || engine.status().agents[0].state == AgentState::Idle);
        // The status is that of the last step, and one more may have been under way.
        let taken = engine.status().steps - steps;
        assert!(taken <= 3, "{taken} steps for nobody");
    }
    assert_eq!(engine.status().requests_cancelled, 2);
}

/// ikawrakow/ik_llama.cpp issue 1929: cancelling a request that waited ended one that ran.
#[test]
fn ik_llama_cpp_1929_leaving_the_queue_harms_nobody() {
    let engine = engine(&model(TINY), 96, |c| c.agents = 1);
    let prompt = text(93, 100);
    let running = engine.submit(request(&prompt, 300)).unwrap();
    wait("starting", || engine.status().agents[0].state != AgentState::Idle);
    let (gone, stays) = (engine.submit(request(&prompt, 10)).unwrap(), engine.submit(request(&prompt, 10)).unwrap());
    wait("queueing", || engine.status().queue.len() == 2);
    assert_eq!(engine.status().queue[0].request, gone.id);
    drop(gone);
    wait("leaving", || engine.status().queue.len() == 1);
    assert_eq!(finish(running).0.len(), 300);
    assert_eq!(finish(stays).0.len(), 10);
    assert_eq!(engine.status().requests_cancelled, 1);
}

/// ggml-org/llama.cpp issues 13281 and 13085: after an error of the device requests hung while the server said it was well.
#[test]
fn llama_cpp_13281_after_a_device_error_everybody_is_told_and_nobody_waits() {
    let model = small();
    let options = BackendOptions { slots: 2, pages: 48, kv: KvType::Q8_0, draft_max: 0 };
    let mut steps = 20;
    let before = move |_: &Step<'_>| {
        steps -= 1;
        if steps == 0 { Err(BackendError::Device("the device is lost".into())) } else { Ok(()) }
    };
    let backend = Hooked {
        backend: CpuBackend::new(model.clone(), options).unwrap(),
        before,
        prompt_rows: 512,
        copied: Arc::default(),
    };
    let config = EngineConfig { agents: 1, draft: 0, ..EngineConfig::new(3072, model.config.vocab, Vec::new()) };
    let (engine, thread) = Engine::start(Box::new(backend), config).unwrap();
    let requests = [0, 1].map(|_| engine.submit(request(&text(94, 30), 500)).unwrap());
    for mut generation in requests {
        let failed = loop {
            match generation.events.blocking_recv() {
                Some(Event::Failed(error)) => break error,
                Some(_) => {}
                None => panic!("it was not told"),
            }
        };
        assert!(failed.to_string().contains("the device is lost"), "{failed}");
    }
    assert!(matches!(&engine.status().health, Health::Failed { reason } if reason.contains("the device is lost")));
    let refused = engine.submit(request(&text(94, 30), 1)).unwrap_err();
    assert!(matches!(refused, RequestError::Unavailable(_)) && refused.to_string().contains("lost"), "{refused}");
    thread.join().unwrap();
}

#[test]
fn who_hears_that_its_request_began_finds_it_in_the_status() {
    let model = small();
    let options = BackendOptions { slots: 2, pages: 16, kv: KvType::Q8_0, draft_max: 0 };
    let before = |_: &Step<'_>| {
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    };
    let backend = CpuBackend::new(model.clone(), options).unwrap();
    let backend = Hooked { backend, before, prompt_rows: 512, copied: Arc::default() };
    let config = EngineConfig { agents: 2, draft: 0, lookup: false, ..EngineConfig::new(1024, 1024, Vec::new()) };
    let (engine, _thread) = Engine::start(Box::new(backend), config).unwrap();
    for i in 0..5 {
        let mut running = engine.submit(request(&text(80 + i, 20), 3)).unwrap();
        while !matches!(running.events.blocking_recv().unwrap(), Event::Started { .. }) {}
        assert!(engine.status().agents.iter().any(|agent| agent.state != AgentState::Idle), "request {i}");
        finish(running);
    }
}
