//! A backend that was warmed up has run every kind of step, and is as new.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;
#[path = "common/serving.rs"]
mod serving;

use std::time::Duration;

use common::{MODELS, TINY, backend, model};
use std::sync::Arc;

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{Backend, BackendError, BackendOptions, KvType, warm_up};
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::step::{PAGE_TOKENS, SegmentKind, Step};
use serving::{Hooked, finish, request, text};

const AGES: Duration = Duration::from_secs(600);

#[test]
fn every_kind_of_step_is_run_and_leaves_no_trace() {
    for name in MODELS {
        let model = model(name);
        let mut fresh = backend(&model, KvType::Q8_0, 2);
        let (mut kinds, context) = (Vec::new(), model.config.context);
        let mut warm = Hooked {
            backend: backend(&model, KvType::Q8_0, 2),
            before: |step: &Step<'_>| {
                kinds.extend(step.segments.iter().map(|segment| (segment.kind, segment.tokens.len())));
                Ok(())
            },
            prompt_rows: 512,
            copied: Arc::default(),
        };
        warm_up(&mut warm, model.config.vocab, context, AGES).unwrap();
        let mut warm = warm.backend;
        let ran =
            |kind, rows: std::ops::RangeInclusive<usize>| kinds.iter().any(|(k, n)| *k == kind && rows.contains(n));
        assert!(
            ran(SegmentKind::Prompt, 1..=PAGE_TOKENS - 1) && ran(SegmentKind::Prompt, PAGE_TOKENS + 1..=4096),
            "{kinds:?}"
        );
        assert!(ran(SegmentKind::Decode, 1..=1) && ran(SegmentKind::Decode, 24..=24), "{kinds:?}");
        assert_eq!(ran(SegmentKind::Decode, 2..=7), model.draft_head.is_some(), "{name}: {kinds:?}");

        assert!(warm.save_state(0).unwrap() == fresh.save_state(0).unwrap(), "{name}: the slot");
        let prompt: Vec<u32> = text(1, 70).into_iter().map(|token| token % model.config.vocab as u32).collect();
        let written = [fresh, warm].map(|backend| {
            let draft = backend.options().draft_max;
            let config =
                EngineConfig { agents: 1, draft, ..EngineConfig::new(48 * 64, model.config.vocab, Vec::new()) };
            let (engine, _) = Engine::start(Box::new(backend), config).unwrap();
            finish(engine.submit(request(&prompt, 8)).unwrap()).0
        });
        assert_eq!(written[0], written[1], "{name}");
    }
}

#[test]
fn what_there_is_no_room_for_is_left_out() {
    let model = model(TINY);
    for (pages, context) in [(1, 64), (2, 20), (1, 1)] {
        let options = BackendOptions { slots: 1, pages, kv: KvType::F16, draft_max: 3 };
        warm_up(&mut CpuBackend::new(model.clone(), options).unwrap(), model.config.vocab, context, AGES).unwrap();
    }
}

#[test]
fn a_slow_device_runs_one_step() {
    let model = model(TINY);
    let mut steps = 0;
    let before = |_: &Step<'_>| {
        steps += 1;
        Ok(())
    };
    warm_up(
        &mut Hooked { backend: backend(&model, KvType::Q8_0, 1), before, prompt_rows: 512, copied: Arc::default() },
        model.config.vocab,
        4096,
        Duration::ZERO,
    )
    .unwrap();
    assert_eq!(steps, 1);
}

#[test]
fn a_device_that_fails_is_told() {
    let model = model(TINY);
    let lose: fn(&Step<'_>) -> _ = |_| Err(BackendError::Device("lost".into()));
    let mut lost =
        Hooked { backend: backend(&model, KvType::Q8_0, 1), before: lose, prompt_rows: 512, copied: Arc::default() };
    assert_eq!(warm_up(&mut lost, model.config.vocab, 4096, AGES).unwrap_err().to_string(), "lost");
}
