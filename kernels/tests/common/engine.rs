//! The engine on the device's backend, and requests to it.

use std::sync::Arc;
use std::thread::JoinHandle;

use openjet_engine::backend::{Backend, BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig, Generation};
use openjet_engine::model::Model;
use openjet_engine::request::{Event, Request, RequestError};
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::PAGE_TOKENS;

pub const AGENTS: usize = 8;
pub const POOL: usize = 4096;

pub fn options(kv: KvType, draft_max: usize) -> BackendOptions {
    BackendOptions { slots: AGENTS, pages: POOL / PAGE_TOKENS, kv, draft_max }
}

pub fn start(model: &Arc<Model>, backend: Box<dyn Backend>, agents: usize) -> (Engine, JoinHandle<()>) {
    let draft = backend.options().draft_max;
    let config = EngineConfig { agents, draft, ..EngineConfig::new(POOL, model.config.vocab, Vec::new()) };
    Engine::start(backend, config).unwrap()
}

pub fn request(prompt: Vec<u32>, params: SamplingParams, tokens: u32) -> Request {
    Request { prompt, params, max_tokens: Some(tokens), ignore_end: true, ..Request::default() }
}

/// Waits for a request's end: its tokens, or why it failed.
pub fn outcome(mut generation: Generation) -> Result<Vec<u32>, RequestError> {
    let mut tokens = Vec::new();
    while let Some(event) = generation.events.blocking_recv() {
        match event {
            Event::Tokens(more) => tokens.extend(more.iter().map(|sampled| sampled.token)),
            Event::Finished(_) => return Ok(tokens),
            Event::Failed(error) => return Err(error),
            Event::Started { .. } | Event::Prefill { .. } | Event::Drafted { .. } => {}
        }
    }
    panic!("the engine's thread ended without a word")
}

/// Ordinary tokens of the shipped model, different for each `n`.
pub fn prompt(n: u64, length: usize) -> Vec<u32> {
    let mut random = super::Random(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..length).map(|_| 300 + random.below(7000) as u32).collect()
}
