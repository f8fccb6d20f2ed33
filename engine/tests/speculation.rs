//! Drafts change the speed of a text, never the text, and sampled texts have the distribution that they are said to have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "support/chi_square.rs"]
mod chi_square;
mod common;

use chi_square::p_value;
use common::*;
use openjet_engine::backend::{Backend, KvType};
use openjet_engine::sampling::{Distribution, History, SamplingParams};
use openjet_engine::step::{SegmentKind, Step};

/// r_llamacpp_7052: the same bytes at every draft depth, at every temperature.
#[test]
fn texts_are_the_same_at_every_depth_of_the_draft_head() {
    let model = model(TINY);
    let golden = golden(TINY).0;
    let sampled =
        |temperature, top_p, top_k| SamplingParams { temperature, top_p, top_k, seed: 5, ..Default::default() };
    let penalised = SamplingParams { presence_penalty: 0.5, repetition_penalty: 1.1, ..sampled(0.7, 0.8, 20) };
    for (name, depths, params) in [
        ("chat", &[0, 1, 2, 3, 4, 5, 6][..], SamplingParams::default()),
        ("tool", &[0, 2, 4], SamplingParams::default()),
        ("unicode", &[0, 3, 6], SamplingParams::default()),
        ("chat", &[0, 1, 2, 3, 4, 5, 6], sampled(0.6, 0.95, 20)),
        ("tool", &[0, 2, 4], sampled(1.0, 1.0, 0)),
        ("unicode", &[0, 3, 6], penalised),
    ] {
        let prompt = &golden.prompts.iter().find(|p| p.name == name).unwrap().tokens;
        let texts: Vec<_> = (depths.iter())
            .map(|&depth| {
                let mut backend = backend(&model, KvType::Q8_0, 1);
                let mut conversation = Conversation::new(0);
                let choice = Choice { params: params.clone(), ..Choice::drafting(depth) };
                let first = conversation.read(&mut backend, prompt, 512, &choice, &mut Seen::default());
                let (text, tally) = conversation.write(&mut backend, first, 40, &choice);
                assert_eq!(text.len(), 40);
                if depth > 0 {
                    assert!(tally.accepted > 0, "{name}: no draft of depth {depth} was ever accepted");
                }
                (text, backend.save_state(0).unwrap())
            })
            .collect();
        for (depth, (text, state)) in depths.iter().zip(&texts) {
            assert_eq!(text, &texts[0].0, "{name}: depth {depth}, {params:?}");
            assert!(*state == texts[0].1, "{name}: recurrent state at depth {depth}, {params:?}");
        }
    }
}

/// r_buun_74: drafts that diverge in the middle leave no trace.
#[test]
fn given_drafts_that_are_partly_wrong_change_neither_text_nor_state() {
    let model = model(TINY);
    let prompt = golden(TINY).0.prompts.into_iter().find(|p| p.name == "chat").unwrap().tokens;
    let plain = {
        let mut backend = backend(&model, KvType::F16, 1);
        let mut conversation = Conversation::new(0);
        let choice = Choice::greedy();
        let first = conversation.read(&mut backend, &prompt, 512, &choice, &mut Seen::default());
        (conversation.write(&mut backend, first, 60, &choice).0, backend.save_state(0).unwrap())
    };
    let mut backend = backend(&model, KvType::F16, 1);
    let mut conversation = Conversation::new(0);
    let choice = Choice::greedy();
    let first = conversation.read(&mut backend, &prompt, 512, &choice, &mut Seen::default());
    let mut text = vec![first.tokens[0].token];
    let mut right = 0;
    while text.len() < 60 {
        // The true continuation with one token spoilt, in a place that moves.
        let mut rows = plain.0[text.len() - 1..(text.len() + 6).min(60)].to_vec();
        let spoilt = 1 + text.len() % 6;
        if let Some(token) = rows.get_mut(spoilt) {
            *token = (*token + 1) % 8000;
        }
        let choice = Choice { budget: (60 - text.len()) as u32, ..Choice::greedy() };
        let output = conversation.run(&mut backend, &rows, SegmentKind::Decode, Some(&choice), &mut Seen::default());
        right += output.accepted;
        text.extend(output.tokens.iter().map(|t| t.token));
    }
    assert!(right > 20, "{right}");
    assert_eq!(text, plain.0);
    assert!(backend.save_state(0).unwrap() == plain.1);
}

/// r_llamacpp_27196: log probabilities with drafts equal those without.
#[test]
fn log_probabilities_are_the_same_with_and_without_drafts() {
    let model = model(TINY);
    let prompt = golden(TINY).0.prompts.into_iter().find(|p| p.name == "tool").unwrap().tokens;
    let run = |depth: usize| {
        let mut backend = backend(&model, KvType::Q8_0, 1);
        let mut conversation = Conversation::new(0);
        let params = SamplingParams { logprobs: Some(5), ..SamplingParams::default() };
        let choice = Choice { params, ..Choice::drafting(depth) };
        let mut output = conversation.read(&mut backend, &prompt, 512, &choice, &mut Seen::default());
        let mut all = output.tokens.clone();
        while all.len() < 40 {
            let rows: Vec<u32> = [all.last().unwrap().token].into_iter().chain(output.drafts.iter().copied()).collect();
            let choice = Choice { budget: 40 - all.len() as u32, ..choice.clone() };
            output = conversation.run(&mut backend, &rows, SegmentKind::Decode, Some(&choice), &mut Seen::default());
            all.extend(output.tokens.iter().cloned());
        }
        all
    };
    let plain = run(0);
    assert!(plain.iter().all(|t| t.logprobs.as_ref().is_some_and(|l| l.top.len() == 5 && l.chosen < 0.0)));
    assert_eq!(run(4), plain);
}

#[test]
fn sampled_texts_with_drafts_have_the_law_of_plain_ones() {
    const SAMPLES: u64 = 400;
    /// Samples that are drawn side by side.
    const SLOTS: usize = 8;
    let model = model(TINY);
    let prompt = golden(TINY).0.prompts.into_iter().find(|p| p.name == "unicode").unwrap().tokens;
    let (last, before) = prompt.split_last().unwrap();
    let mut backend = backend(&model, KvType::F32, SLOTS);
    let mut plain = Conversation::new(0);
    plain.read(&mut backend, before, 512, &Choice::greedy(), &mut Seen::default());
    let state = backend.save_state(0).unwrap();
    let used = before.len().div_ceil(64);
    let cells: Vec<_> = plain.pages[..used].iter().map(|&page| backend.save_page(page).unwrap()).collect();

    // Without drafts: the logits after the prompt and its best token, and after these and the best token that follows.
    let mut best = vec![*last];
    let mut logits = Vec::new();
    for _ in 0..3 {
        let mut seen = Seen::default();
        let output =
            plain.run(&mut backend, &best[best.len() - 1..], SegmentKind::Decode, Some(&Choice::greedy()), &mut seen);
        best.push(output.tokens[0].token);
        logits.push(seen.logits);
    }
    let law = |logits: &[f32], temperature: f32| {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let mut law = vec![0.0; model.config.vocab];
        let usable = model.usable_tokens.as_deref();
        for (token, p) in Distribution::new(logits, &params, &History::default(), usable).unwrap().iter() {
            law[token as usize] = f64::from(p);
        }
        law
    };

    for slot in 1..SLOTS {
        let pages = Conversation::new(slot).pages;
        pages.iter().zip(&cells).for_each(|(&page, cells)| backend.load_page(page, cells).unwrap());
    }
    for temperature in [0.7, 1.5] {
        // How often each token came second, and third after a second one that was a draft and the best one.
        let mut counts = [vec![0; model.config.vocab], vec![0; model.config.vocab]];
        let mut accepted = 0;
        for seed in 0..SAMPLES / SLOTS as u64 {
            let conversations: Vec<_> = (0..SLOTS)
                .map(|slot| Conversation { position: before.len() as u32, ..Conversation::new(slot) })
                .collect();
            let choices: Vec<_> = (0..SLOTS as u64)
                .map(|i| {
                    let params =
                        SamplingParams { temperature, seed: seed * SLOTS as u64 + i, ..SamplingParams::default() };
                    Choice { params, draft_depth: 2, ..Choice::forced(best[1]) }
                })
                .collect();
            (0..SLOTS).for_each(|slot| backend.load_state(slot, &state).unwrap());
            let first = [*last];
            let segments = conversations
                .iter()
                .zip(&choices)
                .map(|(c, choice)| c.segment(&first, SegmentKind::Decode, Some(choice)));
            let outputs = backend.step(&Step { segments: segments.collect() }).unwrap();
            let rows: Vec<Vec<u32>> = outputs
                .iter()
                .map(|o| o.tokens.iter().map(|t| t.token).chain(o.drafts.iter().copied()).collect())
                .collect();
            assert!(rows.iter().all(|rows| rows.len() == 3 && rows[0] == best[1]));
            let conversations: Vec<_> =
                conversations.into_iter().map(|c| Conversation { position: c.position + 1, ..c }).collect();
            let choices: Vec<_> =
                choices.into_iter().map(|c| Choice { masks: Vec::new(), draft_depth: 0, ..c }).collect();
            let segments = conversations.iter().zip(&rows).zip(&choices);
            let segments =
                segments.map(|((c, rows), choice)| c.segment(rows, SegmentKind::Decode, Some(choice))).collect();
            for output in backend.step(&Step { segments }).unwrap() {
                accepted += output.accepted;
                let second = output.tokens[0].token;
                counts[0][second as usize] += 1;
                if let Some(third) = output.tokens.get(1).filter(|_| second == best[2]) {
                    counts[1][third.token as usize] += 1;
                }
            }
        }
        assert!(accepted > 100, "{accepted} drafts accepted at temperature {temperature}");
        for (place, counts) in counts.iter().enumerate() {
            let p = p_value(counts, &law(&logits[place + 1], temperature));
            let other = p_value(counts, &law(&logits[place + 1], 1.1));
            let drawn: u64 = counts.iter().sum();
            println!(
                "temperature {temperature}, token {}: {drawn} draws, p = {p:.3}, of another law {other:.1e}",
                place + 2
            );
            assert!(p > 1e-3, "temperature {temperature}, token {}: p = {p}", place + 2);
            assert!(other < 1e-3, "these draws would not tell laws apart: {other}");
        }
    }
}
