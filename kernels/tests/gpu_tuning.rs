//! How matmuls are shared out changes no bit, is measured once, and is kept.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;

use std::sync::Arc;

use common::engine::{options, outcome, prompt, request, start};
use common::*;
use openjet_engine::backend::KvType;
use openjet_engine::quant::TensorType;
use openjet_engine::sampling::SamplingParams;
use openjet_kernels::CudaBackend;
use openjet_kernels::device::Device;
use openjet_kernels::program::*;
use openjet_kernels::tuning::{Source, Tune, Tuning};

/// Costs between nothing and a thousand times another's.
fn any_tuning(random: &mut Random) -> Tuning {
    let mut cost = |least: usize| (least + random.below(10)) as u32 * [1, 10, 1000][random.below(3)];
    Tuning { part: cost(0), tile: std::array::from_fn(|_| cost(1)) }
}

/// Bits of the products of matrices of several types and sizes, in one op: a pair, and two with inputs cut into runs.
fn products(device: &Device, tuning: Option<Tuning>, rows: usize) -> Vec<u32> {
    const INPUTS: usize = 1280;
    const MOST: usize = 24;
    let mut random = Random(41);
    let jobs = [
        (TensorType::Q4_K, 200, 1, true),
        (TensorType::Q6_K, 72, 2, false),
        (TensorType::F32, 6, 1, false),
        (TensorType::Q8_0, 40, 2, false),
    ];
    let input = upload_f32(device, &random.vector(MOST * INPUTS));
    let fragments = device.allocate(fragment_bytes(MOST, INPUTS)).unwrap();
    let mut args = MatmulArgs { x: fragments.address(), inputs: INPUTS as u32, jobs: 4, ..MatmulArgs::default() };
    let buffers = jobs.iter().zip(&mut args.job).map(|(&(ty, outputs, splits, paired), job)| {
        let mut bytes = || random_weights(ty, outputs, INPUTS, &mut random);
        let (weights, matrix) = if paired {
            upload_pair(device, ty, [&bytes(), &bytes()], outputs, INPUTS)
        } else {
            upload(device, ty, &bytes(), outputs, INPUTS)
        };
        let y = device.allocate(splits * MOST * outputs * 4).unwrap();
        *job = matrix.job(y.address(), splits, MOST);
        (weights, y)
    });
    let buffers: Vec<_> = buffers.collect();
    let pack = PackArgs { from: InputRows::plain(input.address(), INPUTS), to: fragments.address(), rows: 0 };
    let mut program = tuning.map_or_else(ProgramBuilder::default, ProgramBuilder::tuned);
    program.then(OpKind::Pack, pack).then(OpKind::Matmul, args);
    program.finish(device).unwrap().run(&plain_table(device, rows as u32, 0)).unwrap();
    buffers.iter().flat_map(|(_, y)| download_f32(y)).map(f32::to_bits).collect()
}

#[test]
fn any_costs_give_the_same_bits() {
    let mut random = Random(43);
    for rows in [1, 11, 24] {
        let expected = products(&device(), None, rows);
        assert!(expected.iter().filter(|&&bits| bits != 0).count() >= rows * 318, "{rows} rows");
        for _ in 0..8 {
            let tuning = any_tuning(&mut random);
            let same = products(&device(), Some(tuning), rows) == expected;
            assert!(same, "{rows} rows, {tuning:?}");
        }
    }
}

/// As the self-test's is where every way shares out all matmuls alike.
#[test]
fn a_program_without_ops_ends() {
    let device = device();
    let program = ProgramBuilder::default().finish(&device).unwrap();
    assert!(program.is_empty());
    for _ in 0..2 {
        program.run(&plain_table(&device, 1, 0)).unwrap();
    }
}

/// The self-test, its file, and the model's text, which stays what it is.
#[test]
fn a_choice_is_measured_once_and_changes_no_token() {
    let (device, model) = (device(), model("openjet-tiny-Q4_K_M"));
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("tuning.json");
    let load =
        || CudaBackend::new(device.clone(), Arc::clone(&model), options(KvType::Q8_0, 3), &mut |_, _| ()).unwrap();
    let text = |backend: CudaBackend| {
        let (engine, thread) = start(&model, Box::new(backend), 1);
        let params = SamplingParams { temperature: 0.8, seed: 3, ..SamplingParams::default() };
        let tokens = if on_gpu() { 100 } else { 4 };
        let text = outcome(engine.submit(request(prompt(1, 20), params, tokens)).unwrap()).unwrap();
        drop(engine);
        thread.join().unwrap();
        text
    };
    let mut untuned = load();
    untuned.tune(Tune::Off, Some(&cache)).unwrap();
    assert_eq!((untuned.tuning().source, untuned.tuning().gain), (Source::BuiltIn, 0.0));
    assert!(!cache.exists());
    let expected = text(untuned);

    let mut measured = load();
    measured.tune(Tune::Again, Some(&cache)).unwrap();
    let chosen = measured.tuning().clone();
    println!("chosen: {chosen}");
    assert_eq!(chosen.source, Source::Measured);
    assert!(chosen.seconds > 0.0 && chosen.gain >= 0.0 && chosen.gain < 1.0);
    drop(measured);

    // As if another way had won, so that it is seen to be taken.
    let mut file: serde_json::Value = serde_json::from_slice(&std::fs::read(&cache).unwrap()).unwrap();
    let other = any_tuning(&mut Random(47));
    file["choices"][0]["chosen"]["tuning"] = serde_json::to_value(other).unwrap();
    std::fs::write(&cache, serde_json::to_vec(&file).unwrap()).unwrap();
    let mut cached = load();
    cached.tune(Tune::Auto, Some(&cache)).unwrap();
    assert_eq!((cached.tuning().source, cached.tuning().tuning), (Source::Cached, other));
    assert_eq!(cached.tuning().seconds.to_bits(), chosen.seconds.to_bits());
    assert_eq!(text(cached), expected);

    // A choice for something else is none for this.
    file["choices"][0]["key"] = "another card".into();
    std::fs::write(&cache, serde_json::to_vec(&file).unwrap()).unwrap();
    let mut foreign = load();
    foreign.tune(Tune::Auto, Some(&cache)).unwrap();
    let source = if on_gpu() { Source::Measured } else { Source::BuiltIn };
    assert_eq!(foreign.tuning().source, source);
}
