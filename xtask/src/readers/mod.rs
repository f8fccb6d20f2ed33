//! `cargo xtask readers`: many pages open on a daemon whose agents all write. It must write as fast as with none, in the same
//! memory.

mod page;

use crate::sh;
use crate::soak::Daemon;
use anyhow::{Context, Result, bail};
use page::Page;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Options of `readers`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long they read, in seconds; before and after that nobody does for half as long.
    #[arg(long, value_name = "N", default_value_t = 120)]
    seconds: u64,
    /// How many pages are open.
    #[arg(long, value_name = "N", default_value_t = 100)]
    readers: usize,
    /// How many of them take nothing in.
    #[arg(long, value_name = "N", default_value_t = 50)]
    stalled: usize,
    /// Don't build anything: run what was built before.
    #[arg(long)]
    no_build: bool,
}

/// Agents, all of which write.
const AGENTS: usize = 4;

/// Windows in which speed is measured while somebody reads.
const WINDOWS: u64 = 12;

/// Memory may grow by so many megabytes while the pages are open.
const FLAT_MB: f64 = 4.0;

/// Tokens per second in each window of a phase, and megabytes at its ends.
struct Phase {
    speeds: Vec<f64>,
    memory: (f64, f64),
}

impl Phase {
    /// Measures for so many windows.
    fn measure(daemon: &Daemon, windows: u64, window: Duration) -> Result<Self> {
        let before = daemon.memory()?;
        let speeds = (0..windows).map(|_| speed(daemon, window)).collect::<Result<_>>()?;
        Ok(Self { speeds, memory: (before, daemon.memory()?) })
    }

    fn mean(&self) -> f64 {
        self.speeds.iter().sum::<f64>() / self.speeds.len() as f64
    }

    /// How far windows lie from the mean.
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares = self.speeds.iter().map(|speed| (speed - mean).powi(2)).sum::<f64>();
        (squares / self.speeds.len() as f64).sqrt()
    }

    fn print(&self, name: &str) {
        let (mean, deviation, (from, to)) = (self.mean(), self.deviation(), self.memory);
        println!("{name:<22}  {mean:8.1} ± {deviation:5.1}  {from:8.1} to {to:.1}");
    }
}

/// Tokens per second over a while.
fn speed(daemon: &Daemon, window: Duration) -> Result<f64> {
    let written = || -> Result<f64> {
        daemon.status()?["engine"]["tokens_generated"].as_f64().context("no tokens_generated in the status")
    };
    let (start, before) = (Instant::now(), written()?);
    sleep(window);
    Ok((written()? - before) / start.elapsed().as_secs_f64())
}

/// Runs the phases and judges.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.stalled > args.readers {
        bail!("--stalled {} is more than --readers {}", args.stalled, args.readers);
    }
    if !args.no_build {
        println!("Building openjetd and openjetctl ...");
        sh::run(sh::cargo().args(["build", "--package", "openjetd", "--package", "openjetctl"]))?;
    }
    let daemon = Daemon::start()?;
    let over = AtomicBool::new(false);
    let (messages, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let window = Duration::from_secs_f64(args.seconds as f64 / WINDOWS as f64);
    println!(
        "{AGENTS} agents write; {} pages, {} of them stalled, for {} s.",
        args.readers, args.stalled, args.seconds
    );
    let phases = std::thread::scope(|scope| {
        for _ in 0..AGENTS {
            scope.spawn(|| write(daemon.address, &over));
        }
        let measured = (|| -> Result<_> {
            // The first texts fill what is kept for later.
            sleep(window);
            let before = Phase::measure(&daemon, WINDOWS / 2, window)?;
            let pages = (0..args.readers).map(|_| Page::open(daemon.address)).collect::<Result<Vec<_>>>()?;
            let left = AtomicBool::new(false);
            let during = std::thread::scope(|readers| {
                let (_stalled, reading) = pages.split_at(args.stalled);
                for page in reading {
                    let (left, messages, bytes) = (&left, &messages, &bytes);
                    readers.spawn(move || page.read(left, messages, bytes));
                }
                sleep(window / 2);
                let during = Phase::measure(&daemon, WINDOWS, window);
                left.store(true, Ordering::Relaxed);
                during
            })?;
            drop(pages);
            let after = Phase::measure(&daemon, WINDOWS / 2, window)?;
            Ok([before, during, after])
        })();
        over.store(true, Ordering::Relaxed);
        measured
    })?;
    judge(args, &phases, messages.into_inner(), bytes.into_inner())
}

fn judge(args: &Args, [before, during, after]: &[Phase; 3], messages: u64, bytes: u64) -> Result<()> {
    println!("{:<22}  {:<16}  megabytes", "phase", "tokens/s");
    before.print("no page");
    during.print(&format!("{} pages", args.readers));
    after.print("no page again");
    let reading = (args.readers - args.stalled) as f64;
    let each = messages as f64 / reading.max(1.0) / (args.seconds as f64 + args.seconds as f64 / WINDOWS as f64 / 2.0);
    println!("each page that reads was told {each:.1} times a second, {} bytes at a time", bytes / messages.max(1));
    let alone = f64::midpoint(before.mean(), after.mean());
    let noise = (before.mean() - after.mean()).abs().max(2.0 * before.deviation().max(after.deviation()));
    let slower = alone - during.mean();
    println!("difference {:.1} %, noise {:.1} %", -100.0 * slower / alone, 100.0 * noise / alone);
    let grown = during.memory.1 - during.memory.0;
    let mut wrong = Vec::new();
    if slower > noise {
        wrong.push(format!("the agents wrote {slower:.1} tokens/s less, and the noise is {noise:.1}"));
    }
    if grown > FLAT_MB {
        wrong.push(format!("memory grew by {grown:.1} MB while the pages were open"));
    }
    if reading > 0.0 && !(4.0..=10.0).contains(&each) {
        wrong.push(format!("a page was told {each:.1} times a second"));
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("; ")) }
}

/// One agent's work: the same text again and again, so that all windows are alike.
fn write(address: SocketAddr, over: &AtomicBool) {
    let body = json!({"prompt": "def add(a, b):", "max_tokens": 200, "temperature": 0, "ignore_eos": true}).to_string();
    while !over.load(Ordering::Relaxed) {
        let text = (|| -> Result<String> {
            let mut stream = TcpStream::connect(address)?;
            let head =
                "POST /v1/completions HTTP/1.1\r\nHost: readers\r\nConnection: close\r\nContent-Type: application/json";
            write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })();
        if !text.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            println!("  a text was not written: {text:?}");
            sleep(Duration::from_secs(1));
        }
    }
}
