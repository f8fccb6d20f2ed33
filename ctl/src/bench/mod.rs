//! `openjetctl bench`: measures a running daemon over HTTP, or compares two results.

mod compare;
mod facts;
mod http;
mod load;
mod measure;
mod plot;
mod report;
mod stream;

use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use openjet_proto::control::AgentCount;

use crate::client::Client;
use crate::failure::Failure;
use crate::text;
use facts::Facts;
use http::Server;
use measure::Bench;
use report::Report;

/// What is measured, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Address of the daemon's HTTP API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:18080")]
    url: String,
    /// API key, where the daemon asks for one
    #[arg(long, value_name = "KEY", env = "OPENJETCTL_KEY", hide_env_values = true)]
    key: Option<String>,
    /// One short run: a look, not a result
    #[arg(long)]
    quick: bool,
    /// Agents that write at once [default: 1,2,4,8, as far as the daemon has so many or can be given them]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    agents: Vec<u16>,
    /// Deepest drafts [default: 0 to 6, as far as the daemon's own setting allows: start it with --draft 6]
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(0..=16))]
    drafts: Vec<u16>,
    /// Tokens of a long context [default: 23000, or what the daemon's context holds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..))]
    long: Option<u32>,
    /// Tokens that each agent writes [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(8..))]
    tokens: Option<u32>,
    /// Runs of everything [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// The known text of a synthetic model (`openjetctl synth`): every answer is compared with it
    #[arg(long, value_name = "FILE.chain.json")]
    chain: Option<PathBuf>,
    /// What the daemon was built from, for the result
    #[arg(long, value_name = "COMMIT", env = "OPENJET_COMMIT")]
    commit: Option<String>,
    /// Write the result to this file, as JSON
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Draw the curves into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Compare two saved results; nothing is measured
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"],
          conflicts_with_all = ["quick", "agents", "drafts", "long", "tokens", "runs", "save", "plot"])]
    compare: Option<Vec<PathBuf>>,
}

/// Agents at once, unless told.
const AGENTS: [u16; 4] = [1, 2, 4, 8];
/// Deepest drafts, unless told.
const DRAFTS: [u16; 7] = [0, 1, 2, 3, 4, 5, 6];
/// Tokens of a long context, unless told.
const LONG: usize = 23_000;

pub(crate) fn run(client: &Client, args: &BenchArgs, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    if let Some([a, b]) = args.compare.as_deref() {
        return compare::run(&read(a)?, &read(b)?, json, out);
    }
    let server = Server::new(&args.url, args.key.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut facts = runtime.block_on(Facts::ask(&server))?;
    facts.add_status(client, &server);
    let wanted = if args.agents.is_empty() { AGENTS.to_vec() } else { args.agents.clone() };
    let before = facts.agents;
    let most = usize::from(wanted.iter().copied().max().unwrap_or(1));
    let mut notes = Vec::new();
    let changed = most > before && facts.has_socket && set_agents(client, most, &mut notes);
    if changed {
        facts.agents = most;
    }
    let report = measure_all(&runtime, &server, facts, &wanted, args, notes);
    if changed {
        // Whatever came of it, the daemon gets its agents back.
        let _: AgentCount = client.put("/v1/agents", &AgentCount { count: before })?;
    }
    let report = report?;
    if let Some(file) = &args.save {
        write(file, &serde_json::to_vec_pretty(&report)?)?;
    }
    if let Some(file) = &args.plot {
        write(file, plot::draw(&report).as_bytes())?;
    }
    if json {
        return text::json(&report, out);
    }
    Ok(out.write_all(report.describe().as_bytes())?)
}

/// Asks for more agents; `false`, with a note, where they can't be had.
fn set_agents(client: &Client, count: usize, notes: &mut Vec<String>) -> bool {
    let set: Result<AgentCount, Failure> = client.put("/v1/agents", &AgentCount { count });
    if let Err(failure) = &set {
        notes.push(format!("not all agents were measured: {failure}"));
    }
    set.is_ok()
}

fn measure_all(
    runtime: &tokio::runtime::Runtime,
    server: &Server,
    facts: Facts,
    wanted: &[u16],
    args: &BenchArgs,
    mut notes: Vec<String>,
) -> anyhow::Result<Report> {
    let tokens = args.tokens.map_or(if args.quick { 24 } else { 256 }, |n| n as usize);
    let room = facts.context.saturating_sub(2 * tokens + 64);
    let long = args.long.map_or(if args.quick { 256 } else { LONG }, |n| n as usize).min(room);
    if args.long.is_some_and(|asked| asked as usize > long) {
        notes.push(format!("long contexts have {long} tokens: an agent's context holds {}", facts.context));
    }
    let agents: Vec<usize> = wanted.iter().map(|&n| usize::from(n)).filter(|&n| n <= facts.agents).collect();
    if agents.is_empty() {
        return Err(anyhow!("the daemon has {} agents; name no more with --agents", facts.agents));
    }
    if agents.len() < wanted.len() && notes.is_empty() {
        notes.push(format!("the daemon has {} agents; `openjetctl agents set 8` gives it more", facts.agents));
    }
    let drafts: Vec<usize> = match (&args.drafts[..], args.quick) {
        ([], true) => vec![0, 2],
        ([], false) => DRAFTS.map(usize::from).to_vec(),
        (asked, _) => asked.iter().map(|&k| usize::from(k)).collect(),
    };
    let runs = args.runs.map_or(if args.quick { 1 } else { 3 }, usize::from);
    let chain = args.chain.as_deref().map(chain).transpose()?;
    let mut bench = Bench::new(server.clone(), facts, args.temperature, chain);
    let plan = measure::Plan { agents, drafts, long, tokens, runs, quick: args.quick };
    let bar = progress(plan.steps());
    let report = runtime.block_on(bench.all(&plan, &bar));
    bar.finish_and_clear();
    let mut report = report?;
    report.commit.clone_from(&args.commit);
    report.notes.splice(0..0, notes);
    Ok(report)
}

fn progress(steps: usize) -> ProgressBar {
    let target = if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Which token follows which, from the file beside a synthetic model.
fn chain(file: &Path) -> anyhow::Result<Vec<u32>> {
    #[derive(serde::Deserialize)]
    struct Chain {
        next: Vec<u32>,
    }
    let text = std::fs::read(file).with_context(|| format!("can't read {}", file.display()))?;
    let chain: Chain = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not what `openjetctl synth` writes beside a model", file.display()))?;
    Ok(chain.next)
}

fn read(file: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read(file).with_context(|| format!("can't read {}", file.display()))?;
    serde_json::from_slice(&text)
        .with_context(|| format!("{} is no result of `openjetctl bench --save`", file.display()))
}

fn write(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(file, bytes).with_context(|| format!("can't write {}", file.display()))
}
