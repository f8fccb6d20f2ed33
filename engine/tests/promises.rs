//! A row's bits depend on its own conversation alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;

use common::*;
use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{Backend, KvType};
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::{SegmentKind, Step};

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Hidden states of a prompt read in chunks, and the state image after it.
fn read(backend: &mut CpuBackend, tokens: &[u32], chunk: usize) -> (Vec<u32>, Vec<u8>) {
    let mut seen = Seen::default();
    Conversation::new(0).read(backend, tokens, chunk, &Choice::greedy(), &mut seen);
    (bits(&seen.hidden), backend.save_state(0).unwrap().bytes().unwrap().to_vec())
}

#[test]
fn how_a_prompt_is_cut_at_multiples_of_64_changes_no_bit() {
    for (name, kv) in [(TINY, KvType::F32), (TINY, KvType::Q8_0), (TINY, KvType::Q4_0), (MODELS[2], KvType::F16)] {
        let model = model(name);
        let prompt = &golden(name).0.prompts.into_iter().find(|p| p.name == "long").unwrap().tokens;
        let whole = read(&mut backend(&model, kv, 1), prompt, 1024);
        for chunk in [64, 128, 192, 512] {
            assert!(read(&mut backend(&model, kv, 1), prompt, chunk) == whole, "{name} {kv:?}: chunks of {chunk}");
        }
    }
}

#[test]
fn r_imp_1282_a_prompt_read_token_by_token_is_close_to_one_read_whole() {
    for name in MODELS {
        let model = model(name);
        let prompt = &golden(name).0.prompts.into_iter().find(|p| p.name == "tool").unwrap().tokens;
        let mut whole = Seen::default();
        let mut a = backend(&model, KvType::F32, 1);
        Conversation::new(0).read(&mut a, prompt, 1024, &Choice::greedy(), &mut whole);
        for n in [1, 7] {
            let mut single = Seen::default();
            let mut b = backend(&model, KvType::F32, 1);
            let mut conversation = Conversation::new(0);
            for tokens in prompt.chunks(n) {
                conversation.run(&mut b, tokens, SegmentKind::Prompt, Some(&Choice::greedy()), &mut single);
            }
            let difference = max_difference(&a.logits(&whole.hidden), &b.logits(&single.hidden));
            println!("{name}: logits of a prompt read {n} at a time differ by at most {difference:.1e}");
            assert!(difference < 2e-4, "{name} {n}: {difference}");
        }
    }
}

/// Several conversations, each alone and then all in the same steps: the same texts, drafts and states.
#[test]
fn four_conversations_in_one_step_give_the_same_bytes_as_each_alone() {
    let model = model(TINY);
    let prompts: Vec<Vec<u32>> = golden(TINY).0.prompts.into_iter().take(4).map(|p| p.tokens).collect();
    for temperature in [0.0, 0.8] {
        let choice = |i: usize| Choice {
            params: SamplingParams { temperature, seed: i as u64, top_k: 40, ..SamplingParams::default() },
            ..Choice::drafting(i)
        };
        let alone: Vec<_> = (0..4)
            .map(|i| {
                let mut backend = backend(&model, KvType::Q8_0, 4);
                let mut conversation = Conversation::new(i);
                let first = conversation.read(&mut backend, &prompts[i], 64, &choice(i), &mut Seen::default());
                let (text, _) = conversation.write(&mut backend, first, 48, &choice(i));
                (text, backend.save_state(i).unwrap())
            })
            .collect();

        // In company: prompts ride along in chunks of 64 while the others already write.
        let mut backend = backend(&model, KvType::Q8_0, 4);
        let mut agents: Vec<_> = (0..4).map(|i| (Conversation::new(i), Vec::<u32>::new(), Vec::<u32>::new())).collect();
        while agents.iter().any(|(_, text, _)| text.len() < 48) {
            let mut parts = Vec::new();
            for (i, (conversation, text, drafts)) in agents.iter().enumerate() {
                let position = conversation.position as usize;
                if text.is_empty() {
                    let end = (position / 64 * 64 + 64).min(prompts[i].len());
                    let choice = (end == prompts[i].len()).then(|| choice(i));
                    parts.push((i, prompts[i][position..end].to_vec(), SegmentKind::Prompt, choice));
                } else if text.len() < 48 {
                    let rows = text.last().into_iter().chain(drafts).copied().collect();
                    let choice = Choice { output: text.clone(), budget: (48 - text.len()) as u32, ..choice(i) };
                    parts.push((i, rows, SegmentKind::Decode, Some(choice)));
                }
            }
            parts.reverse();
            let segments =
                parts.iter().map(|(i, rows, kind, c)| agents[*i].0.segment(rows, *kind, c.as_ref())).collect();
            let outputs = backend.step(&Step { segments }).unwrap();
            for ((i, rows, kind, _), output) in parts.iter().zip(outputs) {
                let (conversation, text, drafts) = &mut agents[*i];
                conversation.advance(rows, *kind, &output);
                text.extend(output.tokens.iter().map(|t| t.token));
                *drafts = output.drafts;
            }
        }
        for (i, (text, state)) in alone.iter().enumerate() {
            assert_eq!(&agents[i].1, text, "conversation {i}");
            assert!(backend.save_state(i).unwrap() == *state, "state of conversation {i}");
        }
    }
}

#[test]
fn a_parked_conversation_goes_on_as_if_nothing_had_happened() {
    let model = model(TINY);
    let prompt = golden(TINY).0.prompts.into_iter().find(|p| p.name == "tool").unwrap().tokens;
    let mut a = backend(&model, KvType::Q8_0, 2);
    let mut conversation = Conversation::new(0);
    let choice = Choice::drafting(0);
    let first = conversation.read(&mut a, &prompt, 512, &choice, &mut Seen::default());
    let (start, _) = conversation.write(&mut a, first.clone(), 20, &choice);
    let state = a.save_state(0).unwrap();
    let used = (conversation.position as usize).div_ceil(64);
    let pages: Vec<_> = conversation.pages[..used].iter().map(|&p| a.save_page(p).unwrap()).collect();
    let last = openjet_engine::step::SegmentOutput {
        tokens: vec![openjet_engine::step::Sampled { token: *start.last().unwrap(), logprobs: None }],
        ..Default::default()
    };
    let (expected, _) = conversation.write(&mut a, last.clone(), 30, &choice);

    let mut moved = Conversation::new(1);
    moved.position = (prompt.len() + 19) as u32;
    a.load_state(1, &state).unwrap();
    for (&page, cells) in moved.pages.iter().zip(&pages) {
        a.load_page(page, cells).unwrap();
    }
    assert_eq!(moved.write(&mut a, last, 30, &choice).0, expected);
    assert!(a.load_page(0, &pages[0][1..]).is_err());
}

#[test]
fn a_step_that_breaks_a_rule_is_refused_and_changes_nothing() {
    let model = model(TINY);
    let mut backend = backend(&model, KvType::Q8_0, 2);
    let conversation = Conversation::new(0);
    let before = backend.save_state(0).unwrap();
    let greedy = Choice::greedy();
    let (one, deep) = (Choice::drafting(1), Choice::drafting(9));
    let late = Conversation { position: 5, ..Conversation::new(0) };
    let nowhere = Conversation { slot: 7, ..Conversation::new(0) };
    let decode = SegmentKind::Decode;
    let short = Conversation { pages: vec![3], ..Conversation::new(0) };
    let outside = Conversation { pages: vec![300], ..Conversation::new(0) };
    let cases = [
        (vec![conversation.segment(&[], SegmentKind::Prompt, Some(&greedy))], "no tokens"),
        (vec![conversation.segment(&[9000], SegmentKind::Prompt, Some(&greedy))], "token 9000 of a vocabulary of 8192"),
        (vec![conversation.segment(&[1; 65], SegmentKind::Prompt, None)], "not at a multiple of 64"),
        (vec![conversation.segment(&[1], decode, None)], "must sample"),
        (vec![conversation.segment(&[1], SegmentKind::Prompt, Some(&deep))], "draft depth 9"),
        (vec![short.segment(&[1; 64], SegmentKind::Prompt, Some(&one))], "needs 65"),
        (vec![outside.segment(&[1], SegmentKind::Prompt, Some(&greedy))], "page 300"),
        (
            vec![
                conversation.segment(&[1], SegmentKind::Prompt, Some(&greedy)),
                conversation.segment(&[1], SegmentKind::Prompt, Some(&greedy)),
            ],
            "twice",
        ),
        (vec![late.segment(&[1], SegmentKind::Prompt, Some(&greedy))], "consumed 0"),
        (vec![nowhere.segment(&[1], SegmentKind::Prompt, Some(&greedy))], "slot 7 of 2"),
    ];
    for (segments, expected) in cases {
        let error = backend.step(&Step { segments }).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    }
    assert!(backend.save_state(0).unwrap() == before);
}
