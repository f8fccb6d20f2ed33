//! How many drafts of the draft head stand on the CPU twin, by how texts are sampled and by place, and how many would under
//! other rules.
//!
//! `cargo run -p openjet-engine --example acceptance -- [SEEDS]`
#![allow(clippy::print_stdout, reason = "this is a program that prints a table")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use openjet_engine::backend::cpu::{CpuBackend, Probed};
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::sampling::{Distribution, History, SamplingParams};
use openjet_engine::step::{PageId, SampleSpec, Segment, SegmentKind, Step};
use serde::Deserialize;

/// Drafts for each step.
const DEPTH: usize = 4;
/// Tokens of a text.
const TOKENS: usize = 120;
/// Pages of a conversation.
const PAGES: u32 = 16;
/// Prompts of code and chats that fit.
const PROMPTS: [&str; 6] = ["short", "chat", "tool", "repeat", "after_tool", "long"];
/// Temperature, top-p, top-k.
const SETTINGS: [(f32, f32, u32); 3] = [(0.6, 0.95, 20), (0.7, 0.8, 20), (1.0, 1.0, 0)];

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    tokens: Vec<u32>,
}

/// One text.
struct Talk {
    params: SamplingParams,
    position: u32,
    /// The prompt, then the newest token and drafts.
    rows: Vec<u32>,
    kind: SegmentKind,
    /// What the drafts were drawn from.
    proposed: Vec<Distribution>,
    written: usize,
}

/// Of the drafts in one place that were come to.
#[derive(Clone, Copy, Default)]
struct Tally {
    drafts: usize,
    stood: usize,
    /// Sums of the chances under other rules; see [`others`].
    others: [f64; 3],
}

/// The chance that a draft stands, if it is accepted by rejection sampling; if draft and token are drawn by one number from
/// cumulative sums; if it is the draft head's likeliest token.
fn others(p: &Distribution, q: &Distribution) -> [f64; 3] {
    let mut tokens: Vec<u32> = p.iter().chain(q.iter()).map(|(token, _)| token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    let (mut rejection, mut cumulative, mut sums) = (0.0, 0.0, (0.0, 0.0));
    for token in tokens {
        let (p, q) = (f64::from(p.prob(token)), f64::from(q.prob(token)));
        rejection += p.min(q);
        cumulative += ((sums.0 + p).min(sums.1 + q) - f64::max(sums.0, sums.1)).max(0.0);
        sums = (sums.0 + p, sums.1 + q);
    }
    let likeliest = q.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0.0, |(token, _)| p.prob(token));
    [rejection, cumulative, f64::from(likeliest)]
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let seeds = std::env::args().nth(1).map_or(Ok(4), |seeds| seeds.parse::<u64>())?;
    let model = Arc::new(Model::load(Arc::new(GgufFile::open(&folder.join("../assets/openjet-tiny-Q4_K_M.gguf"))?))?);
    let golden = std::fs::read_to_string(folder.join("tests/fixtures/golden/openjet-tiny-Q4_K_M/logits.json"))?;
    let mut prompts = serde_json::from_str::<Golden>(&golden)?.prompts;
    prompts.retain(|prompt| PROMPTS.contains(&prompt.name.as_str()));
    println!("temperature  top-p  top-k  place  drafts  stand  by rejection  cumulative  likeliest");
    for (temperature, top_p, top_k) in SETTINGS {
        let mut tallies = [Tally::default(); DEPTH];
        for seed in 0..seeds {
            let params = SamplingParams { temperature, top_p, top_k, seed, ..SamplingParams::default() };
            write(&model, &prompts, &params, &mut tallies)?;
        }
        for (place, tally) in tallies.iter().enumerate() {
            let n = tally.drafts.max(1) as f64;
            let [rejection, cumulative, likeliest] = tally.others.map(|sum| sum / n);
            println!(
                "{temperature:11}  {top_p:5}  {top_k:5}  {:5}  {:6}  {:5.3}  {rejection:12.3}  {cumulative:10.3}  {likeliest:9.3}",
                place + 1,
                tally.drafts,
                tally.stood as f64 / n
            );
        }
    }
    Ok(())
}

/// Writes a text after each of the prompts, side by side.
fn write(
    model: &Arc<Model>,
    prompts: &[Prompt],
    params: &SamplingParams,
    tallies: &mut [Tally; DEPTH],
) -> Result<(), Box<dyn Error>> {
    let slots = prompts.len();
    let options = BackendOptions { slots, pages: slots * PAGES as usize, kv: KvType::Q8_0, draft_max: DEPTH };
    let mut backend = CpuBackend::new(Arc::clone(model), options)?;
    let pages: Vec<Vec<PageId>> = (0..slots as u32).map(|slot| (slot * PAGES..(slot + 1) * PAGES).collect()).collect();
    let talk = |(i, prompt): (usize, &Prompt)| Talk {
        params: SamplingParams { seed: params.seed << 8 | i as u64, ..params.clone() },
        position: 0,
        rows: prompt.tokens.clone(),
        kind: SegmentKind::Prompt,
        proposed: Vec::new(),
        written: 0,
    };
    let mut talks: Vec<Talk> = prompts.iter().enumerate().map(talk).collect();
    let vocab = model.config.vocab;
    let distribution =
        |row: &[f32]| Distribution::new(row, params, &History::default(), model.usable_tokens.as_deref());
    while talks.iter().any(|talk| talk.written < TOKENS) {
        let segment = |(slot, talk)| {
            let Talk { params, position, rows, kind, .. }: &Talk = talk;
            let sample = SampleSpec {
                params,
                prompt: &[],
                output: &[],
                end_tokens: &[],
                budget: u32::MAX,
                masks: &[],
                draft_depth: DEPTH,
            };
            Segment { slot, position: *position, tokens: rows, pages: &pages[slot], kind: *kind, sample: Some(sample) }
        };
        let step = Step { segments: talks.iter().enumerate().map(segment).collect() };
        let (mut logits, mut drafted) = (Vec::new(), Vec::new());
        let outputs = backend.step_probed(&step, &mut |what, numbers| match what {
            Probed::Logits => logits = numbers.to_vec(),
            Probed::DraftLogits => drafted.push(numbers.to_vec()),
            _ => (),
        })?;
        let mut rows = logits.chunks_exact(vocab);
        for (slot, (talk, output)) in talks.iter_mut().zip(outputs).enumerate() {
            let drafts = talk.proposed.len();
            let verified: Vec<&[f32]> = rows.by_ref().take(drafts + 1).collect();
            for place in 0..drafts.min(output.accepted + 1) {
                let chances = others(&distribution(verified[place])?, &talk.proposed[place]);
                let tally = &mut tallies[place];
                tally.drafts += 1;
                tally.stood += usize::from(output.accepted > place);
                tally.others.iter_mut().zip(chances).for_each(|(sum, chance)| *sum += chance);
            }
            let taken = if talk.kind == SegmentKind::Prompt { talk.rows.len() } else { output.accepted + 1 };
            talk.position += taken as u32;
            talk.kind = SegmentKind::Decode;
            talk.written += output.tokens.len();
            talk.rows = output.tokens.last().map(|newest| newest.token).into_iter().chain(output.drafts).collect();
            let proposed = drafted.iter().map(|rows| distribution(&rows[slot * vocab..(slot + 1) * vocab]));
            talk.proposed = proposed.collect::<Result<_, _>>()?;
        }
    }
    Ok(())
}
