//! The CPU twin against a float64 reference: logits, hidden states, greedy texts, draft head.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;

use common::*;
use openjet_engine::backend::KvType;
use openjet_engine::step::SegmentKind;

/// Largest difference allowed between our f32 logits and the float64 ones.
const TOLERANCE: f32 = 2e-4;
/// Below this lead over the second a best token is a near-tie.
const NEAR_TIE: f32 = 0.05;

#[test]
fn logits_hidden_states_and_best_tokens_are_the_reference_ones() {
    for name in MODELS {
        let model = model(name);
        let (vocab, width) = (model.config.vocab, model.config.hidden);
        let (golden, tensors) = golden(name);
        assert_eq!(golden.prompts.len(), 8);
        // The model of mixed types differs from the first in its weights alone: the longest prompt has nothing to say of them.
        for prompt in golden.prompts.iter().filter(|p| name != MODELS[1] || p.tokens.len() < 1000) {
            let mut backend = backend(&model, KvType::F32, 1);
            let mut seen = Seen::default();
            Conversation::new(0).read(&mut backend, &prompt.tokens, 512, &Choice::greedy(), &mut seen);
            let at = format!("{name} {}", prompt.name);

            let logits = backend.logits(&seen.hidden);
            let kept = tensors.get(&format!("{}.logits", prompt.name)).unwrap();
            assert_eq!(kept.len(), prompt.kept_last * vocab);
            let difference = max_difference(&kept, &logits[logits.len() - kept.len()..]);
            println!("{at}: logits differ by at most {difference:.1e}");
            assert!(difference < TOLERANCE, "{at}: {difference}");
            assert_eq!(max_difference(&logits[logits.len() - vocab..], &seen.logits), 0.0, "{at}");

            let rows = logits.chunks_exact(vocab).zip(&prompt.argmax).zip(&prompt.margin);
            for (i, ((row, best), margin)) in rows.enumerate() {
                assert!(*margin < NEAR_TIE || argmax(row) == *best, "{at}: best token after position {i}");
            }
            if let Some(embedding) = tensors.get(&format!("{}.embedding", prompt.name)) {
                assert!(max_difference(&embedding, &seen.embedding) < 1e-6, "{at}");
                for (i, block) in seen.blocks.iter().enumerate() {
                    let reference = tensors.get(&format!("{}.block.{i}", prompt.name)).unwrap();
                    let scale = reference.iter().fold(1f32, |m, x| m.max(x.abs()));
                    let difference = max_difference(&reference, block) / scale;
                    assert!(difference < 2e-5, "{at} block {i}: {difference}");
                }
                let reference = tensors.get(&format!("{}.final_hidden", prompt.name)).unwrap();
                assert_eq!(reference.len(), prompt.tokens.len() * width);
                assert!(max_difference(&reference, &seen.hidden) < TOLERANCE, "{at}");
            }
        }
    }
}

#[test]
fn greedy_texts_are_the_reference_ones_up_to_the_first_near_tie() {
    for name in MODELS {
        let model = model(name);
        let (golden, _) = golden(name);
        for greedy in &golden.greedy {
            let prompt = golden.prompts.iter().find(|p| p.name == greedy.prompt).unwrap();
            let mut backend = backend(&model, KvType::F32, 1);
            let mut conversation = Conversation::new(0);
            let choice = Choice::drafting(3);
            let first = conversation.read(&mut backend, &prompt.tokens, 512, &choice, &mut Seen::default());
            let safe = greedy.safe_tokens();
            let (text, _) = conversation.write(&mut backend, first, safe.len().max(1), &choice);
            assert!(text.starts_with(safe), "{name} {}: {text:?}, expected {safe:?}", greedy.prompt);
        }
    }
}

#[test]
fn the_draft_head_agrees_with_the_reference_at_every_position() {
    let mut tool_prompts = 0;
    for name in MODELS {
        let model = model(name);
        let (golden, tensors) = golden(name);
        if model.draft_head.is_none() {
            assert!(golden.prompts.iter().all(|p| p.mtp_argmax.is_empty()), "{name}");
            continue;
        }
        // Every position is a step of its own: a few pages of the first model, and less of the others.
        let longest = if name == TINY { 300 } else { 150 };
        for prompt in golden.prompts.iter().filter(|p| p.tokens.len() < longest) {
            let mut backend = backend(&model, KvType::F32, 1);
            let mut conversation = Conversation::new(0);
            let mut seen = Seen::default();
            // Token by token, each next one forced: the draft head then sees exactly the pairs of the reference.
            for pair in prompt.tokens.windows(2) {
                let choice = Choice { draft_depth: 1, ..Choice::forced(pair[1]) };
                let output = conversation.run(&mut backend, &pair[..1], SegmentKind::Prompt, Some(&choice), &mut seen);
                assert_eq!(output.tokens[0].token, pair[1]);
            }
            let at = format!("{name} {}", prompt.name);
            assert_eq!(seen.draft_logits.len(), prompt.mtp_argmax.len(), "{at}");
            for (i, row) in seen.draft_logits.iter().enumerate() {
                let near_tie = prompt.mtp_margin[i] < NEAR_TIE;
                assert!(near_tie || argmax(row) == prompt.mtp_argmax[i], "{at}: pair {i}");
            }
            // How often the first draft is what the trunk would choose: its acceptance in greedy decoding.
            let agreeing =
                seen.draft_logits.iter().zip(&prompt.argmax[1..]).filter(|(row, best)| argmax(row) == **best);
            let agreement = agreeing.count() as f64 / seen.draft_logits.len() as f64;
            println!("{at}: the first draft is right at {:.1}% of positions", 100.0 * agreement);
            assert!((agreement - prompt.mtp_agreement.unwrap()).abs() < 0.03, "{at}: {agreement}");
            if name == TINY && prompt.name.contains("tool") {
                assert!(agreement > 0.7, "{at}: {agreement}");
                tool_prompts += 1;
            }
            let kept = tensors.get(&format!("{}.mtp_logits", prompt.name)).unwrap();
            let last = seen.draft_logits[seen.draft_logits.len() - 8..].concat();
            let difference = max_difference(&kept, &last);
            println!("{at}: draft logits differ by at most {difference:.1e}");
            assert!(difference < TOLERANCE, "{at}: {difference}");
        }
    }
    assert_eq!(tool_prompts, 2);
}

#[test]
fn chained_drafts_are_the_reference_ones_and_the_first_is_mostly_right() {
    let mut tool_agreement = Vec::new();
    for name in MODELS {
        let model = model(name);
        let (golden, _) = golden(name);
        let longest = if name == TINY { usize::MAX } else { 1000 };
        for prompt in golden.prompts.iter().filter(|p| !p.drafts.is_empty() && p.tokens.len() < longest) {
            let mut backend = backend(&model, KvType::F32, 1);
            let choice = Choice::drafting(4);
            let output = Conversation::new(0).read(&mut backend, &prompt.tokens, 512, &choice, &mut Seen::default());
            assert_eq!(output.tokens[0].token, prompt.next.unwrap(), "{name} {}", prompt.name);
            let safe = prompt.draft_margin.iter().position(|&m| m < NEAR_TIE).unwrap_or(4);
            assert_eq!(output.drafts.len(), 4);
            assert_eq!(output.drafts[..safe], prompt.drafts[..safe], "{name} {}", prompt.name);
        }
        if name == TINY {
            for greedy in &golden.greedy {
                let prompt = golden.prompts.iter().find(|p| p.name == greedy.prompt).unwrap();
                let mut backend = backend(&model, KvType::F32, 1);
                let mut conversation = Conversation::new(0);
                let choice = Choice::drafting(1);
                let first = conversation.read(&mut backend, &prompt.tokens, 512, &choice, &mut Seen::default());
                let (_, tally) = conversation.write(&mut backend, first, 128, &choice);
                let share = tally.first_accepted as f64 / tally.first_offered as f64;
                println!("{name} {}: {:.1}% of first drafts accepted in 128 tokens", prompt.name, 100.0 * share);
                if prompt.name.contains("tool") {
                    tool_agreement.push(share);
                }
            }
        }
    }
    assert!(!tool_agreement.is_empty());
    assert!(tool_agreement.iter().all(|&a| a > 0.7), "{tool_agreement:?}");
}
