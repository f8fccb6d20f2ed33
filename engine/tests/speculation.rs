//! Drafts change the speed of a text, never its law: greedy texts stay the same, sampled ones keep their distribution.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;

use std::collections::BTreeMap;

use common::*;
use openjet_engine::backend::{Backend, KvType};
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::{DraftSource, SegmentKind};

const HEAD: SegmentKind = SegmentKind::Decode(DraftSource::Head);

/// r_llamacpp_7052: the same bytes at every draft depth.
#[test]
fn greedy_texts_are_the_same_at_every_depth_of_the_draft_head() {
    let model = model(TINY);
    let golden = golden(TINY).0;
    for name in ["chat", "tool", "unicode"] {
        let prompt = &golden.prompts.iter().find(|p| p.name == name).unwrap().tokens;
        let texts: Vec<_> = (0..=6)
            .map(|depth| {
                let mut backend = backend(&model, KvType::Q8_0, 1);
                let mut conversation = Conversation::new(0);
                let choice = Choice::drafting(depth);
                let first = conversation.read(&mut backend, prompt, 512, &choice, &mut Seen::default());
                let (text, tally) = conversation.write(&mut backend, first, 64, &choice);
                assert_eq!(text.len(), 64);
                if depth > 0 {
                    assert!(tally.accepted > 0, "{name}: no draft of depth {depth} was ever accepted");
                }
                (text, backend.save_state(0).unwrap())
            })
            .collect();
        for (depth, (text, state)) in texts.iter().enumerate() {
            assert_eq!(text, &texts[0].0, "{name}: depth {depth}");
            assert!(*state == texts[0].1, "{name}: recurrent state at depth {depth}");
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
        let kind = SegmentKind::Decode(DraftSource::Given);
        let choice = Choice { budget: (60 - text.len()) as u32, ..Choice::greedy() };
        let output = conversation.run(&mut backend, &rows, kind, Some(&choice), &mut Seen::default());
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
            output = conversation.run(&mut backend, &rows, HEAD, Some(&choice), &mut Seen::default());
            all.extend(output.tokens.iter().cloned());
        }
        all
    };
    let plain = run(0);
    assert!(plain.iter().all(|t| t.logprobs.as_ref().is_some_and(|l| l.top.len() == 5 && l.chosen < 0.0)));
    assert_eq!(run(4), plain);
}

/// Two samples of one law: the statistic's deviation in standard normal units (Wilson and Hilferty's approximation).
fn chi_square_z(a: &BTreeMap<u32, f64>, b: &BTreeMap<u32, f64>) -> (f64, usize) {
    let mut cells: Vec<(f64, f64)> = Vec::new();
    let mut rest = (0.0, 0.0);
    let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    for key in keys {
        let (x, y) = (a.get(key).copied().unwrap_or(0.0), b.get(key).copied().unwrap_or(0.0));
        if x + y >= 20.0 { cells.push((x, y)) } else { rest = (rest.0 + x, rest.1 + y) }
    }
    cells.push(rest);
    let (n, m): (f64, f64) = cells.iter().fold((0.0, 0.0), |(n, m), (x, y)| (n + x, m + y));
    let statistic: f64 = cells
        .iter()
        .filter(|(x, y)| x + y > 0.0)
        .map(|(x, y)| {
            let (ex, ey) = ((x + y) * n / (n + m), (x + y) * m / (n + m));
            (x - ex).powi(2) / ex + (y - ey).powi(2) / ey
        })
        .sum();
    let k = (cells.len() - 1) as f64;
    (((statistic / k).cbrt() - (1.0 - 2.0 / (9.0 * k))) / (2.0 / (9.0 * k)).sqrt(), cells.len() - 1)
}

#[test]
fn sampled_texts_with_drafts_have_the_law_of_plain_ones() {
    const SAMPLES: u64 = 1200;
    let model = model(TINY);
    let prompt = golden(TINY).0.prompts.into_iter().find(|p| p.name == "unicode").unwrap().tokens;
    let (last, before) = prompt.split_last().unwrap();
    let mut backend = backend(&model, KvType::F32, 1);
    let mut start = Conversation::new(0);
    start.read(&mut backend, before, 512, &Choice::greedy(), &mut Seen::default());
    let state = backend.save_state(0).unwrap();
    for temperature in [0.7, 1.0, 1.5] {
        // How often each token stands second and third after the prompt.
        let mut sample = |depth: usize, seeds: std::ops::Range<u64>| {
            let mut counts = [BTreeMap::new(), BTreeMap::new()];
            let mut accepted = 0;
            for seed in seeds {
                backend.load_state(0, &state).unwrap();
                let mut conversation = Conversation { position: before.len() as u32, ..Conversation::new(0) };
                let params = SamplingParams { temperature, seed, ..SamplingParams::default() };
                let choice = Choice { params, ..Choice::drafting(depth) };
                let mut output = conversation.run(&mut backend, &[*last], HEAD, Some(&choice), &mut Seen::default());
                let mut text = vec![output.tokens[0].token];
                while text.len() < 3 {
                    let rows: Vec<u32> = text.last().into_iter().chain(&output.drafts).copied().collect();
                    output = conversation.run(&mut backend, &rows, HEAD, Some(&choice), &mut Seen::default());
                    accepted += output.accepted;
                    text.extend(output.tokens.iter().map(|t| t.token));
                }
                for (counts, token) in counts.iter_mut().zip(&text[1..]) {
                    *counts.entry(*token).or_insert(0.0) += 1.0;
                }
            }
            (counts, accepted)
        };
        let (plain, _) = sample(0, 0..SAMPLES);
        let (drafted, accepted) = sample(2, 1_000_000..1_000_000 + SAMPLES);
        assert!(accepted > 100, "{accepted} drafts accepted at temperature {temperature}");
        for (place, (a, b)) in plain.iter().zip(&drafted).enumerate() {
            let (z, freedom) = chi_square_z(a, b);
            println!("temperature {temperature}, token {}: {freedom} degrees of freedom, z = {z:.2}", place + 2);
            assert!(freedom >= 3);
            assert!(z < 3.5, "temperature {temperature}, token {}: z = {z}", place + 2);
        }
    }
}
