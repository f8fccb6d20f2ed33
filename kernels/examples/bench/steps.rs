//! Whole steps of a model: for one to eight agents, and at contexts of 1K to 256K tokens.
//!
//! Long contexts are not read first: a slot is told that it has consumed so many tokens, and the pages before it hold copies
//! of a real prompt's cells. A step reads and writes what it would read and write, and only its text means nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use openjet_bench::Spread;
use openjet_engine::backend::{Backend, BackendOptions, KvType, StateImage};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::{PAGE_TOKENS, PageId, SampleSpec, Segment, SegmentKind, Step};
use openjet_kernels::device::Device;
use openjet_kernels::{CudaBackend, PROMPT_ROWS, PlanOptions, plan};

use crate::Effort;
use crate::report::{ModelFacts, PromptTime, StepTime};

const AGENTS: usize = 8;
const DRAFTS: usize = 6;
/// Positions after a context that steps may write.
const ROOM: usize = 1024;
/// Steps before the clock starts.
const WARM: usize = 4;

/// A model on the device, with cells that are no zeros.
pub(crate) struct Steps {
    backend: CudaBackend,
    /// A state, to be put into any slot at any position.
    state: Vec<u8>,
    pages: usize,
    vocab: usize,
    drafts: usize,
    /// Longest context.
    longest: usize,
    effort: Effort,
}

impl Steps {
    /// Loads a model.
    pub(crate) fn load(device: &Device, file: &Path, effort: Effort, longest: usize) -> Result<(Self, ModelFacts)> {
        let started = Instant::now();
        let model = Arc::new(Model::load(Arc::new(GgufFile::open(file)?))?);
        let drafts = if model.config.has_draft_head { DRAFTS } else { 0 };
        let longest = longest.min(model.config.context.saturating_sub(ROOM));
        let options = |pages| BackendOptions { slots: AGENTS, pages, kv: KvType::Q8_0, draft_max: drafts };
        let wanted = (longest + ROOM) / PAGE_TOKENS;
        // Where memory is short, contexts end earlier.
        let planned = PlanOptions { context: 0, ..PlanOptions::new(options(wanted)) };
        let most = plan(&model, &planned, Some(device.free_bytes()?)).map_err(anyhow::Error::msg)?.largest_pool;
        let pages = wanted.min(most.unwrap_or_default() / PAGE_TOKENS);
        if pages * PAGE_TOKENS < 2 * ROOM {
            bail!("the model leaves no room for {} tokens of context", 2 * ROOM);
        }
        let facts = |load_s| ModelFacts {
            name: model.config.name.clone(),
            file: file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            bytes: std::fs::metadata(file).map_or(0, |data| data.len()),
            load_s,
        };
        let vocab = model.config.vocab;
        let mut backend = CudaBackend::new(device.clone(), model.clone(), options(pages), &mut |_, _| ())?;
        let facts = facts(started.elapsed().as_secs_f64());
        let state = fill(&mut backend, vocab, pages, if effort == Effort::Trial { 1 } else { 16 })?;
        let longest = longest.min(pages * PAGE_TOKENS - ROOM);
        Ok((Self { backend, state, pages, vocab, drafts, longest, effort }, facts))
    }

    /// The curves over agents and over contexts.
    pub(crate) fn measure(&mut self, mut done: impl FnMut(&StepTime)) -> Result<Vec<StepTime>> {
        let depths = self.effort.choose(&[0, 1, 2, 3, 4, 6], &[0, 2], &[2]);
        let agents = self.effort.choose(&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 4, 8], &[2]);
        let context = if self.effort == Effort::Trial { 64 } else { 1024 };
        let short = depths.iter().flat_map(|&depth| agents.iter().map(move |&agents| (agents, context, depth)));
        let mut settings: Vec<(usize, usize, usize)> = short.collect();
        let factor = if self.effort == Effort::Full { 2 } else { 16 };
        // The last context may be a little short of its number.
        let longer = std::iter::successors(Some(1024 * factor), |n| Some(n * factor));
        let longer = longer.take_while(|_| self.effort != Effort::Trial);
        for context in longer.take_while(|&n| n <= self.longest + ROOM).map(|n| n.min(self.longest)) {
            settings.extend([(1, context, 0), (1, context, 2), (4, context, 0), (4, context, 2), (8, context, 2)]);
        }
        settings.retain(|setting| setting.2 <= self.drafts);
        let mut all = Vec::new();
        for (agents, context, depth) in settings {
            let step = self.steps(agents, context, depth)?;
            done(&step);
            all.push(step);
        }
        Ok(all)
    }

    /// Passes of a prompt's rows after contexts of several lengths.
    pub(crate) fn prompts(&mut self, mut done: impl FnMut(&PromptTime)) -> Result<Vec<PromptTime>> {
        let mut all = Vec::new();
        let settings = [
            (0, 64),
            (0, PROMPT_ROWS),
            (4096, PROMPT_ROWS),
            (20_480, PROMPT_ROWS),
            (20_480, 8),
            (131_072, PROMPT_ROWS),
        ];
        for (context, rows) in settings {
            let wanted = match self.effort {
                Effort::Full => context + rows <= self.longest,
                Effort::Quick => rows == PROMPT_ROWS && context <= 4096,
                // The pages were filled by such a pass.
                Effort::Trial => false,
            };
            if !wanted {
                continue;
            }
            let params = SamplingParams::default();
            let text = self.text(rows, 7);
            let pages = self.pages(0, 1);
            let mut times = Vec::new();
            for _ in 0..4 {
                self.stand(0, context)?;
                let sample = sampled(&params, &text, 0);
                let segment = Segment {
                    slot: 0,
                    position: context as u32,
                    tokens: &text,
                    pages: &pages,
                    kind: SegmentKind::Prompt,
                    sample: Some(sample),
                };
                let started = Instant::now();
                self.backend.step(&Step { segments: vec![segment] })?;
                times.push(1e3 * started.elapsed().as_secs_f64());
            }
            let ms = Spread::of(&times[1..]);
            let pass = PromptTime { context, rows, ms, tok_s: rows as f64 / ms.median * 1e3 };
            done(&pass);
            all.push(pass);
        }
        Ok(all)
    }

    /// Ordinary tokens.
    fn text(&self, tokens: usize, seed: usize) -> Vec<u32> {
        let ordinary = self.vocab - 500;
        (0..tokens).map(|i| (300 + (7919 * (i + 31 * seed)) % ordinary) as u32).collect()
    }

    /// All pages, from a different one on for each agent, so that agents don't find each other's in the cache.
    fn pages(&self, agent: usize, agents: usize) -> Vec<PageId> {
        let first = agent * self.pages / agents;
        (0..self.pages).map(|page| ((first + page) % self.pages) as PageId).collect()
    }

    /// Makes a slot believe that it has consumed so many tokens: its image begins with their number.
    fn stand(&mut self, slot: usize, consumed: usize) -> Result<()> {
        let number = self.state.get_mut(..4).context("the state's image is too short")?;
        number.copy_from_slice(&(consumed as u32).to_le_bytes());
        Ok(self.backend.load_state(slot, &StateImage::new(self.state.clone()))?)
    }

    fn steps(&mut self, agents: usize, context: usize, depth: usize) -> Result<StepTime> {
        let params = SamplingParams::default();
        let pages: Vec<Vec<PageId>> = (0..agents).map(|agent| self.pages(agent, agents)).collect();
        let mut texts: Vec<Vec<u32>> = (0..agents).map(|agent| self.text(1, agent)).collect();
        let mut drafts: Vec<Vec<u32>> = vec![Vec::new(); agents];
        for slot in 0..agents {
            self.stand(slot, context)?;
        }
        let (mut times, mut tokens) = (Vec::new(), 0);
        let (warm, steps) = match self.effort {
            Effort::Full => (WARM, 40),
            Effort::Quick => (WARM, 12),
            Effort::Trial => (1, 1),
        };
        for number in 0..warm + steps {
            let rows: Vec<Vec<u32>> = texts
                .iter()
                .zip(&drafts)
                .map(|(text, drafts)| text[text.len() - 1..].iter().chain(drafts).copied().collect())
                .collect();
            let segments = (0..agents)
                .map(|slot| Segment {
                    slot,
                    position: (context + texts[slot].len() - 1) as u32,
                    tokens: &rows[slot],
                    pages: &pages[slot],
                    kind: SegmentKind::Decode,
                    sample: Some(SampleSpec { output: &texts[slot], ..sampled(&params, &[], depth) }),
                })
                .collect();
            let started = Instant::now();
            let outputs = self.backend.step(&Step { segments })?;
            let time = 1e3 * started.elapsed().as_secs_f64();
            for (slot, output) in outputs.into_iter().enumerate() {
                if let Some(end) = output.dead_end {
                    bail!("agent {slot} of {agents} at {context} tokens can't go on: {end}");
                }
                if number >= warm {
                    tokens += output.tokens.len();
                }
                texts[slot].extend(output.tokens.iter().map(|sampled| sampled.token));
                drafts[slot] = output.drafts;
            }
            if number >= warm {
                times.push(time);
            }
        }
        let tokens_per_step_and_agent = tokens as f64 / (times.len() * agents) as f64;
        let total_tok_s = tokens as f64 / times.iter().sum::<f64>() * 1e3;
        Ok(StepTime { agents, context, drafts: depth, ms: Spread::of(&times), tokens_per_step_and_agent, total_tok_s })
    }
}

fn sampled<'a>(params: &'a SamplingParams, prompt: &'a [u32], draft_depth: usize) -> SampleSpec<'a> {
    SampleSpec { params, prompt, output: &[], end_tokens: &[], budget: 100, masks: &[], draft_depth }
}

/// Reads a prompt of so many pages, copies its cells to every page, and returns the state after it.
fn fill(backend: &mut CudaBackend, vocab: usize, pages: usize, read: usize) -> Result<Vec<u8>> {
    let read = pages.min(read);
    let text: Vec<u32> = (0..(read * PAGE_TOKENS) as u32).map(|i| 300 + 7919 * i % (vocab as u32 - 500)).collect();
    let list: Vec<PageId> = (0..pages as PageId).collect();
    backend.reset_slot(0)?;
    let segment =
        Segment { slot: 0, position: 0, tokens: &text, pages: &list, kind: SegmentKind::Prompt, sample: None };
    backend.step(&Step { segments: vec![segment] })?;
    let cells = (0..read).map(|page| backend.save_page(page as PageId)).collect::<Result<Vec<_>, _>>()?;
    for page in read..pages {
        backend.load_page(page as PageId, &cells[page % read])?;
    }
    Ok(backend.save_state(0)?.bytes()?.to_vec())
}
