//! The memory plan, and that the device's memory is used as planned: no more while requests run, none after the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;
#[path = "../../engine/tests/support/gguf.rs"]
mod gguf;

use std::sync::{Arc, Mutex, MutexGuard};

use common::engine::{AGENTS, outcome, prompt, request, start};
use common::*;
use gguf::{Gguf, Shape};
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::PAGE_TOKENS;
use openjet_kernels::plan::ways_out;
use openjet_kernels::{CudaBackend, Embedding, MemoryPlan, PlanOptions, plan};

const GIB: usize = 1 << 30;
/// A 4090, as its driver reports it.
const CARD: usize = 24_564 << 20;

/// The device's memory is measured by one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A model of the 27B's file, with holes instead of numbers.
fn big() -> (Model, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("27b.gguf");
    Gguf::model(&Shape::BIG, true).write_with_holes(&path);
    (Model::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap(), dir)
}

fn backend(slots: usize, pool: usize, kv: KvType, draft_max: usize) -> BackendOptions {
    BackendOptions { slots, pages: pool.div_ceil(PAGE_TOKENS), kv, draft_max }
}

fn part(plan: &MemoryPlan, name: &str) -> usize {
    plan.parts.iter().find(|part| part.name == name).map_or(0, |part| part.bytes)
}

#[test]
fn the_27b_on_a_card_of_24_gb() {
    let (model, _dir) = big();
    let options =
        |slots, pool, kv| PlanOptions { embedding: Embedding::Auto, ..PlanOptions::new(backend(slots, pool, kv, 3)) };
    let of = |options: &PlanOptions| plan(&model, options, Some(CARD)).unwrap();
    // So many tokens fit once the embedding table is in host memory, and only then.
    let long = options(4, 192_512, KvType::Q8_0);
    let found = of(&long);
    println!("{found}");
    assert_eq!((found.fits, found.host_embedding), (Some(true), true));
    assert_eq!(of(&PlanOptions { embedding: Embedding::Gpu, ..long }).fits, Some(false));
    assert!(ways_out(&model, &PlanOptions { embedding: Embedding::Gpu, ..long }, CARD).unwrap()[0] == "embedding host");
    // What fits without is left where it is.
    let short = of(&options(1, 32_768, KvType::Q8_0));
    assert_eq!((short.fits, short.host_embedding), (Some(true), false));
    // 715,161,600 bytes of Q4_K, of which a tile holds 4.5 bits a weight too.
    assert_eq!(part(&short, "weights").div_ceil(1 << 20) - part(&found, "weights").div_ceil(1 << 20), 682);
    assert_eq!(found.host[0].bytes, 715_161_600);
    // The advice holds: the largest pool fits, a page more doesn't.
    for (slots, kv) in [(1, KvType::F16), (4, KvType::Q8_0), (8, KvType::Q4_0)] {
        let pool = of(&options(slots, 4096, kv)).largest_pool.unwrap();
        println!("{slots} agents, {kv:?}: {pool} tokens");
        assert!(pool > 20_000);
        assert_eq!(of(&options(slots, pool, kv)).fits, Some(true));
        assert_eq!(of(&options(slots, pool + PAGE_TOKENS, kv)).fits, Some(false));
    }
    // What is left alone is missing elsewhere.
    let reserved = of(&PlanOptions { reserve: GIB, ..long });
    assert_eq!(reserved.total, found.total + GIB);
}

#[test]
fn parts_of_the_27b_to_the_byte() {
    let (model, _dir) = big();
    for (kv, without, with) in
        [(KvType::F16, 65_536, 69_632), (KvType::Q8_0, 34_816, 36_992), (KvType::Q4_0, 18_432, 19_584)]
    {
        for (draft, bytes) in [(0, without), (3, with)] {
            let options = PlanOptions::new(backend(1, 4096, kv, draft));
            let plan = plan(&model, &options, None).unwrap();
            assert_eq!(plan.page_bytes, PAGE_TOKENS * bytes, "{kv:?} {draft}");
            assert_eq!(part(&plan, "key-value pool"), (4096 * bytes).next_multiple_of(2 << 20));
            assert_eq!(plan.total, plan.parts.iter().map(|part| part.bytes).sum::<usize>());
        }
    }
    let error = plan(&model, &PlanOptions::new(backend(1, 64, KvType::F32, 0)), None).unwrap_err();
    assert!(error.contains("f32 cells"), "{error}");
}

#[test]
fn a_tied_table_stays_on_the_gpu() {
    let (model, _dir) = big();
    let options = PlanOptions { embedding: Embedding::Host, ..PlanOptions::new(backend(1, 64, KvType::F16, 1)) };
    let own = plan(&model, &options, None).unwrap();
    let tied = Model { output: model.embedding.clone(), draft_head: None, ..model };
    let found = plan(&tied, &options, None).unwrap();
    assert!(own.host_embedding && !found.host_embedding);
    assert!(found.host.iter().all(|part| part.name != "embedding table"));
}

#[test]
fn what_is_allocated_is_what_was_planned() {
    let _alone = alone();
    let (device, model) = (device(), model("openjet-tiny-Q4_K_M"));
    for (options, embedding) in [
        (backend(2, 65_536, KvType::F16, 3), Embedding::Gpu),
        (backend(8, 16_384, KvType::Q8_0, 8), Embedding::Host),
        (backend(1, 131_072, KvType::Q4_0, 0), Embedding::Auto),
    ] {
        let before = device.free_bytes().unwrap();
        let options = PlanOptions { embedding, context: 0, ..PlanOptions::new(options) };
        let plan = plan(&model, &options, Some(before)).unwrap();
        let loaded = CudaBackend::load(device.clone(), Arc::clone(&model), &plan, &mut |_, _| ()).unwrap();
        let used = before - device.free_bytes().unwrap();
        let off = 100.0 * (used as f64 / plan.total as f64 - 1.0);
        println!("planned {} MiB, used {} MiB: {off:+.2}%", plan.total >> 20, used >> 20);
        assert!(off.abs() <= 2.0, "{plan}");
        drop(loaded);
    }
}

/// Requests leave the memory in use as it is. A thousand on a GPU; the device code on the CPU is slow.
#[test]
fn requests_take_no_memory() {
    let _alone = alone();
    let (device, model) = (device(), model("openjet-tiny-Q4_K_M"));
    let loaded = CudaBackend::new(device.clone(), Arc::clone(&model), engine::options(KvType::Q8_0, 3), &mut |_, _| ());
    let (engine, thread) = start(&model, Box::new(loaded.unwrap()), AGENTS);
    let (first, rest) = if on_gpu() { (16, 1000) } else { (1, 3) };
    let serve = |from: u64, count: u64| {
        for batch in (from..from + count).collect::<Vec<_>>().chunks(AGENTS) {
            let requests = batch.iter().map(|&n| {
                let params = SamplingParams { temperature: (n % 2) as f32, seed: n, ..SamplingParams::default() };
                engine.submit(request(prompt(n, 3 + n as usize % 40), params, 2 + n as u32 % 8)).unwrap()
            });
            let requests: Vec<_> = requests.collect();
            requests.into_iter().for_each(|generation| assert!(!outcome(generation).unwrap().is_empty()));
        }
    };
    serve(0, first);
    let before = device.free_bytes().unwrap();
    serve(first, rest);
    assert_eq!(device.free_bytes().unwrap(), before, "free bytes after {rest} requests");
    drop(engine);
    thread.join().unwrap();
}

#[test]
fn loading_and_unloading_returns_to_the_base() {
    let _alone = alone();
    let (device, model) = (device(), model("openjet-tiny-Q4_K_M"));
    let load = |embedding| {
        let options = PlanOptions { embedding, context: 0, ..PlanOptions::new(engine::options(KvType::Q8_0, 3)) };
        let plan = plan(&model, &options, Some(device.free_bytes().unwrap())).unwrap();
        CudaBackend::load(device.clone(), Arc::clone(&model), &plan, &mut |_, _| ()).unwrap()
    };
    drop(load(Embedding::Gpu));
    let base = device.free_bytes().unwrap();
    for i in 0..20 {
        let loaded = load(if i % 2 == 0 { Embedding::Gpu } else { Embedding::Host });
        assert!(device.free_bytes().unwrap() < base);
        drop(loaded);
    }
    assert_eq!(device.free_bytes().unwrap(), base);
}

/// With the embedding table in host memory the texts are the same.
#[test]
fn an_embedding_table_in_host_memory_changes_no_token() {
    let _alone = alone();
    let (device, model) = (device(), model("openjet-tiny-Q4_K_M"));
    let texts = [Embedding::Gpu, Embedding::Host].map(|embedding| {
        let options = PlanOptions { embedding, context: 0, ..PlanOptions::new(engine::options(KvType::Q8_0, 3)) };
        let plan = plan(&model, &options, None).unwrap();
        assert_eq!(plan.host_embedding, embedding == Embedding::Host);
        let loaded = CudaBackend::load(device.clone(), Arc::clone(&model), &plan, &mut |_, _| ()).unwrap();
        let (engine, thread) = start(&model, Box::new(loaded), 1);
        let tokens = if on_gpu() { 100 } else { 4 };
        let params = SamplingParams { temperature: 0.8, seed: 3, ..SamplingParams::default() };
        let text = outcome(engine.submit(request(prompt(1, 20), params, tokens)).unwrap()).unwrap();
        drop(engine);
        thread.join().unwrap();
        text
    });
    assert_eq!(texts[0], texts[1]);
}
