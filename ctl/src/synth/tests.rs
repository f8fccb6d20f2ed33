#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{Backend, BackendOptions, KvType};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::{SampleSpec, Segment, SegmentKind, Step};

use super::*;

/// The engine's own CPU backend follows the chain, and its drafts fail exactly where the file beside the model says.
#[test]
fn the_tiny_model_does_what_its_chain_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    run(&path, true, 0.75, 7, false, &mut Vec::new()).map_err(|e| e.to_string()).unwrap();
    let chain: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("tiny.chain.json")).unwrap()).unwrap();
    let list = |name: &str| -> Vec<u32> { serde_json::from_value(chain[name].clone()).unwrap() };
    let (next, wrong) = (list("next"), list("wrong_drafts"));
    let share = wrong.len() as f64 / next.len() as f64;
    assert!((0.22..0.28).contains(&share), "{share}");

    let model = Arc::new(Model::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap());
    assert!(model.draft_head.is_some());
    let options = BackendOptions { slots: 1, pages: 8, kv: KvType::F32, draft_max: 3 };
    let mut backend = CpuBackend::new(model, options).unwrap();
    let params = SamplingParams::default();
    let pages: Vec<u32> = (0..8).collect();
    let prompt = [300, 4000, 17, 1234];
    let mut text = prompt.to_vec();
    let (mut drafts, mut accepted, mut offered) = (Vec::new(), 0, 0);
    while text.len() < 200 {
        let decoding = text.len() > prompt.len();
        let tokens: Vec<u32> =
            if decoding { [text[text.len() - 1]].into_iter().chain(drafts).collect() } else { text.clone() };
        let position = if decoding { text.len() - 1 } else { 0 };
        let segment = Segment {
            slot: 0,
            position: position as u32,
            tokens: &tokens,
            pages: &pages,
            kind: if decoding { SegmentKind::Decode } else { SegmentKind::Prompt },
            sample: Some(SampleSpec {
                params: &params,
                prompt: &prompt,
                output: &text[prompt.len()..],
                end_tokens: &[],
                budget: 100,
                masks: &[],
                draft_depth: 3,
            }),
        };
        let output = backend.step(&Step { segments: vec![segment] }).unwrap().swap_remove(0);
        for sampled in &output.tokens {
            assert_eq!(sampled.token, next[text[text.len() - 1] as usize], "token {} of the text", text.len());
            text.push(sampled.token);
        }
        if decoding {
            offered += tokens.len() - 1;
            accepted += output.accepted;
        }
        // Each draft is right or wrong as its own predecessor's successor says.
        let mut before = text[text.len() - 1];
        for &draft in &output.drafts {
            let right = next[before as usize];
            assert_eq!(draft != right, wrong.contains(&right), "the draft after token {before}");
            before = draft;
        }
        drafts = output.drafts;
        assert_eq!(drafts.len(), 3);
    }
    assert!(accepted > offered / 3 && accepted < offered, "{accepted} of {offered}");
}

#[test]
fn the_27b_has_the_released_shape() {
    let tensors = tensors::all(&shape::REAL_27B, 1);
    // The released file has 866; a second head and a norm of its own come with the draft head here.
    assert_eq!(tensors.len(), 867);
    let bytes: usize = tensors.iter().map(tensors::Tensor::bytes).sum();
    assert!((17_700_000_000..17_900_000_000).contains(&bytes), "{bytes}");
}
