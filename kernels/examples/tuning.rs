//! Times the ways in which a model's matmuls can be shared out among a GPU's blocks, and what a tile of each type costs.
//!
//! `cargo run --release -p openjet-kernels --example tuning -- MODEL.gguf`
#![allow(clippy::print_stdout, missing_docs)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::quant::TensorType;
use openjet_kernels::CudaBackend;
use openjet_kernels::device::{Device, Selector};
use openjet_kernels::program::{MatmulArgs, MatmulJob, OpKind, ProgramBuilder, fragment_bytes};
use openjet_kernels::repack::{WeightType, repacked_bytes};
use openjet_kernels::tuning::{Compared, Tune};

/// Inputs of the matrices whose tiles are timed.
const INPUTS: usize = 5120;

#[derive(Parser)]
struct Cli {
    /// The model
    model: PathBuf,
    /// GPU, by index or UUID
    #[arg(long)]
    gpu: Option<Selector>,
    /// Numbers of rows
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 16, 24])]
    rows: Vec<u32>,
    /// Times that each is run
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Matmuls of a type that are run after another
    #[arg(long, default_value_t = 16)]
    chain: usize,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let device = Device::open(&cli.gpu.clone().unwrap_or_default())?;
    println!("{}", device.describe());
    tiles(&device, &cli)?;
    let model = Arc::new(Model::load(Arc::new(GgufFile::open(&cli.model)?))?);
    let options = BackendOptions { slots: 8, pages: 512, kv: KvType::Q8_0, draft_max: 3 };
    let mut backend = CudaBackend::new(device, model, options, &mut |_, _| ())?;
    for _ in 0..5 {
        backend.tune(Tune::Again, None)?;
        println!("chosen: {}", backend.tuning());
    }
    table(&backend.compare_tunings(&cli.rows, cli.rounds)?, &cli.rows);
    Ok(())
}

/// A line for each kind of matmul and number of rows: microseconds of each way, and of all together in a step.
fn table(all: &[Compared], rows: &[u32]) {
    let mut names: Vec<&str> = Vec::new();
    all.iter().for_each(|one| {
        if !names.contains(&one.name.as_str()) {
            names.push(&one.name);
        }
    });
    names.iter().enumerate().for_each(|(i, name)| println!("way {i}: {name}"));
    for &rows in rows {
        let mut sums = vec![0.0; names.len()];
        for lines in all.chunk_by(|a, b| a.kind == b.kind) {
            let us = names.iter().zip(&mut sums).map(|(name, sum)| {
                let one = lines.iter().find(|one| one.rows == rows && one.name == *name);
                let us = one.map_or(f64::NAN, |one| one.us);
                *sum += us * lines[0].count as f64;
                format!("{us:7.2}")
            });
            let us: Vec<String> = us.collect();
            println!("{rows:2} rows {} {:3} times {}", us.join(" "), lines[0].count, lines[0].kind);
        }
        let sums: Vec<String> = sums.iter().map(|sum| format!("{sum:7.0}")).collect();
        println!("{rows:2} rows {} a step", sums.join(" "));
    }
}

/// Nanoseconds of a block for a tile of each type, from matrices of two and of ten tiles of outputs a block, and of an op without them.
fn tiles(device: &Device, cli: &Cli) -> Result<()> {
    let (few, many) = (2, 10);
    let outputs = |tiles: usize| tiles * 16 * device.blocks() as usize;
    let most = cli.rows.iter().copied().max().unwrap_or(1) as usize;
    let x = device.allocate(fragment_bytes(most, INPUTS))?;
    let y = device.allocate(most * outputs(many) * 4)?;
    println!("ns of a tile, us of the rest of an op; rows {:?}", cli.rows);
    for ty in TensorType::ALL {
        let bytes = repacked_bytes(ty, outputs(many), INPUTS);
        let weights = device.allocate(cli.chain * bytes)?;
        let mut line = format!("{ty:?} {}", WeightType::of(ty).tile_bytes());
        for &rows in &cli.rows {
            let table = device.upload(bytemuck::bytes_of(&[rows, 0, 0, 0, 8, 0, 0, 0u32]))?;
            let seconds = |tiles: usize| -> Result<f64> {
                let mut program = ProgramBuilder::default();
                for i in 0..cli.chain {
                    let mut args =
                        MatmulArgs { x: x.address(), inputs: INPUTS as u32, jobs: 1, ..MatmulArgs::default() };
                    args.job[0] = MatmulJob {
                        weights: weights.address() + (i * bytes) as u64,
                        y: y.address(),
                        ty: WeightType::of(ty) as u16,
                        paired: 0,
                        outputs: outputs(tiles) as u32,
                        stride: outputs(tiles) as u32,
                        splits: 1,
                        split_stride: 0,
                    };
                    program.then(OpKind::Matmul, args);
                }
                let program = program.finish(device)?;
                program.run(&table)?;
                let mut times = (0..cli.rounds).map(|_| -> Result<f64> {
                    let began = Instant::now();
                    program.run(&table)?;
                    Ok(began.elapsed().as_secs_f64())
                });
                let mut times = times.by_ref().collect::<Result<Vec<_>>>()?;
                times.sort_by(f64::total_cmp);
                Ok(times[times.len() / 2] / cli.chain as f64)
            };
            let (less, more) = (seconds(few)?, seconds(many)?);
            let tile = (more - less) / ((many - few) * INPUTS / 256) as f64;
            let rest = less - tile * (few * INPUTS / 256) as f64;
            line += &format!("  {:.1} {:.2}", tile * 1e9, rest * 1e6);
        }
        println!("{line}");
    }
    Ok(())
}
