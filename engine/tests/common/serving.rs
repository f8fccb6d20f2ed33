//! Requests to a running engine, and a model that costs next to nothing.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{Backend, BackendError, BackendOptions, KvType, StateImage};
use openjet_engine::drafts::StepCost;
use openjet_engine::engine::{Engine, EngineConfig, Generation};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::request::{Event, Finish, Request};
use openjet_engine::step::{PageId, SegmentOutput, SlotId, Step};

#[path = "../support/gguf.rs"]
mod gguf;

/// A model of the least sizes with random weights and a draft head: for tests of who runs when and what is kept, whose
/// texts need not make sense.
pub fn small() -> Arc<Model> {
    let shape = gguf::Shape { vocab: 1024, context: 32_768, ..gguf::Shape::SMALL };
    let file = GgufFile::from_bytes("small.gguf", gguf::Gguf::model(&shape, false).random(1)).unwrap();
    Arc::new(Model::load(Arc::new(file)).unwrap())
}

pub fn engine(model: &Arc<Model>, pages: usize, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let options = BackendOptions { slots: 8, pages, kv: KvType::Q8_0, draft_max: 6 };
    let backend = CpuBackend::new(Arc::clone(model), options).unwrap();
    let mut config = EngineConfig::new(64 * pages, model.config.vocab, Vec::new());
    change(&mut config);
    Engine::start(Box::new(backend), config).unwrap().0
}

/// The CPU backend with something before every step: a device that is slow, or is lost.
pub struct Hooked<F> {
    pub backend: CpuBackend,
    pub before: F,
    /// Rows of a prompt that it says it reads at once.
    pub prompt_rows: usize,
    /// Pages that it has copied to host memory.
    pub copied: Arc<AtomicUsize>,
}

impl<F> std::fmt::Debug for Hooked<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.backend.fmt(f)
    }
}

impl<F: FnMut(&Step<'_>) -> Result<(), BackendError> + Send> Backend for Hooked<F> {
    fn describe(&self) -> String {
        self.backend.describe()
    }
    fn options(&self) -> BackendOptions {
        self.backend.options()
    }
    fn cost(&self) -> StepCost {
        self.backend.cost()
    }
    fn prompt_rows(&self) -> usize {
        self.prompt_rows
    }
    fn step(&mut self, step: &Step<'_>) -> Result<Vec<SegmentOutput>, BackendError> {
        (self.before)(step)?;
        self.backend.step(step)
    }
    fn reset_slot(&mut self, slot: SlotId) -> Result<(), BackendError> {
        self.backend.reset_slot(slot)
    }
    fn save_state(&mut self, slot: SlotId) -> Result<Arc<StateImage>, BackendError> {
        self.backend.save_state(slot)
    }
    fn load_state(&mut self, slot: SlotId, image: &StateImage) -> Result<(), BackendError> {
        self.backend.load_state(slot, image)
    }
    fn save_page(&mut self, page: PageId) -> Result<Vec<u8>, BackendError> {
        self.copied.fetch_add(1, Ordering::Relaxed);
        self.backend.save_page(page)
    }
    fn load_page(&mut self, page: PageId, cells: &[u8]) -> Result<(), BackendError> {
        self.backend.load_page(page, cells)
    }
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
    (0..n as u32).map(|i| 300 + (seed * 977 + i * i * 7 + i * (31 + seed)) % 700).collect()
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
