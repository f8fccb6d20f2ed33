//! `openjetctl plan`.

use std::io::Write;
use std::sync::Arc;

use anyhow::anyhow;
use openjet_engine::backend::{BackendOptions, DEFAULT_AGENTS_MAX, DEFAULT_POOL};
use openjet_engine::gguf::GgufFile;
use openjet_engine::memory::host_cache;
use openjet_engine::model::Model;
use openjet_engine::step::PAGE_TOKENS;
use openjet_kernels::device::{DeviceInfo, card, find};
use openjet_kernels::plan::{CONTEXT_ESTIMATE, DISPLAY_RESERVE, MemoryPlan, PlanOptions, plan, ways_out};

use crate::cards;
use crate::cli::PlanArgs;
use crate::failure::Failure;
use crate::text;

/// The memory that a plan is held against.
struct Target {
    name: String,
    available: usize,
    display: bool,
}

pub(crate) fn run(args: &PlanArgs, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let model = Model::load(Arc::new(GgufFile::open(&args.model)?))?;
    let pool = args.ctx.map_or(model.config.context.min(DEFAULT_POOL), |ctx| ctx as usize);
    let target = target(args)?;
    let display = target.as_ref().is_some_and(|target| target.display);
    let options = PlanOptions {
        backend: BackendOptions {
            slots: args.agents.max(args.agents_max.unwrap_or(DEFAULT_AGENTS_MAX as u32)) as usize,
            pages: pool.div_ceil(PAGE_TOKENS),
            kv: args.kv.into(),
            draft_max: args.draft as usize,
        },
        embedding: args.embedding.into(),
        context: CONTEXT_ESTIMATE,
        reserve: args.reserve.map_or(if display { DISPLAY_RESERVE } else { 0 }, |mib| (mib as usize) << 20),
        host_cache: args.host_cache.map_or_else(host_cache, |mib| (mib as usize) << 20),
    };
    let available = target.as_ref().map(|target| target.available);
    let plan = plan(&model, &options, available).map_err(|e| anyhow!(e))?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &plan)?;
        writeln!(out)?;
    } else {
        if let Some(target) = &target {
            writeln!(out, "{}", target.name)?;
        }
        out.write_all(plan.to_string().as_bytes())?;
        if target.is_none() {
            out.write_all(fitting(&plan).as_bytes())?;
        }
    }
    match available {
        Some(available) if plan.total > available => {
            for way in ways_out(&model, &options, available).map_err(|e| anyhow!(e))?.iter().filter(|_| !json) {
                writeln!(out, "It would fit with {way}")?;
            }
            Err(anyhow!("the plan needs {} more than there is", text::bytes((plan.total - available) as u64)).into())
        }
        _ => Ok(()),
    }
}

/// A named card, a size or a GPU of this machine.
fn target(args: &PlanArgs) -> Result<Option<Target>, Failure> {
    if let Some(card) = &args.card {
        let available = cards::memory(card).unwrap_or_default() as usize;
        return Ok(Some(Target {
            name: format!("a card of the kind {card}, otherwise unused"),
            available,
            display: false,
        }));
    }
    if let Some(gib) = args.gpu_memory {
        let available = (gib * f64::from(1 << 30)) as usize;
        return Ok(Some(Target { name: format!("a GPU of {gib} GiB"), available, display: false }));
    }
    let Some(selector) = &args.gpu else { return Ok(None) };
    let DeviceInfo { name, uuid, memory, .. } = find(&selector.parse().map_err(|e: String| anyhow!("--gpu: {e}"))?)?;
    Ok(Some(match card(&uuid) {
        Some(card) => {
            let display = if card.display { ", with a display" } else { "" };
            Target { name: format!("{name}, what is free now{display}"), available: card.free, display: card.display }
        }
        None => Target {
            name: format!("{name}, all of it: what is free could not be seen"),
            available: memory,
            display: false,
        },
    }))
}

fn fitting(plan: &MemoryPlan) -> String {
    let fits = |card: &&(&str, u64)| plan.total as u64 <= card.1 << 20;
    let names: Vec<_> = cards::CARDS.iter().filter(fits).map(|card| card.0).collect();
    if names.is_empty() {
        "It fits on no card of the list.\n".into()
    } else {
        format!("It fits on: {}\n", names.join(", "))
    }
}
