//! Measures the card's own limits, then each op of the CUDA backend against them, then whole steps of a model.
//!
//! `cargo xtask bench`, or this program alone on a machine without Rust. Ops are timed many after another in one program, with
//! weights and cells that no cache holds; the barrier after an op is part of its time.
#![allow(clippy::print_stdout, reason = "this is a program that prints a table")]
#![allow(clippy::indexing_slicing, reason = "a bench may stop where its own lists are wrong")]

mod attention;
mod chain;
#[path = "../../tests/common/mod.rs"]
mod common;
mod deltanet;
mod matmul;
mod plot;
mod probe;
mod ptx;
mod report;
mod shapes;
mod small;
mod steps;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use openjet_kernels::device::{Device, Selector, driver_version, find};

use chain::Chain;
use probe::Limits;
use report::{Card, Measured, Report};
use shapes::Shapes;
use steps::Steps;

/// Measures each op of the CUDA backend, and whole steps, on a GPU.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Args {
    /// The GPU, by index or UUID [default: the first that can be used].
    #[arg(long, value_name = "GPU", value_parser = selector)]
    gpu: Option<Selector>,
    /// Measure whole steps of this model too; `openjetctl synth FILE.gguf` writes one.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Measure these alone.
    #[arg(long, value_delimiter = ',', value_name = "GROUP")]
    only: Vec<Group>,
    /// Fewer cases, fewer runs: a look, not a result.
    #[arg(long)]
    quick: bool,
    /// One case of each kind, in small sizes: shows that it works, on a slow machine too.
    #[arg(long, conflicts_with = "quick")]
    trial: bool,
    /// Write everything that was measured to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the curves into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Barrier, norms, packing, embedding, sampling.
    Small,
    /// The decode step's products, every tensor type.
    Matmul,
    /// The prompt's products.
    Prompt,
    /// Attention at 1K to 256K tokens.
    Attention,
    /// The recurrent layers.
    Deltanet,
    /// Whole steps of `--model`.
    Steps,
}

fn selector(text: &str) -> Result<Selector, String> {
    text.parse()
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    Full,
    Quick,
    Trial,
}

impl Effort {
    /// What there is to measure, for each effort.
    fn choose<'a, T>(self, full: &'a [T], quick: &'a [T], trial: &'a [T]) -> &'a [T] {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Trial => trial,
        }
    }
}

/// What measurements share.
struct Bench<'a> {
    chain: Chain<'a>,
    shapes: Shapes,
    limits: Option<Limits>,
    effort: Effort,
    /// Bytes that push everything else out of the caches.
    cold_bytes: usize,
    ops: Vec<Measured>,
}

impl Bench<'_> {
    fn add(&mut self, op: Measured) {
        println!("{}", report::op(&op));
        self.ops.push(op);
    }
}

fn main() -> Result<()> {
    run(&Args::parse()).map(|_| ())
}

fn run(args: &Args) -> Result<Report> {
    let gpu = args.gpu.clone().unwrap_or_default();
    let device = Device::open(&gpu)?;
    let info = find(&gpu).ok();
    let card = Card {
        description: device.describe(),
        uuid: info.as_ref().map(|info| info.uuid.clone()),
        driver: driver_version(),
    };
    println!("{}, driver {}", card.description, card.driver.as_deref().unwrap_or("unknown"));
    // The device code on the CPU has no limits worth a look.
    let limits = info.map(|info| probe::measure(&info, device.blocks())).transpose()?;
    if let Some(Limits { read_gb_s, mma_tflops, wgmma_tflops }) = limits {
        let wgmma = wgmma_tflops.map_or_else(String::new, |rate| format!(", wgmma {rate:.0}"));
        println!("reads {read_gb_s:.0} GB/s; tensor units at f16: mma.sync {mma_tflops:.0}{wgmma} TFLOP/s");
    }
    let effort = if args.trial {
        Effort::Trial
    } else if args.quick {
        Effort::Quick
    } else {
        Effort::Full
    };
    let shapes = if args.trial { shapes::TINY } else { shapes::REAL };
    let aim = match effort {
        Effort::Full => Some((0.01, 5)),
        Effort::Quick => Some((0.004, 3)),
        Effort::Trial => None,
    };
    let mut bench = Bench {
        chain: Chain::new(&device, aim)?,
        shapes,
        limits,
        effort,
        cold_bytes: if args.trial { 0 } else { 400 << 20 },
        ops: Vec::new(),
    };
    println!("a program that does nothing takes {:.1} us", 1e6 * bench.chain.launch);
    let mut report = Report {
        kind: "kernels",
        commit: std::env::var("OPENJET_COMMIT").unwrap_or_else(|_| "unknown".into()),
        version: env!("CARGO_PKG_VERSION"),
        date: openjet_bench::today(),
        card,
        limits,
        launch_us: 1e6 * bench.chain.launch,
        ops: Vec::new(),
        model: None,
        steps: Vec::new(),
        prompts: Vec::new(),
    };
    let wanted = |group| args.only.is_empty() || args.only.contains(&group);
    type Measure = fn(&mut Bench<'_>) -> Result<()>;
    let groups: [(Group, Measure); 5] = [
        (Group::Small, small::all),
        (Group::Matmul, matmul::decode),
        (Group::Prompt, matmul::prompt),
        (Group::Attention, attention::all),
        (Group::Deltanet, deltanet::all),
    ];
    for (group, measure) in groups.into_iter().filter(|group| wanted(group.0)) {
        println!("\n{}", report::heading());
        measure(&mut bench).with_context(|| format!("measuring {group:?}"))?;
        report.ops.append(&mut bench.ops);
        // What there is stays, should the rest be cut off.
        save(&report, args)?;
    }
    drop(bench);
    match &args.model {
        Some(model) if wanted(Group::Steps) => whole_steps(&device, model, effort, &shapes, &mut report)?,
        None if args.only.contains(&Group::Steps) => anyhow::bail!("whole steps need a model: --model FILE.gguf"),
        _ => {}
    }
    save(&report, args)?;
    Ok(report)
}

fn whole_steps(device: &Device, file: &Path, effort: Effort, shapes: &Shapes, report: &mut Report) -> Result<()> {
    let (mut steps, facts) = Steps::load(device, file, effort, shapes.longest)?;
    println!("\n{} loaded in {:.1} s", facts.name, facts.load_s);
    report.model = Some(facts);
    let last = |table: String| table.lines().last().unwrap_or_default().to_owned();
    report.prompts =
        steps.prompts(|pass| println!("prompt pass: {}", last(report::prompts(std::slice::from_ref(pass)))))?;
    report.steps = steps.measure(|step| println!("step: {}", last(report::steps(std::slice::from_ref(step)))))?;
    println!("\n{}\n{}", report::prompts(&report.prompts), report::steps(&report.steps));
    Ok(())
}

fn save(report: &Report, args: &Args) -> Result<()> {
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(report)?)
            .with_context(|| format!("can't write {}", file.display()))?;
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::draw(report)).with_context(|| format!("can't write {}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::ffi::OsStr;

    use super::*;

    /// Every op runs with these arguments, and every figure is there.
    #[test]
    fn everything_is_measured_on_the_cpu() {
        let folder = tempfile::tempdir().unwrap();
        let (json, plot) = (folder.path().join("b.json"), folder.path().join("b.svg"));
        let model = common::fixture("assets/openjet-tiny-Q4_K_M.gguf");
        let line = ["bench", "--gpu", "emulated", "--trial"].map(OsStr::new);
        let files = [
            "--model".as_ref(),
            model.as_os_str(),
            "--json".as_ref(),
            json.as_os_str(),
            "--plot".as_ref(),
            plot.as_os_str(),
        ];
        let report = run(&Args::try_parse_from(line.into_iter().chain(files)).unwrap()).unwrap();
        for group in
            ["walk", "residual", "norm", "pack", "embed", "sample", "matmul", "prompt", "attention", "DeltaNet"]
        {
            assert!(report.ops.iter().any(|op| op.group == group), "{group}");
        }
        assert!(report.ops.iter().all(|op| op.us.median.is_finite() && op.us.median > 0.0), "{:?}", report.ops);
        assert!(report.steps.iter().all(|step| step.tokens_per_step_and_agent >= 1.0 && step.total_tok_s > 0.0));
        assert!(report.steps.iter().any(|step| step.agents == 2 && step.drafts == 2));
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        assert_eq!(written["ops"].as_array().unwrap().len(), report.ops.len());
        assert!(std::fs::read_to_string(plot).unwrap().contains("Matmuls of a decode step"));
    }
}
