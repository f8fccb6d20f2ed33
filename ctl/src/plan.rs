//! `openjetctl plan`.

use std::io::Write;
use std::sync::Arc;

use anyhow::anyhow;
use openjet_engine::backend::KvType;
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::plan::{DRIVER_ESTIMATE, MemoryPlan, PlanOptions, plan, workspace_estimate};
use serde::Serialize;

use crate::cards;
use crate::cli::PlanArgs;
use crate::failure::Failure;
use crate::text;

/// Pool of the daemon without a setting: the model's limit, this at most.
const DEFAULT_POOL: usize = 131_072;

/// The answer for programs.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    plan: &'a MemoryPlan,
    /// Device memory that it was held against.
    available: Option<u64>,
    fits: Option<bool>,
    /// Largest pool in tokens.
    largest_pool: Option<u64>,
}

pub(crate) fn run(args: &PlanArgs, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let model = Model::load(Arc::new(GgufFile::open(&args.model)?))?;
    let options = PlanOptions {
        agents: args.agents as usize,
        pool_tokens: args.ctx.map_or(model.config.context.min(DEFAULT_POOL), |ctx| ctx as usize),
        kv: args.kv.into(),
        draft: args.draft as usize,
        embedding_on_host: args.host_embedding,
        workspace: workspace_estimate(&model.config, args.agents as usize, args.draft as usize),
        driver: DRIVER_ESTIMATE,
        reserve: gib(args.reserve),
    };
    let plan = plan(&model, &options);
    let available = match (&args.card, args.gpu_memory) {
        (Some(card), _) => cards::memory(card),
        (None, memory) => memory.map(gib),
    };
    if json {
        let answer = Answer {
            plan: &plan,
            available,
            fits: available.map(|bytes| plan.fits(bytes)),
            largest_pool: available.map(|bytes| plan.largest_pool(bytes)),
        };
        serde_json::to_writer_pretty(&mut *out, &answer)?;
        writeln!(out)?;
    } else {
        out.write_all(table(&plan).as_bytes())?;
        out.write_all(verdict(&model, &plan, available).as_bytes())?;
    }
    match available {
        Some(bytes) if !plan.fits(bytes) => {
            Err(anyhow!("the plan needs {} more than there is", text::bytes(plan.total - bytes)).into())
        }
        _ => Ok(()),
    }
}

/// A limit that clap has checked, in bytes.
fn gib(gib: f64) -> u64 {
    (gib * f64::from(1 << 30)) as u64
}

fn table(plan: &MemoryPlan) -> String {
    let row = |name: &str, bytes: u64, detail: &str| [name.to_owned(), text::bytes(bytes), detail.to_owned()];
    let mut rows: Vec<_> = plan.parts.iter().map(|part| row(part.name, part.bytes, &part.detail)).collect();
    rows.push(row("total", plan.total, ""));
    if plan.host > 0 {
        rows.push(row("host memory", plan.host, "embedding table"));
    }
    text::table(&["part", "bytes", ""], &rows)
        + "Workspace and driver are estimates; the daemon plans with the real ones.\n\n"
}

fn verdict(model: &Model, plan: &MemoryPlan, available: Option<u64>) -> String {
    let Some(available) = available else {
        let mut fitting = cards::CARDS.iter().filter(|card| plan.fits(card.1 << 20)).map(|card| card.0).peekable();
        return match fitting.peek() {
            Some(_) => format!("It fits on: {}\n", fitting.collect::<Vec<_>>().join(", ")),
            None => "It fits on no card of the list.\n".into(),
        };
    };
    if plan.fits(available) {
        return format!(
            "It fits into {}, {} stay free; the pool could hold {} tokens.\n",
            text::bytes(available),
            text::bytes(available - plan.total),
            plan.largest_pool(available)
        );
    }
    let mut verdict = format!(
        "It does not fit into {}: {} are missing.\n",
        text::bytes(available),
        text::bytes(plan.total - available)
    );
    for way in ways_out(model, plan, available) {
        verdict += &format!("It would fit with {way}\n");
    }
    verdict
}

/// Single changes that make a plan fit, the least painful first.
fn ways_out(model: &Model, current: &MemoryPlan, available: u64) -> Vec<String> {
    let options = current.options;
    let fits = |options: PlanOptions| plan(model, &options).fits(available);
    let mut ways = Vec::new();
    if !options.embedding_on_host && fits(PlanOptions { embedding_on_host: true, ..options }) {
        ways.push("--host-embedding".to_owned());
    }
    for (kv, name) in [(KvType::Q8_0, "q8_0"), (KvType::Q4_0, "q4_0")] {
        let smaller = PlanOptions { kv, ..options };
        if plan(model, &smaller).page_bytes < current.page_bytes && fits(smaller) {
            ways.push(format!("--kv {name}"));
        }
    }
    if options.draft > 0 && fits(PlanOptions { draft: 0, ..options }) {
        ways.push("--draft 0".to_owned());
    }
    let pool = current.largest_pool(available);
    if pool > 0 {
        ways.push(format!("--ctx {pool}"));
    }
    ways
}
