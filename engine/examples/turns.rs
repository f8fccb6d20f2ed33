//! Ten turns of a conversation on each of four agents that share two slots: what is read again, and the time to the first token.
//!
//! `cargo run --release -p openjet-engine --example turns -- [MODEL.gguf]`
#![allow(clippy::print_stdout, reason = "this is a program that prints a table")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::request::{Event, Request, Usage};

const AGENTS: usize = 4;
const SYSTEM: usize = 1200;
const QUESTION: usize = 60;
const ANSWER: usize = 80;

/// Tokens that the client drops from an answer when it comes back as history.
const REASONING: usize = 30;

/// Tokens of the generation prompt, which history does not have.
const OPENING: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/openjet-tiny-Q4_K_M.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(shipped), PathBuf::from);
    let model = Arc::new(Model::load(Arc::new(GgufFile::open(&path)?))?);
    for rewritten in [false, true] {
        println!("\n{}", if rewritten { "history without the reasoning" } else { "history as it was written" });
        println!("turn  prompt tokens  new  read  read again  first token ms");
        run(&model, rewritten)?;
    }
    Ok(())
}

fn run(model: &Arc<Model>, rewritten: bool) -> Result<(), Box<dyn Error>> {
    let options = BackendOptions { slots: 2, pages: 160, kv: KvType::Q8_0, draft_max: 3 };
    let config = EngineConfig { agents: 2, draft: 3, ..EngineConfig::new(8192, model.config.vocab, Vec::new()) };
    let (engine, _thread) = Engine::start(Box::new(CpuBackend::new(Arc::clone(model), options)?), config)?;
    let mut conversations: Vec<Vec<u32>> = vec![tokens(1, SYSTEM); AGENTS];
    // What of a conversation was in a prompt before, or was written by the model and comes back.
    let mut known = [0; AGENTS];
    for turn in 1..=10 {
        let (mut prompt, mut new, mut read, mut first) = (0, 0, 0, Duration::ZERO);
        for (i, conversation) in conversations.iter_mut().enumerate() {
            conversation.extend(tokens(10 + turn * 10 + i, QUESTION));
            let history = conversation.len();
            conversation.extend(tokens(2, OPENING));
            let (answer, usage) = generate(&engine, conversation.clone(), history)?;
            // The four share the system prompt: it is new once.
            let fresh = conversation.len() - known[i] - if turn == 1 && i > 0 { SYSTEM } else { 0 };
            (prompt, new) = (prompt + usage.prompt_tokens, new + fresh);
            (read, first) = (read + usage.prompt_tokens - usage.cached_tokens, first + usage.prefill);
            if rewritten {
                known[i] = history;
                conversation.truncate(history);
                conversation.extend(&answer[REASONING..]);
            } else {
                conversation.extend(&answer);
                known[i] = conversation.len();
            }
        }
        let again = read.saturating_sub(new) as f64 / prompt as f64 * 100.0;
        let first = first.as_secs_f64() * 1e3 / AGENTS as f64;
        println!("{turn:4}  {prompt:13}  {new:3}  {read:4}  {again:9.1}%  {first:14.0}");
    }
    Ok(())
}

/// Tokens that differ from those of other seeds.
fn tokens(seed: usize, n: usize) -> Vec<u32> {
    let seed = seed as u32;
    (0..n as u32).map(|i| 300 + (seed * 977 + i * i * 7 + i * (31 + seed)) % 4000).collect()
}

fn generate(engine: &Engine, prompt: Vec<u32>, history: usize) -> Result<(Vec<u32>, Usage), Box<dyn Error>> {
    let mut generation = engine.submit(Request {
        prompt,
        max_tokens: Some(ANSWER as u32),
        ignore_end: true,
        system_until: Some(SYSTEM),
        generation_prompt_at: Some(history),
        ..Request::default()
    })?;
    let mut text = Vec::new();
    while let Some(event) = generation.events.blocking_recv() {
        match event {
            Event::Tokens(tokens) => text.extend(tokens.iter().map(|t| t.token)),
            Event::Finished(finish) => return Ok((text, finish.usage)),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err("the engine ended".into())
}
