//! What happens when a device fails: each fault is injected, and ends as it is documented.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;

use common::engine::{outcome, prompt, request, start};
use common::*;
use openjet_engine::backend::KvType;
use openjet_engine::engine::Engine;
use openjet_engine::request::{Request, RequestError};
use openjet_engine::sampling::SamplingParams;
use openjet_kernels::CudaBackend;
use openjet_kernels::device::{Device, Fault};
use openjet_proto::Health;

fn load(device: Device) -> Result<CudaBackend, String> {
    let model = model("openjet-tiny-Q4_K_M");
    CudaBackend::new(device, model, engine::options(KvType::Q8_0, 1), &mut |_, _| ()).map_err(|e| e.to_string())
}

/// An engine with two agents on a device that `fault` happens to.
fn engine_with(fault: Fault) -> (Engine, std::thread::JoinHandle<()>) {
    let model = model("openjet-tiny-Q4_K_M");
    start(&model, Box::new(load(device().with_fault(fault)).unwrap()), 2)
}

fn ask(n: u64, tokens: u32) -> Request {
    request(prompt(n, 4), SamplingParams::default(), tokens)
}

#[test]
fn a_failed_allocation_is_told_and_nothing_stays_behind() {
    // One of its own, where that is possible: other tests allocate at the same time.
    let device = if on_gpu() { device() } else { host(3, 100 << 10) };
    drop(load(device.clone()).unwrap());
    let before = device.free_bytes().unwrap();
    for n in [0, 1, 2, 4, 7] {
        let error = load(device.clone().with_fault(Fault::Allocation(n))).unwrap_err();
        assert!(error.contains("bytes on the GPU") && error.contains("out of memory"), "{error}");
        if !on_gpu() {
            assert_eq!(device.free_bytes().unwrap(), before, "after allocation {n} failed");
        }
    }
}

#[test]
fn a_launch_error_and_a_lost_device_end_the_engine_and_every_request() {
    for (fault, reason) in [(Fault::Launch(5), "launch a step: launch failed"), (Fault::Lost(4), "the GPU is lost")] {
        let (engine, thread) = engine_with(fault.clone());
        // Two run, two wait.
        let requests: Vec<_> = (0..4).map(|n| engine.submit(ask(n, 500)).unwrap()).collect();
        for generation in requests {
            match outcome(generation) {
                Err(RequestError::Unavailable(why)) => assert!(why.contains(reason), "{fault:?}: {why}"),
                other => panic!("{fault:?}: {other:?}"),
            }
        }
        thread.join().unwrap();
        match &engine.status().health {
            Health::Failed { reason: why } => assert!(why.contains(reason), "{why}"),
            other => panic!("{other:?}"),
        }
        let refused = engine.submit(ask(9, 1)).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn numbers_that_are_no_longer_finite_fail_one_request() {
    let tokens = if on_gpu() { 30 } else { 3 };
    let (engine, thread) = engine_with(Fault::NotFinite(u64::MAX));
    let whole = [1, 2].map(|n| outcome(engine.submit(ask(n, tokens)).unwrap()).unwrap());
    drop(engine);
    thread.join().unwrap();
    let (engine, thread) = engine_with(Fault::NotFinite(2));
    let requests = [1, 2].map(|n| engine.submit(ask(n, tokens)).unwrap());
    let outcomes = requests.map(outcome);
    let failed: Vec<usize> = (0..2).filter(|&i| outcomes[i].is_err()).collect();
    assert_eq!(failed.len(), 1, "{outcomes:?}");
    let (bad, good) = (failed[0], 1 - failed[0]);
    assert!(matches!(outcomes[bad], Err(RequestError::NotFinite { .. })), "{outcomes:?}");
    assert_eq!(outcomes[good].as_ref().unwrap(), &whole[good], "the other text");
    // The engine goes on, and the spoilt slot begins anew.
    assert_eq!(engine.status().health, Health::Ready);
    let again = [1, 2].map(|n| engine.submit(ask(n, tokens)).unwrap()).map(|generation| outcome(generation).unwrap());
    assert_eq!(again, whole);
    drop(engine);
    thread.join().unwrap();
}

#[test]
fn faults_are_read_from_text() {
    assert_eq!("lost:3".parse(), Ok(Fault::Lost(3)));
    assert!("lost".parse::<Fault>().unwrap_err().contains("allocation:N"));
}
