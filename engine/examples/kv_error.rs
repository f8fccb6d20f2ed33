//! Measures what each type of key-value cell changes: largest logit difference, mean KL divergence and agreement of the best
//! token against exact f32 cells, over a text read in windows of 1,024 tokens.
//!
//! `cargo run --release -p openjet-engine --example kv_error -- TEXT_FILE [MODEL.gguf]`
#![allow(clippy::print_stdout, reason = "this is a program that prints a table")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use openjet_engine::backend::cpu::{CpuBackend, Probed};
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::{SampleSpec, Segment, SegmentKind, Step};
use openjet_engine::text::{ControlTokens, Tokenizer, TokenizerSpec};

const WINDOW: usize = 1024;
const TOKENS: usize = 5 * WINDOW;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let text = std::fs::read_to_string(args.next().ok_or("name a text file of 5,000 tokens or more")?)?;
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/openjet-tiny-Q4_K_M.gguf");
    let file = Arc::new(GgufFile::open(&args.next().map_or_else(|| PathBuf::from(shipped), PathBuf::from))?);
    let tokenizer = Tokenizer::new(&TokenizerSpec::from_gguf(&file)?)?;
    let model = Arc::new(Model::load(file)?);
    let tokens: Vec<u32> = tokenizer.encode(&text, ControlTokens::AsText).into_iter().take(TOKENS).collect();
    println!("{} tokens in windows of {WINDOW}, {}", tokens.len(), model.config.name);
    println!("cells  largest logit difference  mean KL (nats)  same best token");
    let exact = logits(&model, &tokens, KvType::F32)?;
    for kv in [KvType::F16, KvType::Q8_0, KvType::Q4_0] {
        let other = logits(&model, &tokens, kv)?;
        let (mut largest, mut kl, mut same, mut rows) = (0f32, 0f64, 0usize, 0usize);
        for (p, q) in exact.chunks_exact(model.config.vocab).zip(other.chunks_exact(model.config.vocab)) {
            largest = p.iter().zip(q).map(|(a, b)| (a - b).abs()).fold(largest, f32::max);
            let (log_p, log_q) = (log_softmax(p), log_softmax(q));
            kl += log_p.iter().zip(&log_q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            same += usize::from(best(p) == best(q));
            rows += 1;
        }
        let agreement = 100.0 * same as f64 / rows as f64;
        println!("{kv:?}  {largest:.4}  {:.2e}  {agreement:.2}%", kl / rows as f64);
    }
    Ok(())
}

fn best(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    row.iter().map(|&x| f64::from(x) - max - sum.ln()).collect()
}

/// Logits after every token: tokens x vocabulary.
fn logits(model: &Arc<Model>, tokens: &[u32], kv: KvType) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut all = Vec::new();
    let params = SamplingParams::default();
    let pages: Vec<u32> = (0..(WINDOW / 64) as u32).collect();
    for window in tokens.chunks(WINDOW) {
        let options = BackendOptions { slots: 1, pages: pages.len(), kv, draft_max: 0 };
        let mut backend = CpuBackend::new(Arc::clone(model), options)?;
        let sample = SampleSpec {
            params: &params,
            prompt: window,
            output: &[],
            end_tokens: &[],
            budget: 1,
            masks: &[],
            draft_depth: 0,
        };
        let segment = Segment {
            slot: 0,
            position: 0,
            tokens: window,
            pages: &pages,
            kind: SegmentKind::Prompt,
            sample: Some(sample),
        };
        let mut hidden = Vec::new();
        backend.step_probed(&Step { segments: vec![segment] }, &mut |what, numbers| {
            if what == Probed::Hidden {
                hidden.extend_from_slice(numbers);
            }
        })?;
        all.extend(backend.logits(&hidden));
    }
    Ok(all)
}
