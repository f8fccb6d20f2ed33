//! `openjetctl setup`: looks at the card and says which public file of the family fits, with how many agents and how much context.

use std::io::Write;
use std::sync::Arc;

use anyhow::anyhow;
use openjet_engine::backend::{BackendOptions, DEFAULT_AGENTS_MAX, KvType};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::step::PAGE_TOKENS;
use openjet_kernels::Embedding;
use openjet_kernels::device::{DeviceInfo, card, list};
use openjet_kernels::plan::{CONTEXT_ESTIMATE, DISPLAY_RESERVE, PlanOptions, plan};
use serde::Serialize;

use crate::cards;
use crate::cli::SetupArgs;
use crate::failure::Failure;
use crate::pull::MODELS;
use crate::synth::outline;
use crate::synth::shape::{FAMILY, Shape};
use crate::text;

/// A public file of each size, with the draft head, which other conversions leave out; about 4 bits a weight, the usual choice.
const FILES: [(&str, &str, &str); 5] = [
    ("27B", "unsloth/Qwen3.6-27B-MTP-GGUF", "Qwen3.6-27B-Q4_K_M.gguf"),
    ("9B", "unsloth/Qwen3.5-9B-MTP-GGUF", "Qwen3.5-9B-Q4_K_M.gguf"),
    ("4B", "unsloth/Qwen3.5-4B-MTP-GGUF", "Qwen3.5-4B-Q4_K_M.gguf"),
    ("2B", "unsloth/Qwen3.5-2B-MTP-GGUF", "Qwen3.5-2B-Q4_K_M.gguf"),
    ("0.8B", "unsloth/Qwen3.5-0.8B-MTP-GGUF", "Qwen3.5-0.8B-Q4_K_M.gguf"),
];

/// Tokens of the pool that one coding agent needs at least to be of use.
const CONTEXT: usize = 32_768;

/// Longest pool that is worth it, in tokens for each agent.
const LONGEST: usize = 262_144;

/// Deepest draft, as the daemon's setting is without a value.
const DRAFT: usize = 7;

/// What runs models here.
#[derive(Clone, Debug, Serialize)]
struct Machine {
    /// The card; none where the CPU does.
    card: Option<String>,
    /// Bytes that a model may take.
    memory: Option<usize>,
    /// Which engine it is, and why.
    path: String,
    #[serde(skip)]
    reserve: usize,
}

/// A size of the family on this machine.
#[derive(Clone, Debug, Serialize)]
struct Choice {
    size: &'static str,
    /// What `pull` takes.
    pull: String,
    /// Bytes of the weights, about.
    weights: usize,
    /// Agents that have room for work; 0 where it does not fit.
    agents: usize,
    /// Tokens of the pool that they share.
    ctx: usize,
    /// Where there is no room for more than these agents.
    agents_max: Option<usize>,
}

pub(crate) fn run(args: &SetupArgs, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let machine = machine(args)?;
    let choices: Vec<Choice> = FAMILY.iter().map(|shape| choose(shape, &machine)).collect::<Result<_, Failure>>()?;
    let best = choices.iter().find(|choice| choice.agents > 0);
    if json {
        return text::json(&serde_json::json!({ "machine": machine, "choices": choices, "best": best }), out);
    }
    writeln!(out, "{}\n{}\n", machine.card.as_deref().unwrap_or("no GPU"), machine.path)?;
    let rows: Vec<_> = choices.iter().map(row).collect();
    out.write_all(text::table(&["size", "weights", "agents", "context in all", "file"], &rows).as_bytes())?;
    let Some(best) = best else {
        return Err(anyhow!("none of the family fits; the small model that ships with openjetd does").into());
    };
    let file = best.pull.rsplit(':').next().unwrap_or_default().trim_end_matches(".gguf");
    writeln!(out, "\nThe largest that fits with room for work is the {}:\n  openjetctl pull {}", best.size, best.pull)?;
    writeln!(out, "then in /etc/openjet/openjet.toml, and `systemctl restart openjet`:")?;
    writeln!(out, "  model = \"{file}\"\n  agents = {}\n  ctx = {}", best.agents, best.ctx)?;
    if let Some(most) = best.agents_max {
        writeln!(out, "  agents_max = {most}")?;
    }
    if machine.card.is_none() {
        writeln!(out, "  backend = \"cpu\"")?;
    }
    writeln!(
        out,
        "\nWeights differ a little from file to file; `openjetctl plan {MODELS}/{file}.gguf` then says it exactly."
    )?;
    Ok(())
}

fn row(choice: &Choice) -> [String; 5] {
    let fits = choice.agents > 0;
    [
        choice.size.to_owned(),
        text::bytes(choice.weights as u64),
        if fits { choice.agents.to_string() } else { "does not fit".to_owned() },
        text::or_dash(fits.then_some(choice.ctx)),
        choice.pull.clone(),
    ]
}

/// The card that is asked for, or this machine's largest.
fn machine(args: &SetupArgs) -> Result<Machine, Failure> {
    if let Some(name) = &args.card {
        let memory = cards::memory(name).unwrap_or_default() as usize;
        let path = "CUDA, as if this card were here and otherwise unused".to_owned();
        return Ok(Machine { card: Some(name.clone()), memory: Some(memory), path, reserve: 0 });
    }
    match list() {
        Ok(devices) => {
            let largest = devices.into_iter().max_by_key(|device| device.memory);
            Ok(largest.map_or_else(|| on_cpu("the driver knows no GPU"), |device| on_gpu(&device)))
        }
        Err(problem) => Ok(on_cpu(&problem.to_string())),
    }
}

fn on_gpu(device: &DeviceInfo) -> Machine {
    let seen = card(&device.uuid);
    let free = seen.map_or(device.memory, |card| card.free);
    let (major, minor) = device.capability;
    let path = match major {
        ..=7 => {
            return on_cpu(&format!(
                "{} has compute capability {major}.{minor}, and the kernels need 8.0",
                device.name
            ));
        }
        9 => format!(
            "CUDA: compute capability {major}.{minor}; prompts go through wgmma, which only this generation has"
        ),
        _ => format!("CUDA: compute capability {major}.{minor}"),
    };
    let shown = format!("{}, {} of {} free", device.name, text::bytes(free as u64), text::bytes(device.memory as u64));
    let display = seen.is_some_and(|card| card.display);
    Machine { card: Some(shown), memory: Some(free), path, reserve: if display { DISPLAY_RESERVE } else { 0 } }
}

fn on_cpu(why: &str) -> Machine {
    let free = available_memory();
    let path = format!("the CPU, which is slow: {why}; `openjetctl doctor` says what could be done");
    Machine { card: None, memory: free, path, reserve: 1 << 30 }
}

/// Bytes of host memory that programs can still have.
fn available_memory() -> Option<usize> {
    let all = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches(" kB").parse::<usize>().ok().map(|kib| kib << 10)
}

/// The most agents, up to four, that have room for work in a size, and the pool that they then share.
fn choose(shape: &Shape, machine: &Machine) -> Result<Choice, Failure> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("outline.gguf");
    outline(&file, shape)?;
    let model = Model::load(Arc::new(GgufFile::open(&file)?))?;
    let (_, repository, name) = FILES.iter().find(|(size, ..)| *size == shape.name).copied().unwrap_or_default();
    let mut choice = Choice {
        size: shape.name,
        pull: format!("{repository}:{name}"),
        weights: 0,
        agents: 0,
        ctx: 0,
        agents_max: None,
    };
    for agents in [4, 2, 1] {
        let options = PlanOptions {
            backend: BackendOptions {
                // The daemon leaves room for more agents, unless it is told not to.
                slots: if agents == 4 { DEFAULT_AGENTS_MAX } else { agents },
                pages: agents * CONTEXT / PAGE_TOKENS,
                kv: KvType::Q8_0,
                draft_max: DRAFT,
            },
            embedding: Embedding::Auto,
            context: if machine.card.is_some() { CONTEXT_ESTIMATE } else { 0 },
            reserve: machine.reserve,
            host_cache: 0,
        };
        let plan = plan(&model, &options, machine.memory).map_err(|error| anyhow!(error))?;
        choice.weights = plan.parts.first().map_or(0, |part| part.bytes);
        let pool = plan.largest_pool.unwrap_or_default().min(agents * LONGEST) / 1024 * 1024;
        if choice.agents == 0 && pool >= agents * CONTEXT {
            (choice.agents, choice.ctx) = (agents, pool);
            choice.agents_max = (agents < 4).then_some(agents);
        }
    }
    Ok(choice)
}
