//! `cargo xtask test`: every test that this machine can run, part by part.

mod counts;
mod gpu;
mod kernels;
mod lints;
mod page;
mod python;
mod rust;

use crate::{env, pack, sh};
use anyhow::{Context, Result, bail};
use counts::Counts;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Options of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these parts alone.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<String>,
    #[command(flatten)]
    gpu: gpu::GpuArgs,
    /// Name the parts and stop.
    #[arg(long)]
    list: bool,
}

/// One part of the tests.
struct Part {
    name: &'static str,
    what: &'static str,
    run: fn(&Log) -> Result<Report>,
}

/// In this order: what fails fast comes first.
const PARTS: &[Part] = &[
    Part { name: "fmt", what: "the code is formatted", run: lints::fmt },
    Part { name: "deny", what: "licences and sources of the dependencies", run: lints::deny },
    Part { name: "page", what: "the page builds for wasm32, and its size", run: page::run },
    Part { name: "kernels", what: "the device code compiles for every architecture", run: kernels::compile },
    Part { name: "clippy", what: "no lint complains", run: lints::clippy },
    Part { name: "rust", what: "Rust's unit and integration tests", run: rust::tests },
    Part { name: "doctest", what: "the examples in the documentation", run: rust::doctests },
    Part { name: "doc", what: "the documentation builds without a warning", run: lints::doc },
    Part { name: "fuzz", what: "the fuzz targets compile", run: rust::fuzz },
    Part { name: GPU, what: "the CUDA backend on this machine's GPU", run: gpu::run },
    Part { name: "clients", what: "real clients against the real daemon", run: python::clients },
    Part { name: AGENTS, what: "real coding agents against the real daemon (only if asked for)", run: python::agents },
    Part { name: "systemd", what: "the service under a real systemd", run: python::systemd },
    Part { name: "browser", what: "the page in a real browser", run: python::browser },
];

/// The one part that continuous integration may skip.
const GPU: &str = "gpu";

/// The one part that runs only if it is asked for: it fetches 2 GB.
const AGENTS: &str = "agents";

/// What came of a part that could run.
enum Report {
    /// It ran: its tests, and what else is worth a word.
    Ran(Counts, String),
    /// It can't run here, and why.
    Skipped(String),
}

impl Report {
    /// One check that passed.
    fn passed() -> Self {
        Self::Ran(Counts { passed: 1, ..Counts::default() }, String::new())
    }
}

/// Where a part's programs write.
struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    fn new(part: &str) -> Result<Self> {
        let folder = env::target().join("xtask-test");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{part}.log"));
        let file = File::create(&path).with_context(|| format!("can't write {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// Runs a command that must succeed.
    fn run(&self, command: &mut Command) -> Result<()> {
        let status = self.try_run(command)?;
        if !status {
            bail!("`{}` failed", sh::line(command));
        }
        Ok(())
    }

    /// Runs a command; whether it succeeded.
    fn try_run(&self, command: &mut Command) -> Result<bool> {
        writeln!(&self.file, "$ {}", sh::line(command))?;
        Ok(sh::logged(command, &self.file)?.success())
    }

    /// All that was written.
    fn text(&self) -> String {
        read(&self.path)
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Runs the chosen parts, prints one line for each and the sum of all.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.list {
        for part in PARTS {
            println!("{:<9} {}", part.name, part.what);
        }
        return Ok(());
    }
    if let Some(unknown) = args.only.iter().find(|name| PARTS.iter().all(|part| part.name != **name)) {
        bail!("there is no part {unknown:?}: `cargo xtask test --list` names them");
    }
    let start = Instant::now();
    let mut sum = Counts::default();
    if args.gpu.gpu.is_some() {
        sum += gpu::alone(&args.gpu)?;
    } else if pack::folder().is_some() {
        bail!("a pack holds the tests of the GPU alone: add --gpu");
    } else {
        let chosen = |name: &str| match &args.only[..] {
            [] => name != AGENTS,
            only => only.iter().any(|one| one == name),
        };
        for part in PARTS.iter().filter(|part| chosen(part.name)) {
            sum += one(part, part.name == GPU || !env::in_ci())?;
        }
    }
    println!("All parts together, in {}:", duration(start));
    println!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
    if sum.failed > 0 {
        // The reasons are printed above.
        std::process::exit(1);
    }
    Ok(())
}

/// Runs one part and prints its line.
fn one(part: &Part, may_skip: bool) -> Result<Counts> {
    let start = Instant::now();
    println!("{}: {} ...", part.name, part.what);
    let log = Log::new(part.name)?;
    let report = (part.run)(&log);
    let time = duration(start);
    match report {
        Ok(Report::Ran(counts, note)) => {
            let verdict = if counts.failed == 0 { "ok" } else { "FAILED" };
            let note = if note.is_empty() { note } else { format!("; {note}") };
            println!(
                "  {verdict}, {time}: {} passed, {} failed, {} skipped{note}",
                counts.passed, counts.failed, counts.skipped
            );
            if counts.failed > 0 {
                complain(&log);
            }
            Ok(counts)
        }
        // A machine that is to test everything can't pass for one that can't.
        Ok(Report::Skipped(why)) if !may_skip => {
            println!("  FAILED, {time}: it must run here, but: {why}");
            Ok(Counts { failed: 1, ..Counts::default() })
        }
        Ok(Report::Skipped(why)) => {
            println!("  skipped: {why}");
            Ok(Counts { skipped: 1, ..Counts::default() })
        }
        Err(error) => {
            println!("  FAILED, {time}: {error:#}");
            complain(&log);
            Ok(Counts { failed: 1, ..Counts::default() })
        }
    }
}

/// Shows the end of a failed part's log.
fn complain(log: &Log) {
    println!("--- the end of {}:\n{}\n---", log.path.display(), sh::tail(&log.path, 60));
}

fn duration(start: Instant) -> String {
    let seconds = start.elapsed().as_secs_f64();
    if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} m {:02.0} s", seconds as u64 / 60, seconds % 60.0)
    }
}
