//! The CPU twin: the forward pass in f32, readable first. It is the description of the model and the judge of other backends.

mod accept;
mod attention;
mod chunked;
mod deltanet;
mod draft;
mod kv;
mod matmul;
mod ops;
mod simd;
mod state;
mod trunk;

use std::sync::Arc;

use attention::Place;
use deltanet::Span;
use kv::KvPool;
use state::Slot;

use super::{Backend, BackendError, BackendOptions, KvType, StateImage, check_size, check_step};
use crate::drafts::StepCost;
use crate::model::{DraftHead, Model};
use crate::sampling::{Distribution, History};
use crate::step::{PageId, SampleSpec, Segment, SegmentKind, SegmentOutput, SlotId, Step};

/// Runs the model on the CPU's cores.
#[derive(Debug)]
pub struct CpuBackend {
    /// A step runs inside this pool as a whole: entering it from outside costs a wake-up each time.
    threads: Arc<rayon::ThreadPool>,
    model: Arc<Model>,
    options: BackendOptions,
    slots: Vec<Slot>,
    pool: KvPool,
}

/// A point of the forward pass that a [`Probe`] sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// Token embeddings, rows x hidden.
    Embedding,
    /// The residual stream after a trunk block, rows x hidden.
    Block(usize),
    /// After the output norm, rows x hidden.
    Hidden,
    /// Logits of the rows that a token is chosen after, in the step's order, rows x vocabulary.
    Logits,
    /// Logits of one draft, one row for each segment that drafts.
    DraftLogits,
}

/// Sees the numbers of a step as they are computed.
pub type Probe<'a> = &'a mut (dyn FnMut(Probed, &[f32]) + Send);

impl CpuBackend {
    /// Allocates slots and pool.
    ///
    /// # Errors
    /// When a cell type doesn't fit the model's head width.
    pub fn new(model: Arc<Model>, options: BackendOptions) -> Result<Self, BackendError> {
        let config = &model.config;
        let fits = match options.kv {
            KvType::F32 | KvType::F16 => true,
            KvType::Q8_0 => config.head_dim.is_multiple_of(32),
            KvType::Q4_0 => config.head_dim.is_multiple_of(32) && config.head_dim.is_power_of_two(),
        };
        if !fits {
            let message =
                format!("{:?} cells need heads of another width than {}; use f16", options.kv, config.head_dim);
            return Err(BackendError::Device(message));
        }
        let pool = KvPool::new(options.kv, config.kv_layers(), options.pages, config.kv_heads, config.head_dim);
        // One by one: memory that was never touched costs nothing until a conversation needs it.
        let slots = (0..options.slots).map(|_| Slot::new(config)).collect();
        let threads = rayon::ThreadPoolBuilder::new()
            .thread_name(|i| format!("cpu-{i}"))
            .build()
            .map_err(|e| BackendError::Device(format!("the CPU backend's threads can't be started: {e}")))?;
        Ok(Self { threads: Arc::new(threads), model, options, slots, pool })
    }

    /// The trunk's head over hidden states (rows x hidden, after the output norm): rows x vocabulary.
    #[must_use]
    pub fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        matmul::matmul(&self.model.output, hidden)
    }

    /// [`Backend::step`], with a look inside.
    ///
    /// # Errors
    /// As [`Backend::step`].
    pub fn step_probed(&mut self, step: &Step<'_>, probe: Probe<'_>) -> Result<Vec<SegmentOutput>, BackendError> {
        let threads = Arc::clone(&self.threads);
        threads.install(|| self.step_inside(step, probe))
    }

    fn step_inside(&mut self, step: &Step<'_>, probe: Probe<'_>) -> Result<Vec<SegmentOutput>, BackendError> {
        check_step(step, &self.options, self.model.config.vocab, |slot| self.slots[slot].consumed)?;
        let model = Arc::clone(&self.model);
        let tokens: Vec<u32> = step.segments.iter().flat_map(|s| s.tokens).copied().collect();
        let places: Vec<Place<'_>> = step.segments.iter().flat_map(segment_places).collect();
        let spans = spans(step);
        let (hidden, kept) = trunk::run(&model, &tokens, &places, &spans, &mut self.slots, &mut self.pool, probe);

        let logits = self.logits(&sampled_hidden(&model, step, &spans, &hidden));
        probe(Probed::Logits, &logits);
        let mut logits = logits.chunks_exact(model.config.vocab);
        let mut outputs = Vec::with_capacity(step.segments.len());
        let mut histories = Vec::with_capacity(step.segments.len());
        for (segment, span) in step.segments.iter().zip(&spans) {
            let rows: Vec<&[f32]> = logits.by_ref().take(sampled_rows(segment)).collect();
            let (output, history) = self.choose(segment, &rows);
            let slot = &mut self.slots[span.slot];
            if !span.prompt {
                for (state, kept) in slot.layers.iter_mut().zip(&kept) {
                    deltanet::commit(&model.config, span, output.accepted, state, kept);
                }
            }
            outputs.push(output);
            histories.push(history);
        }
        if let Some(draft_head) = model.draft_head.as_ref().filter(|_| self.options.draft_max > 0) {
            self.follow(draft_head, step, &spans, &hidden, &outputs);
        }
        for ((segment, span), output) in step.segments.iter().zip(&spans).zip(&outputs) {
            let taken = if span.prompt { span.rows.len() } else { output.accepted + 1 };
            let slot = &mut self.slots[span.slot];
            slot.consumed = segment.position + taken as u32;
            let last = span.rows.start + taken - 1;
            let width = model.config.hidden;
            slot.pending.copy_from_slice(&hidden[last * width..(last + 1) * width]);
        }
        if let Some(draft_head) = model.draft_head.as_ref() {
            self.draft(draft_head, step, &mut outputs, histories, probe);
        }
        Ok(outputs)
    }

    /// Chooses a segment's next tokens from its rows' logits.
    fn choose(&self, segment: &Segment<'_>, logits: &[&[f32]]) -> (SegmentOutput, Option<History>) {
        let Some(spec) = &segment.sample else { return (SegmentOutput::default(), None) };
        let drafts = if segment.kind == SegmentKind::Prompt { &[] } else { &segment.tokens[1..] };
        let first = segment.position + (segment.tokens.len() - logits.len()) as u32 + 1;
        let usable = self.model.usable_tokens.as_deref();
        let chosen = match accept::accept(spec, logits, drafts, first, usable) {
            Ok(chosen) => chosen,
            Err(error) => return (SegmentOutput { dead_end: Some(error), ..Default::default() }, None),
        };
        let output = SegmentOutput { accepted: chosen.accepted, tokens: chosen.tokens, ..Default::default() };
        (output, Some(chosen.history))
    }

    /// Stores the draft head's cells of all tokens that were consumed, from the trunk's true hidden states.
    fn follow(
        &mut self,
        draft_head: &DraftHead,
        step: &Step<'_>,
        spans: &[Span],
        hidden: &[f32],
        outputs: &[SegmentOutput],
    ) {
        let width = self.model.config.hidden;
        let (mut before, mut tokens, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for ((segment, span), output) in step.segments.iter().zip(spans).zip(outputs) {
            let taken = if span.prompt { span.rows.len() } else { output.accepted + 1 };
            for (i, place) in segment_places(segment).take(taken).enumerate().filter(|(_, p)| p.position > 0) {
                before.extend_from_slice(match i {
                    0 => &self.slots[span.slot].pending,
                    _ => &hidden[(span.rows.start + i - 1) * width..(span.rows.start + i) * width],
                });
                tokens.push(segment.tokens[i]);
                places.push(place);
            }
        }
        draft::write_cells(&self.model.config, draft_head, &before, &tokens, &places, &mut self.pool);
    }

    /// Lets the draft head propose what follows each segment's newest token.
    fn draft(
        &mut self,
        draft_head: &DraftHead,
        step: &Step<'_>,
        outputs: &mut [SegmentOutput],
        histories: Vec<Option<History>>,
        probe: Probe<'_>,
    ) {
        struct Drafting<'a> {
            segment: usize,
            spec: &'a SampleSpec<'a>,
            history: History,
            hidden: Vec<f32>,
            token: u32,
            position: u32,
            spoilt: bool,
        }
        let config = &self.model.config;
        let mut active: Vec<_> = (step.segments.iter().zip(histories).enumerate())
            .filter_map(|(i, (segment, history))| {
                let newest = outputs[i].tokens.last()?.token;
                let slot = &self.slots[segment.slot];
                Some(Drafting {
                    segment: i,
                    spec: segment.sample.as_ref()?,
                    history: history?,
                    hidden: slot.pending.clone(),
                    token: newest,
                    position: slot.consumed,
                    spoilt: false,
                })
            })
            .collect();
        loop {
            active.retain(|d| {
                let proposed = outputs[d.segment].drafts.len();
                !d.spoilt && proposed < d.spec.draft_depth && !d.spec.end_tokens.contains(&d.token)
            });
            if active.is_empty() {
                return;
            }
            let hidden = active.iter().flat_map(|d| &d.hidden).copied().collect::<Vec<_>>();
            let tokens: Vec<_> = active.iter().map(|d| d.token).collect();
            let places: Vec<_> = (active.iter())
                .map(|d| Place { position: d.position, pages: step.segments[d.segment].pages })
                .collect();
            let (hidden, logits) = draft::run(config, draft_head, &hidden, &tokens, &places, &mut self.pool);
            probe(Probed::DraftLogits, &logits);
            for ((d, hidden), logits) in
                active.iter_mut().zip(hidden.chunks_exact(config.hidden)).zip(logits.chunks_exact(config.vocab))
            {
                d.position += 1;
                // Numbers that are not finite end this draft; the trunk's own are judged when a token is chosen.
                let Ok(q) = Distribution::new(logits, d.spec.params, &d.history, self.model.usable_tokens.as_deref())
                else {
                    d.spoilt = true;
                    continue;
                };
                d.token = q.sample(d.spec.params.seed, d.position);
                d.hidden.copy_from_slice(hidden);
                d.history.push(d.token);
                outputs[d.segment].drafts.push(d.token);
            }
        }
    }
}

impl Backend for CpuBackend {
    fn describe(&self) -> String {
        format!("CPU, {} threads", self.threads.current_num_threads())
    }

    fn layout(&self) -> String {
        "CPU".to_owned()
    }

    fn options(&self) -> BackendOptions {
        self.options
    }

    fn cost(&self) -> StepCost {
        StepCost { row: 0.4, draft: 0.3, ..StepCost::default() }
    }

    fn step(&mut self, step: &Step<'_>) -> Result<Vec<SegmentOutput>, BackendError> {
        self.step_probed(step, &mut |_, _| ())
    }

    fn reset_slot(&mut self, slot: SlotId) -> Result<(), BackendError> {
        self.slots[slot].reset();
        Ok(())
    }

    fn save_state(&mut self, slot: SlotId) -> Result<Arc<StateImage>, BackendError> {
        Ok(Arc::new(self.slots[slot].save()))
    }

    fn load_state(&mut self, slot: SlotId, image: &StateImage) -> Result<(), BackendError> {
        check_size("state", self.slots[slot].saved_bytes(), image.len())?;
        self.slots[slot].load(image.bytes()?);
        Ok(())
    }

    fn save_page(&mut self, page: PageId) -> Result<Vec<u8>, BackendError> {
        Ok(self.pool.save(page))
    }

    fn load_page(&mut self, page: PageId, cells: &[u8]) -> Result<(), BackendError> {
        check_size("page", self.pool.saved_bytes(), cells.len())?;
        self.pool.load(page, cells);
        Ok(())
    }
}

/// Hidden states of the rows after which a token is chosen: all of a decode segment, the last of a prompt, none of a chunk
/// before it.
fn sampled_hidden(model: &Model, step: &Step<'_>, spans: &[Span], hidden: &[f32]) -> Vec<f32> {
    let width = model.config.hidden;
    (step.segments.iter().zip(spans))
        .flat_map(|(segment, span)| {
            let first = span.rows.end - sampled_rows(segment);
            &hidden[first * width..span.rows.end * width]
        })
        .copied()
        .collect()
}

/// Rows of a segment that a token is chosen after.
fn sampled_rows(segment: &Segment<'_>) -> usize {
    match (&segment.sample, segment.kind) {
        (None, _) => 0,
        (Some(_), SegmentKind::Prompt) => 1,
        (Some(_), SegmentKind::Decode) => segment.tokens.len(),
    }
}

fn spans(step: &Step<'_>) -> Vec<Span> {
    let mut start = 0;
    let span = |segment: &Segment<'_>| {
        let rows = start..start + segment.tokens.len();
        start = rows.end;
        Span { slot: segment.slot, rows, position: segment.position, prompt: segment.kind == SegmentKind::Prompt }
    };
    step.segments.iter().map(span).collect()
}

fn segment_places<'a>(segment: &Segment<'a>) -> impl Iterator<Item = Place<'a>> + use<'a> {
    let (position, pages) = (segment.position, segment.pages);
    (0..segment.tokens.len() as u32).map(move |i| Place { position: position + i, pages })
}
