//! Conversations that give up their slot: their pages leave the pool when it needs them, a few at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "common/serving.rs"]
mod serving;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::step::Step;
use openjet_proto::AgentState;
use serving::*;

/// An engine, the pages that it has copied to host memory, and the most of them between two steps.
struct Watched {
    engine: Engine,
    copied: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

fn watched(agents: usize, pages: usize) -> Watched {
    let model = small();
    let options = BackendOptions { slots: agents, pages, kv: KvType::Q8_0, draft_max: 0 };
    let backend = CpuBackend::new(Arc::clone(&model), options).unwrap();
    let (copied, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let before = {
        let (copied, most, mut last) = (Arc::clone(&copied), Arc::clone(&most), 0);
        move |_: &Step<'_>| {
            let now = copied.load(Ordering::Relaxed);
            most.fetch_max(now - last, Ordering::Relaxed);
            last = now;
            Ok(())
        }
    };
    let backend = Hooked { backend, before, prompt_rows: 256, copied: Arc::clone(&copied) };
    let base = EngineConfig::new(64 * pages, model.config.vocab, Vec::new());
    let config = EngineConfig { agents, draft: 0, lookup: false, ..base };
    Watched { engine: Engine::start(Box::new(backend), config).unwrap().0, copied, most }
}

fn forget(engine: &Engine) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(engine.forget(None)).unwrap();
}

#[test]
fn no_step_waits_for_a_whole_conversation_to_be_copied() {
    let Watched { engine, copied, most } = watched(3, 48);
    let long = text(1, 32 * 64 + 9);
    let (answer, _) = finish(engine.submit(request(&long, 20)).unwrap());
    let writer = engine.submit(request(&text(2, 70), 900)).unwrap();
    wait("writing", || engine.status().agents.iter().any(|a| a.state == AgentState::Decode));
    assert_eq!(copied.load(Ordering::Relaxed), 0, "there was room for both");
    finish(engine.submit(request(&text(3, 40 * 64), 4)).unwrap());
    assert!(copied.load(Ordering::Relaxed) >= 24, "{copied:?} pages had to leave");
    // A chunk of 4 pages asks for a batch, or two where the first is needed elsewhere too.
    assert!(most.load(Ordering::Relaxed) <= 16, "{most:?} pages were copied between two steps");
    assert_eq!(finish(writer).0.len(), 900);
    // It comes back with all that it had.
    let next = [&long[..], &answer, &[5, 6, 7]].concat();
    let (_, end) = finish(engine.submit(request(&next, 4)).unwrap());
    assert_eq!(end.usage.cached_tokens, long.len() + 19);
    forget(&engine);
    assert_eq!(engine.status().pages_free, 48);
}

#[test]
fn a_slot_changes_hands_without_a_copy_while_the_pool_has_room() {
    let Watched { engine, copied, .. } = watched(1, 48);
    let prompts = [text(4, 700), text(5, 900)];
    let mut told = prompts.clone();
    for turn in 0..3 {
        for conversation in &mut told {
            let (answer, end) = finish(engine.submit(request(conversation, 10)).unwrap());
            if turn > 0 {
                assert_eq!(end.usage.cached_tokens, conversation.len() - 4, "turn {turn}");
            }
            *conversation = [&conversation[..], &answer, &[8, 9, 10]].concat();
        }
    }
    assert_eq!(copied.load(Ordering::Relaxed), 0);
    forget(&engine);
    assert_eq!(engine.status().pages_free, 48);
}
