//! `cargo xtask soak`: many clients on the real daemon for a long time. No request may fail, and memory must stay flat.

mod client;
mod daemon;

use crate::sh;
use anyhow::{Result, bail};
use client::{Client, Random};
pub(crate) use daemon::Daemon;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Options of `soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long, in minutes.
    #[arg(long, value_name = "N", default_value_t = 30.0)]
    minutes: f64,
    /// How many clients at once.
    #[arg(long, value_name = "N", default_value_t = 16)]
    clients: u64,
    /// Don't build anything: run what was built before.
    #[arg(long)]
    no_build: bool,
}

/// Memory may differ by this share between the time after the warm-up and the end.
const FLAT: f64 = 0.02;

/// Lines of the table.
const LINES: u32 = 15;

/// What all clients count.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    turns: AtomicU64,
    texts: AtomicU64,
    cancelled: AtomicU64,
    tokens: AtomicU64,
    prompt: AtomicU64,
    cached: AtomicU64,
    resizes: AtomicU64,
    errors: Mutex<Vec<String>>,
    over: AtomicBool,
}

impl Counts {
    fn error(&self, what: String) {
        println!("  ERROR: {what}");
        self.errors.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(what);
    }
}

/// Runs the soak and prints a table.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.no_build {
        println!("Building openjetd and openjetctl, with checks for overflow ...");
        sh::run(sh::cargo().args(["build", "--package", "openjetd", "--package", "openjetctl"]))?;
    }
    let daemon = Daemon::start()?;
    let counts = Counts::default();
    let total = Duration::from_secs_f64(args.minutes * 60.0);
    println!("{} clients for {} minutes; the daemon logs to {}.", args.clients, args.minutes, daemon.log.display());
    println!("minute  turns  texts  cancelled  resizes  tokens written  prompt reused  memory MB");
    let memory = std::thread::scope(|scope| {
        for i in 0..args.clients {
            let client = Client::new(daemon.address, i, &counts);
            scope.spawn(move || client.run());
        }
        scope.spawn(|| resize(&daemon, &counts));
        let memory = watch(&daemon, &counts, total);
        counts.over.store(true, Ordering::Relaxed);
        memory
    });
    let memory = memory?;
    judge(&daemon, &counts, &memory)
}

/// Changes the number of agents every few seconds.
fn resize(daemon: &Daemon, counts: &Counts) {
    let mut random = Random::new(999);
    while !counts.over.load(Ordering::Relaxed) {
        let wanted = 1 + random.below(8);
        match daemon.openjetctl(&["agents", "set", &wanted.to_string()]) {
            Ok(_) => counts.resizes.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                counts.error(format!("agents set {wanted}: {error:#}"));
                0
            }
        };
        for _ in 0..50 {
            if !counts.over.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Measures the daemon's memory once a second and prints a line now and then. Returns the megabytes of every second.
fn watch(daemon: &Daemon, counts: &Counts, total: Duration) -> Result<Vec<f64>> {
    let start = Instant::now();
    let (mut memory, mut printed) = (Vec::new(), 0);
    while start.elapsed() < total {
        sleep(Duration::from_secs(1).min(total / 60));
        memory.push(daemon.memory()?);
        if start.elapsed() >= total * (printed + 1) / LINES {
            printed += 1;
            line(start.elapsed(), counts, memory.last().copied().unwrap_or_default());
        }
    }
    Ok(memory)
}

fn line(elapsed: Duration, counts: &Counts, memory: f64) {
    let n = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{:6.1}  {:5}  {:5}  {:9}  {:7}  {:14}  {:12.0}%  {memory:9.1}",
        elapsed.as_secs_f64() / 60.0,
        n(&counts.turns),
        n(&counts.texts),
        n(&counts.cancelled),
        n(&counts.resizes),
        n(&counts.tokens),
        100.0 * n(&counts.cached) as f64 / n(&counts.prompt).max(1) as f64,
    );
}

/// Everything must have gone well, nothing may be left over, and memory must have been flat after the first third.
fn judge(daemon: &Daemon, counts: &Counts, memory: &[f64]) -> Result<()> {
    daemon.wait_until_idle()?;
    daemon.openjetctl(&["forget", "--all"])?;
    let status = daemon.status()?;
    let engine = &status["engine"];
    let mut wrong = std::mem::take(&mut *counts.errors.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    if engine["pages_free"] != engine["pages_total"] {
        wrong.push(format!("{} of {} pages are free at the end", engine["pages_free"], engine["pages_total"]));
    }
    let sixth = (memory.len() / 6).max(1);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    let (warm, end) = (mean(&memory[2 * sixth..3 * sixth]), mean(&memory[memory.len() - sixth..]));
    println!("Memory after the warm-up {warm:.1} MB, at the end {end:.1} MB: {:+.1}%.", 100.0 * (end / warm - 1.0));
    if (end / warm - 1.0).abs() > FLAT {
        wrong.push(format!("memory is not flat within {:.0}%", 100.0 * FLAT));
    }
    if wrong.is_empty() {
        println!("No error.");
        return Ok(());
    }
    bail!("{} things went wrong:\n{}", wrong.len(), wrong.join("\n"))
}
