//! What the engine's integration tests share: models, golden files, and a conversation driven step by step.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use openjet_engine::backend::cpu::{CpuBackend, Probed};
use openjet_engine::backend::{BackendOptions, KvType};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::{PAGE_TOKENS, PageId, SampleSpec, Segment, SegmentKind, SegmentOutput, Step};
use safetensors::SafeTensors;
use serde::Deserialize;

pub const MODELS: [&str; 4] = ["openjet-tiny-Q4_K_M", "openjet-tiny-mixed", "toy-double-heads", "toy-equal-heads"];
pub const TINY: &str = MODELS[0];

fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn model_path(name: &str) -> PathBuf {
    let shipped = manifest().join("../assets").join(format!("{name}.gguf"));
    if shipped.exists() { shipped } else { manifest().join("tests/fixtures/models").join(format!("{name}.gguf")) }
}

pub fn model(name: &str) -> Arc<Model> {
    let file = GgufFile::open(&model_path(name)).unwrap();
    Arc::new(Model::load(Arc::new(file)).unwrap())
}

pub fn backend(model: &Arc<Model>, kv: KvType, slots: usize) -> CpuBackend {
    let draft_max = if model.draft_head.is_some() { 6 } else { 0 };
    let options = BackendOptions { slots, pages: 48 * slots, kv, draft_max };
    CpuBackend::new(Arc::clone(model), options).unwrap()
}

#[derive(Deserialize)]
pub struct Golden {
    pub prompts: Vec<GoldenPrompt>,
    pub greedy: Vec<GoldenGreedy>,
}

#[derive(Deserialize)]
pub struct GoldenPrompt {
    pub name: String,
    pub text: String,
    pub tokens: Vec<u32>,
    pub argmax: Vec<u32>,
    pub margin: Vec<f32>,
    pub kept_last: usize,
    #[serde(default)]
    pub mtp_argmax: Vec<u32>,
    #[serde(default)]
    pub mtp_margin: Vec<f32>,
    pub next: Option<u32>,
    #[serde(default)]
    pub drafts: Vec<u32>,
    #[serde(default)]
    pub draft_margin: Vec<f32>,
    pub mtp_agreement: Option<f64>,
}

#[derive(Deserialize)]
pub struct GoldenGreedy {
    pub prompt: String,
    pub text_in: String,
    pub safe: String,
    pub prompt_tokens: usize,
    pub tokens: Vec<u32>,
    pub margin: Vec<f32>,
}

impl GoldenGreedy {
    /// Tokens before the first near-tie.
    pub fn safe_tokens(&self) -> &[u32] {
        let n = self.margin.iter().position(|&m| m < 0.05).unwrap_or(self.tokens.len());
        &self.tokens[..n]
    }
}

pub fn golden(model: &str) -> (Golden, Tensors) {
    let folder = manifest().join("tests/fixtures/golden").join(model);
    let json = std::fs::read_to_string(folder.join("logits.json")).unwrap();
    let tensors = Tensors(std::fs::read(folder.join("logits.safetensors")).unwrap());
    (serde_json::from_str(&json).unwrap(), tensors)
}

pub struct Tensors(Vec<u8>);

impl Tensors {
    pub fn get(&self, name: &str) -> Option<Vec<f32>> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = file.tensor(name).ok()?.data().to_vec();
        Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    }
}

pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub fn argmax(row: &[f32]) -> u32 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&x| x == max).unwrap() as u32
}

/// What a step showed of itself.
#[derive(Default)]
pub struct Seen {
    pub hidden: Vec<f32>,
    pub blocks: Vec<Vec<f32>>,
    pub embedding: Vec<f32>,
    pub logits: Vec<f32>,
    pub draft_logits: Vec<Vec<f32>>,
}

impl Seen {
    pub fn probe(&mut self, what: Probed, numbers: &[f32]) {
        match what {
            Probed::Embedding => self.embedding.extend_from_slice(numbers),
            Probed::Hidden => self.hidden.extend_from_slice(numbers),
            Probed::Logits => self.logits.extend_from_slice(numbers),
            Probed::DraftLogits => self.draft_logits.push(numbers.to_vec()),
            Probed::Block(i) => {
                self.blocks.resize_with(self.blocks.len().max(i + 1), Vec::new);
                self.blocks[i].extend_from_slice(numbers);
            }
        }
    }
}

/// How tokens are chosen in a test.
#[derive(Clone)]
pub struct Choice {
    pub params: SamplingParams,
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
    pub end_tokens: Vec<u32>,
    pub budget: u32,
    pub masks: Vec<Option<Vec<u32>>>,
    pub draft_depth: usize,
}

impl Choice {
    pub fn greedy() -> Self {
        Self {
            params: SamplingParams::default(),
            prompt: Vec::new(),
            output: Vec::new(),
            end_tokens: Vec::new(),
            budget: u32::MAX,
            masks: Vec::new(),
            draft_depth: 0,
        }
    }

    pub fn drafting(depth: usize) -> Self {
        Self { draft_depth: depth, ..Self::greedy() }
    }

    /// The next token is this one, whatever the model thinks.
    pub fn forced(token: u32) -> Self {
        let mut mask = vec![0u32; token as usize / 32 + 1];
        mask[token as usize / 32] = 1 << (token % 32);
        Self { masks: vec![Some(mask)], ..Self::greedy() }
    }

    pub fn spec(&self) -> SampleSpec<'_> {
        SampleSpec {
            params: &self.params,
            prompt: &self.prompt,
            output: &self.output,
            end_tokens: &self.end_tokens,
            budget: self.budget,
            masks: &self.masks,
            draft_depth: self.draft_depth,
        }
    }
}

/// One conversation in a slot, with a fixed run of pages.
pub struct Conversation {
    pub slot: usize,
    pub position: u32,
    pub pages: Vec<PageId>,
}

impl Conversation {
    /// Takes the slot's own 48 pages, in an order that is not sorted.
    pub fn new(slot: usize) -> Self {
        let pages = (0..48u32).map(|i| slot as u32 * 48 + (i * 29 + 7 * slot as u32) % 48).collect();
        Self { slot, position: 0, pages }
    }

    pub fn segment<'a>(&'a self, tokens: &'a [u32], kind: SegmentKind, choice: Option<&'a Choice>) -> Segment<'a> {
        Segment {
            slot: self.slot,
            position: self.position,
            tokens,
            pages: &self.pages,
            kind,
            sample: choice.map(Choice::spec),
        }
    }

    pub fn run(
        &mut self,
        backend: &mut CpuBackend,
        tokens: &[u32],
        kind: SegmentKind,
        choice: Option<&Choice>,
        seen: &mut Seen,
    ) -> SegmentOutput {
        let step = Step { segments: vec![self.segment(tokens, kind, choice)] };
        let output = backend.step_probed(&step, &mut |what, numbers| seen.probe(what, numbers)).unwrap().remove(0);
        self.advance(tokens, kind, &output);
        output
    }

    pub fn advance(&mut self, tokens: &[u32], kind: SegmentKind, output: &SegmentOutput) {
        self.position += match kind {
            SegmentKind::Prompt => tokens.len() as u32,
            SegmentKind::Decode => output.accepted as u32 + 1,
        };
    }

    /// Reads a prompt in chunks that end at multiples of `chunk` (itself one of 64) and chooses what follows.
    pub fn read(
        &mut self,
        backend: &mut CpuBackend,
        tokens: &[u32],
        chunk: usize,
        choice: &Choice,
        seen: &mut Seen,
    ) -> SegmentOutput {
        assert!(chunk.is_multiple_of(PAGE_TOKENS));
        let end = self.position as usize + tokens.len();
        let mut rest = tokens;
        loop {
            let n = (chunk - self.position as usize % chunk).min(rest.len());
            let (now, later) = rest.split_at(n);
            let last = self.position as usize + n == end;
            let output = self.run(backend, now, SegmentKind::Prompt, last.then_some(choice), seen);
            if last {
                return output;
            }
            rest = later;
        }
    }

    /// Decodes greedily with `depth` drafts of the draft head until `count` tokens stand after `first`.
    pub fn write(
        &mut self,
        backend: &mut CpuBackend,
        first: SegmentOutput,
        count: usize,
        choice: &Choice,
    ) -> (Vec<u32>, Tally) {
        let mut text: Vec<u32> = first.tokens.iter().map(|t| t.token).collect();
        let mut drafts = first.drafts;
        let mut tally = Tally::default();
        while text.len() < count && !choice.end_tokens.contains(text.last().unwrap()) {
            let choice = Choice { output: text.clone(), budget: (count - text.len()) as u32, ..choice.clone() };
            let rows: Vec<u32> = text.last().into_iter().chain(&drafts).copied().collect();
            let kind = SegmentKind::Decode;
            let output = self.run(backend, &rows, kind, Some(&choice), &mut Seen::default());
            assert_eq!(output.dead_end, None);
            tally.add(drafts.len(), output.accepted);
            text.extend(output.tokens.iter().map(|t| t.token));
            drafts = output.drafts;
        }
        (text, tally)
    }
}

/// Drafts offered and accepted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub steps: usize,
    pub first_offered: usize,
    pub first_accepted: usize,
    pub offered: usize,
    pub accepted: usize,
}

impl Tally {
    fn add(&mut self, offered: usize, accepted: usize) {
        self.steps += 1;
        self.first_offered += usize::from(offered > 0);
        self.first_accepted += usize::from(accepted > 0);
        self.offered += offered;
        self.accepted += accepted;
    }
}
