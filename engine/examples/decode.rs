//! Measures the CPU twin on a model file: load time, prompt speed, decode speed by draft depth.
//!
//! `cargo run --release -p openjet-engine --example decode -- [MODEL.gguf]`
#![allow(clippy::print_stdout, reason = "this is a program that prints a table")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::request::{Event, Request, Usage};

fn main() -> Result<(), Box<dyn Error>> {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/openjet-tiny-Q4_K_M.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(shipped), PathBuf::from);
    let began = Instant::now();
    let model = Arc::new(Model::load(Arc::new(GgufFile::open(&path)?))?);
    println!("loaded in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    // A prompt that reads like code: the tokens of `def`-like ids repeat with a long period.
    let prompt: Vec<u32> = (0..512).map(|i| 300 + (i * i * 7 + i * 31) % 4000).collect();
    println!("draft  lookup  prompt tok/s  decode tok/s  accepted  CPU ms per prompt token, per token");
    for (draft, lookup) in [(0, false), (1, false), (2, false), (3, false), (4, false), (0, true), (3, true)] {
        let options = BackendOptions { slots: 1, pages: 64, kv: KvType::Q8_0, draft_max: 4 };
        let backend = CpuBackend::new(Arc::clone(&model), options)?;
        let config = EngineConfig {
            agents: 1,
            draft,
            lookup,
            fixed_depth: true,
            ..EngineConfig::new(4096, model.config.vocab, Vec::new())
        };
        let (engine, thread) = Engine::start(Box::new(backend), config)?;
        let start = cpu_ms()?;
        generate(&engine, prompt.clone(), 1)?;
        let read = cpu_ms()?;
        let usage = generate(&engine, prompt.clone(), 400)?;
        let cpu = (read - start, cpu_ms()? - read);
        let (prompt_ms, token_ms) = (cpu.0 / prompt.len() as f64, (cpu.1 - cpu.0) / 400.0);
        let speed = |tokens: usize, time: std::time::Duration| tokens as f64 / time.as_secs_f64();
        println!(
            "{draft:5}  {lookup:6}  {:12.0}  {:12.0}  {:8.2}  {prompt_ms:.2}, {token_ms:.2}",
            speed(usage.prompt_tokens, usage.prefill),
            speed(usage.completion_tokens - 1, usage.decode),
            usage.drafts_accepted as f64 / usage.drafts_offered.max(1) as f64
        );
        drop(engine);
        thread.join().map_err(|_| "the engine's thread panicked")?;
    }
    Ok(())
}

/// Milliseconds of processor time that this process has used, from `/proc/self/schedstat` of all its threads.
fn cpu_ms() -> Result<f64, Box<dyn Error>> {
    let mut nanoseconds = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += text.split_whitespace().next().unwrap_or("0").parse::<f64>()?;
    }
    Ok(nanoseconds / 1e6)
}

fn generate(engine: &Engine, prompt: Vec<u32>, tokens: u32) -> Result<Usage, Box<dyn Error>> {
    let mut generation =
        engine.submit(Request { prompt, max_tokens: Some(tokens), ignore_end: true, ..Request::default() })?;
    while let Some(event) = generation.events.blocking_recv() {
        match event {
            Event::Finished(finish) => return Ok(finish.usage),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err("the engine ended".into())
}
