//! The tests of the CUDA backend on this machine's GPU, one program after the other; also under compute-sanitizer.

use super::counts::Counts;
use super::{Log, Report, duration};
use crate::programs::{self, Programs};
use crate::{env, sh};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Options of `test` that are about the GPU.
#[derive(Debug, clap::Args)]
pub(crate) struct GpuArgs {
    /// Run the tests of the GPU alone, or of them these programs (gpu_model, ...); that there is no GPU is then a failure.
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, require_equals = true, value_delimiter = ',',
          default_missing_value = ALL, conflicts_with = "only")]
    pub(super) gpu: Option<Vec<String>>,
    /// Run them under compute-sanitizer's tools, one after the other; gpu_model alone unless programs are named. Racecheck
    /// takes a build of its own, so from a pack it reports the sums of matmuls.
    #[arg(long, requires = "gpu", value_name = "TOOL", num_args = 0..=1, require_equals = true, value_delimiter = ',',
          default_missing_value = "memcheck,racecheck,synccheck,initcheck")]
    sanitize: Vec<String>,
    /// Of the tests in a program, run those whose names contain this.
    #[arg(long, requires = "gpu", value_name = "TEXT")]
    filter: Option<String>,
}

/// Stands for all programs.
const ALL: &str = "all";

/// All of them, as a part of all tests.
pub(super) fn run(log: &Log) -> Result<Report> {
    if !env::has_gpu() {
        return Ok(Report::Skipped("no NVIDIA GPU here".into()));
    }
    let programs = Programs::find(false)?;
    let synth = synthetic(&programs, log)?;
    let mut sum = Counts::default();
    for (name, file) in &programs.tests {
        sum += one(name, &mut test(file, None, synth.as_deref()))?;
    }
    Ok(Report::Ran(sum, String::new()))
}

/// What `--gpu` asks for. Prints a line for each program; returns the sum.
pub(super) fn alone(args: &GpuArgs) -> Result<Counts> {
    if !env::has_gpu() {
        bail!("no NVIDIA GPU here");
    }
    let programs = Programs::find(args.sanitize.iter().any(|tool| tool == "racecheck"))?;
    println!("Tests of the CUDA backend, built from {}:", programs.commit);
    let mut wanted = args.gpu.clone().unwrap_or_default();
    if wanted == [ALL] {
        wanted = if args.sanitize.is_empty() { all(&programs) } else { vec!["gpu_model".into()] };
    }
    let synth = synthetic(&programs, &Log::new("gpu-synth-model")?)?;
    let mut sum = Counts::default();
    for name in &wanted {
        let file = programs.tests.iter().find(|test| test.0 == *name).map(|test| &test.1);
        let file = file.with_context(|| format!("there is no program {name}, but {}", all(&programs).join(", ")))?;
        let mut test = test(file, args.filter.as_deref(), synth.as_deref());
        if args.sanitize.is_empty() {
            sum += one(name, &mut test)?;
        }
        for tool in &args.sanitize {
            sum += sanitized(tool, name, &test)?;
        }
    }
    if sum == Counts::default() {
        bail!("no test ran: does the name of one contain {:?}?", args.filter.as_deref().unwrap_or_default());
    }
    Ok(sum)
}

fn all(programs: &Programs) -> Vec<String> {
    programs.tests.iter().map(|test| test.0.clone()).collect()
}

/// A model with a known text, unless one is named; the large one takes minutes to write and is for whoever measures speed.
fn synthetic(programs: &Programs, log: &Log) -> Result<Option<PathBuf>> {
    if std::env::var_os("OPENJET_SYNTH").is_some() {
        return Ok(None);
    }
    let model = log.path.with_file_name("synth.gguf");
    log.run(sh::cmd(&programs.ctl).args(["synth", "--tiny"]).arg(&model))?;
    Ok(Some(model))
}

/// A test program with what it needs.
fn test(file: &PathBuf, filter: Option<&str>, synth: Option<&Path>) -> Command {
    let mut test = programs::with_files(file);
    // What tests print holds the figures.
    test.arg("--nocapture").args(filter);
    if let Some(model) = synth {
        test.env("OPENJET_SYNTH", model).env("OPENJET_SYNTH_TOKENS", "400");
    }
    test
}

/// Runs a test program and prints its line.
fn one(name: &str, test: &mut Command) -> Result<Counts> {
    let (log, start) = (Log::new(name)?, Instant::now());
    let good = log.try_run(test)?;
    let mut counts = Counts::read(&log.text());
    if !good && counts.failed == 0 {
        // It crashed before its closing line.
        counts.failed = 1;
    }
    line(name, counts, start, "", &log);
    Ok(counts)
}

/// Runs a test program under one of compute-sanitizer's tools and prints its line.
fn sanitized(tool: &str, name: &str, test: &Command) -> Result<Counts> {
    let (log, start) = (Log::new(&format!("{tool}-{name}"))?, Instant::now());
    let sanitizer = env::find("compute-sanitizer").or_else(|| {
        let usual = PathBuf::from("/usr/local/cuda/bin/compute-sanitizer");
        usual.is_file().then_some(usual)
    });
    let sanitizer =
        sanitizer.context("compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin: install CUDA")?;
    let mut command = programs::with_files(&sanitizer);
    command.args(["--tool", tool, "--error-exitcode", "9"]).arg(test.get_program()).args(test.get_args());
    // One test at a time: reports name kernels, not tests.
    command.args(["--test-threads", "1"]);
    command.envs(test.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let good = log.try_run(&mut command)?;
    let text = log.text();
    let mut counts = Counts::read(&text);
    let verdict = text.lines().rev().find(|line| line.contains("SUMMARY:"));
    if counts.failed == 0 && (!good || verdict.is_none()) {
        counts.failed = 1;
    }
    let verdict = verdict.map_or("no summary", |line| line.trim_start_matches('=').trim());
    line(&format!("{tool} {name}"), counts, start, verdict, &log);
    Ok(counts)
}

fn line(name: &str, counts: Counts, start: Instant, note: &str, log: &Log) {
    let verdict = if counts.failed == 0 { "ok" } else { "FAILED" };
    let Counts { passed, failed, skipped } = counts;
    let note = if note.is_empty() { String::new() } else { format!("; {note}") };
    println!("  {name}: {verdict}, {}: {passed} passed, {failed} failed, {skipped} skipped{note}", duration(start));
    if failed > 0 {
        super::complain(log);
    }
}
