//! Requests to a running engine.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig, Generation};
use openjet_engine::model::Model;
use openjet_engine::request::{Event, Finish, Request};

pub fn engine(model: &Arc<Model>, pages: usize, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let options = BackendOptions { slots: 8, pages, kv: KvType::Q8_0, draft_max: 6 };
    let backend = CpuBackend::new(Arc::clone(model), options).unwrap();
    let mut config = EngineConfig::new(64 * pages, model.config.vocab, vec![8168, 8166]);
    change(&mut config);
    Engine::start(Box::new(backend), config).unwrap().0
}

/// An engine for a model that may have no draft head.
pub fn engine_without_drafts(model: &Arc<Model>, pages: usize, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let options = BackendOptions { slots: 8, pages, kv: KvType::Q8_0, draft_max: 0 };
    let backend = CpuBackend::new(Arc::clone(model), options).unwrap();
    let mut config = EngineConfig::new(64 * pages, model.config.vocab, Vec::new());
    config.draft = 0;
    change(&mut config);
    Engine::start(Box::new(backend), config).unwrap().0
}

pub fn request(prompt: &[u32], max_tokens: u32) -> Request {
    Request { prompt: prompt.to_vec(), max_tokens: Some(max_tokens), ignore_end: true, ..Request::default() }
}

pub fn finish(mut generation: Generation) -> (Vec<u32>, Finish) {
    let mut text = Vec::new();
    while let Some(event) = generation.events.blocking_recv() {
        match event {
            Event::Tokens(tokens) => text.extend(tokens.iter().map(|t| t.token)),
            Event::Finished(finish) => return (text, finish),
            Event::Failed(error) => panic!("{error}"),
            Event::Started { .. } | Event::Prefill { .. } | Event::Drafted { .. } => {}
        }
    }
    panic!("the engine ended");
}

/// A prompt of `n` tokens that differs from those of other seeds from its first token on.
pub fn text(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 300 + (seed * 977 + i * i * 7 + i * (31 + seed)) % 4000).collect()
}

/// What an engine that has read nothing before writes after a prompt.
pub fn cold(model: &Arc<Model>, prompt: &[u32], n: u32) -> Vec<u32> {
    finish(engine(model, 96, |c| c.agents = 1).submit(request(prompt, n)).unwrap()).0
}

pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}
