//! The same answer whatever the company, through the engine: one agent's tokens and log probabilities are the same bytes alone
//! and without drafts, and among seven others whose prompts arrive all the time, with drafts whose depth changes with them, again
//! and again.
//!
//! 20 repeats on a GPU, `OPENJET_REPEATS` if that is set; the device code on the CPU is slow and does one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;

use common::engine::{AGENTS, options, outcome, prompt, request, start};
use common::*;
use openjet_engine::backend::KvType;
use openjet_engine::engine::{Engine, Generation};
use openjet_engine::request::Event;
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::Sampled;
use openjet_kernels::CudaBackend;

fn params(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, seed: 7, top_p: 0.95, logprobs: Some(3), ..SamplingParams::default() }
}

/// Serves a request; `more` is called whenever it got tokens. What it got, bit by bit.
fn serve(mut generation: Generation, mut more: impl FnMut()) -> Vec<Sampled> {
    let mut all = Vec::new();
    loop {
        match generation.events.blocking_recv().unwrap() {
            Event::Tokens(tokens) => {
                all.extend(tokens);
                more();
            }
            Event::Finished(_) => return all,
            Event::Failed(error) => panic!("{error}"),
            Event::Started { .. } | Event::Prefill { .. } | Event::Drafted { .. } => {}
        }
    }
}

fn engine(kv: KvType, agents: usize, drafts: usize) -> (Engine, std::thread::JoinHandle<()>) {
    let model = model("openjet-tiny-Q4_K_M");
    let backend =
        CudaBackend::new(device(), std::sync::Arc::clone(&model), options(kv, drafts), &mut |_, _| ()).unwrap();
    start(&model, Box::new(backend), agents)
}

#[test]
fn the_same_bytes_alone_without_drafts_and_with_them_among_seven_others() {
    let default = if on_gpu() { 20 } else { 1 };
    let repeats: u64 = std::env::var("OPENJET_REPEATS").map_or(default, |n| n.parse().unwrap());
    let (length, tokens, theirs, cells, temperatures): (_, _, _, &[KvType], &[f32]) = if on_gpu() {
        (300, 120, 30, &[KvType::F16, KvType::Q8_0, KvType::Q4_0], &[0.0, 0.8])
    } else {
        (12, 3, 2, &[KvType::Q8_0], &[0.8])
    };
    for &kv in cells {
        for &temperature in temperatures {
            let mine = || request(prompt(1, length), params(temperature), tokens);
            let (alone, thread) = engine(kv, 1, 0);
            let expected = serve(alone.submit(mine()).unwrap(), || ());
            drop(alone);
            thread.join().unwrap();
            assert_eq!(expected.len(), tokens as usize);
            let (company, thread) = engine(kv, AGENTS, if on_gpu() { 6 } else { 2 });
            let mut others = 0;
            for repeat in 0..repeats {
                let mut running = Vec::new();
                let mut arrive = || {
                    others += 1;
                    let length = 3 + (others * 53 % length as u64) as usize;
                    let other = request(prompt(100 + others, length), params(1.0), theirs);
                    running.push(company.submit(other).unwrap());
                    // Some leave before they are done.
                    if running.len() >= AGENTS {
                        running.remove(0);
                    }
                };
                if repeat % 2 == 0 {
                    arrive();
                    arrive();
                }
                let found = serve(company.submit(mine()).unwrap(), &mut arrive);
                assert_eq!(found, expected, "{kv:?}, temperature {temperature}, repeat {repeat}");
                running.into_iter().for_each(|generation| assert!(outcome(generation).is_ok()));
            }
            println!("{kv:?}, temperature {temperature}: {repeats} times among {others} others, the same bytes");
            drop(company);
            thread.join().unwrap();
        }
    }
}
