//! [`Backend`] on a CUDA device.

use std::path::Path;
use std::sync::Arc;

use openjet_engine::backend::{Backend, BackendError, BackendOptions, StateImage, check_size, check_step};
use openjet_engine::drafts::StepCost;
use openjet_engine::model::Model;
use openjet_engine::step::{
    MAX_DECODE_ROWS, PAGE_TOKENS, PageId, Sampled, Segment, SegmentKind, SegmentOutput, SlotId, Step,
};

use crate::args::SlotState;
use crate::compose::{Programs, matmuls};
use crate::device::{Buffer, Device, DeviceError, Lane};
use crate::memory::{Memory, SEGMENT_ROWS, Shape, Work};
use crate::outgoing::{Outgoing, zeros};
use crate::plan::{MemoryPlan, PlanOptions, plan};
use crate::program::Program;
use crate::table::{Part, StepResult, TableBuilder};
use crate::transfer::Transfer;
use crate::tuning::{Chosen, Compared, Tune, Tuning, compare};
use crate::upload::Progress;
use crate::weights::Weights;

/// Runs the model on a GPU: see `ARCHITECTURE.md` for the shape of a step.
#[derive(Debug)]
pub struct CudaBackend {
    device: Device,
    model: Arc<Model>,
    options: BackendOptions,
    shape: Shape,
    memory: Memory,
    programs: Programs,
    table: TableBuilder,
    /// Tokens that each slot has consumed.
    consumed: Vec<u32>,
    transfer: Transfer,
    outgoing: Outgoing,
    /// Step tables on their way to the device, ...
    sent: Lane,
    /// ... and results on their way back, both in the programs' order.
    received: Lane,
    tuning: Chosen,
    // Last, so that it is freed last.
    weights: Weights,
}

/// Of the images that it saves: another number where they look otherwise, so that none is loaded that an older version wrote.
const IMAGE_FORM: u32 = 2;

impl From<DeviceError> for BackendError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error.to_string())
    }
}

impl CudaBackend {
    /// Uploads the model and allocates everything, with the whole of it on the GPU.
    ///
    /// # Errors
    /// When the kernels can't run the model, it doesn't fit, or the device fails.
    pub fn new(
        device: Device,
        model: Arc<Model>,
        options: BackendOptions,
        progress: Progress<'_>,
    ) -> Result<Self, BackendError> {
        let options = PlanOptions { context: 0, ..PlanOptions::new(options) };
        let plan = plan(&model, &options, Some(device.free_bytes()?)).map_err(BackendError::Device)?;
        Self::load(device, model, &plan, progress)
    }

    /// Uploads the model and allocates everything as `plan` says.
    ///
    /// # Errors
    /// When the plan doesn't fit, or the device fails.
    pub fn load(
        device: Device,
        model: Arc<Model>,
        plan: &MemoryPlan,
        progress: Progress<'_>,
    ) -> Result<Self, BackendError> {
        if plan.fits == Some(false) {
            return Err(BackendError::Device(format!("the GPU has too little free memory\n{plan}")));
        }
        let (shape, options) = (plan.shape.clone(), plan.backend);
        let outgoing = Outgoing::new(&device, shape.saved_bytes())?;
        let memory = Memory::allocate(&device, &shape)?;
        let weights = Weights::upload(&device, &model, shape.draft_max > 0, plan.host_embedding, progress)?;
        let tuning = Tuning::built_in(device.capability());
        let programs = Programs::new(&device, &shape, &weights, &memory, tuning)?;
        let consumed = vec![0; options.slots];
        let sent = memory.of(Work::Table).len();
        Ok(Self {
            model,
            options,
            shape,
            memory,
            programs,
            table: TableBuilder::default(),
            consumed,
            transfer: Transfer::new(&device)?,
            outgoing,
            sent: Lane::of_programs(&device, sent)?,
            received: Lane::of_programs(&device, size_of::<StepResult>())?,
            tuning: Chosen::built_in(&device),
            device,
            weights,
        })
    }

    /// Chooses how the matmuls are shared out, by a self-test of at most about 0.3 s as `tune` says; what was measured is kept in the
    /// file `cache`. A choice changes speed only. To be called before the first step.
    ///
    /// # Errors
    /// When the device fails.
    pub fn tune(&mut self, tune: Tune, cache: Option<&Path>) -> Result<(), BackendError> {
        let ops = matmuls(&self.shape, &self.weights, &self.memory);
        let chosen = Chosen::choose(&self.device, self.memory.of(Work::Table), &ops, tune, cache);
        if chosen.tuning != self.tuning.tuning {
            self.programs = Programs::new(&self.device, &self.shape, &self.weights, &self.memory, chosen.tuning)?;
        }
        self.tuning = chosen;
        Ok(())
    }

    /// How the matmuls are shared out.
    #[must_use]
    pub fn tuning(&self) -> &Chosen {
        &self.tuning
    }

    /// Times each kind of a step's matmuls with every way to share it out that the self-test tries. Disturbs nothing between steps.
    ///
    /// # Errors
    /// When the device fails.
    pub fn compare_tunings(&self, rows: &[u32], rounds: usize) -> Result<Vec<Compared>, BackendError> {
        let ops = matmuls(&self.shape, &self.weights, &self.memory);
        Ok(compare(&self.device, self.memory.of(Work::Table), &ops, rows, rounds)?)
    }

    /// Logits of the last step's first `rows` sampled rows, before penalties: rows x vocabulary. For comparisons.
    ///
    /// # Errors
    /// When the copy fails.
    pub fn logits(&self, rows: usize) -> Result<Vec<f32>, BackendError> {
        let mut logits = vec![0.0; rows * self.model.config.vocab];
        self.memory.of(Work::Logits).read(0, bytemuck::cast_slice_mut(&mut logits))?;
        Ok(logits)
    }

    fn check(&self, step: &Step<'_>) -> Result<(), BackendError> {
        let config = &self.model.config;
        check_step(step, &self.options, config.vocab, |slot| self.consumed[slot])?;
        let mut rows = 0;
        for (i, segment) in step.segments.iter().enumerate() {
            let refuse = |rule: String| Err(BackendError::BadStep(format!("segment {i}: {rule}")));
            if segment.kind == SegmentKind::Decode && segment.tokens.len() > SEGMENT_ROWS {
                return refuse(format!("{} decode rows, at most {SEGMENT_ROWS} of one slot", segment.tokens.len()));
            }
            let depth = segment.sample.as_ref().map_or(0, |spec| spec.draft_depth);
            let end = segment.position as usize + segment.tokens.len() + depth;
            if end > self.shape.context {
                return refuse(format!("ends at {end}, and a conversation holds {} tokens", self.shape.context));
            }
            rows += match segment.kind {
                SegmentKind::Decode => segment.tokens.len(),
                SegmentKind::Prompt => usize::from(segment.sample.is_some()),
            };
        }
        if rows > MAX_DECODE_ROWS {
            return Err(BackendError::BadStep(format!("{rows} rows to sample, at most {MAX_DECODE_ROWS}")));
        }
        Ok(())
    }

    fn upload_table(&mut self, segments: &[(&Segment<'_>, Part)]) -> Result<(), BackendError> {
        let words: &[u8] = bytemuck::cast_slice(self.table.build(segments));
        let table = self.memory.of(Work::Table);
        let (bytes, room) = (words.len(), table.len());
        if bytes > room {
            return Err(BackendError::BadStep(format!(
                "the step's table takes {bytes} bytes, and there is room for {room}"
            )));
        }
        self.sent.staging()?[..bytes].copy_from_slice(words);
        Ok(self.sent.send(table, 0, bytes)?)
    }

    fn run(&self, program: &Program) -> Result<(), BackendError> {
        Ok(program.run(self.memory.of(Work::Table))?)
    }

    /// Runs a prompt segment's rows through the trunk. What comes after its last absolute multiple of 64 is a pass of its own,
    /// so which matmul a row goes through depends on its place alone.
    fn prompt(&mut self, segment: &Segment<'_>) -> Result<(), BackendError> {
        let (start, all) = (segment.position as usize, segment.tokens.len());
        let whole = ((start + all) / PAGE_TOKENS * PAGE_TOKENS).saturating_sub(start);
        let mut done = 0;
        while done < all {
            let position = start + done;
            let end =
                if done < whole { (done + self.shape.prompt_rows - position % PAGE_TOKENS).min(whole) } else { all };
            let part = Segment {
                slot: segment.slot,
                position: position as u32,
                tokens: &segment.tokens[done..end],
                pages: segment.pages,
                kind: SegmentKind::Prompt,
                sample: None,
            };
            self.upload_table(&[(&part, Part::Rows)])?;
            self.run(if done < whole { &self.programs.prompt } else { &self.programs.tail })?;
            done = end;
        }
        Ok(())
    }

    /// Runs decode rows and samples, for decode segments and prompts that are whole.
    fn decode(&mut self, step: &Step<'_>) -> Result<Option<Box<StepResult>>, BackendError> {
        let parts: Vec<_> = (step.segments.iter())
            .filter(|segment| segment.sample.is_some())
            .map(|segment| (segment, if segment.kind == SegmentKind::Prompt { Part::LastRow } else { Part::Rows }))
            .collect();
        if parts.is_empty() {
            return Ok(None);
        }
        self.upload_table(&parts)?;
        let rows = parts.iter().map(|(segment, part)| if *part == Part::Rows { segment.tokens.len() } else { 1 }).sum();
        let programs = self.programs.decode(rows);
        if parts.iter().any(|(_, part)| *part == Part::Rows) {
            programs.trunk.start(self.memory.of(Work::Table))?;
        }
        // The host waits once, for all of it.
        programs.head.start(self.memory.of(Work::Table))?;
        let bytes = size_of::<StepResult>();
        self.received.begin_fetch(std::iter::once((self.memory.of(Work::Result), 0, bytes)))?;
        self.device.finish()?;
        let mut result: Box<StepResult> = Box::new(bytemuck::Zeroable::zeroed());
        bytemuck::bytes_of_mut(&mut *result).copy_from_slice(&self.received.fetched()[..bytes]);
        Ok(Some(result))
    }

    fn slot_state(&self, slot: SlotId) -> Result<SlotState, BackendError> {
        let mut state = SlotState::default();
        self.memory.of(Work::SlotStates).read(slot * size_of::<SlotState>(), bytemuck::bytes_of_mut(&mut state))?;
        Ok(state)
    }

    fn set_slot_state(&self, slot: SlotId, state: SlotState) -> Result<(), BackendError> {
        Ok(self.memory.of(Work::SlotStates).write(slot * size_of::<SlotState>(), bytemuck::bytes_of(&state))?)
    }

    fn image_bytes(&self) -> usize {
        4 + self.shape.saved_bytes()
    }

    /// Turns a slot's recurrent state into NaN, as a fault would. Only for tests.
    #[cfg(has_host_device)]
    fn spoil(&self, slot: SlotId) -> Result<(), BackendError> {
        for (offset, bytes) in state_parts(&self.shape, slot) {
            self.memory.state.write(offset, &[0xff].repeat(bytes))?;
        }
        Ok(())
    }

    fn hidden_place(&self, slot: SlotId) -> (usize, usize) {
        let bytes = self.model.config.hidden * 4;
        (slot * bytes, bytes)
    }
}

/// The parts of a slot's recurrent state that are saved: offset and length.
fn state_parts(shape: &Shape, slot: SlotId) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (layer, settled) = (shape.layout.floats() * 4, shape.layout.settled_floats() * 4);
    let start = slot * shape.slot_floats() * 4;
    (0..shape.delta_layers).map(move |i| (start + i * layer, settled))
}

/// Of a slot's image: buffer, offset and length, in its order.
fn image_parts<'a>(
    memory: &'a Memory,
    shape: &Shape,
    slot: SlotId,
) -> impl Iterator<Item = (&'a Buffer, usize, usize)> + use<'a> {
    let hidden = shape.config.hidden * 4;
    let state = state_parts(shape, slot).map(|(offset, bytes)| (&memory.state, offset, bytes));
    state.chain([(memory.of(Work::PendingHidden), slot * hidden, hidden)])
}

/// A segment's outcome, from what the device reports for entry `n` of its table.
fn output(segment: &Segment<'_>, n: usize, first_row: usize, result: &StepResult) -> SegmentOutput {
    let entry = &result.segment[n];
    if let Some(error) = entry.error() {
        return SegmentOutput { dead_end: Some(error), ..SegmentOutput::default() };
    }
    let accepted = (entry.accepted as usize).min(segment.tokens.len() - 1);
    let wanted = segment.sample.as_ref().is_some_and(|spec| spec.params.logprobs.is_some());
    let drafts = if segment.kind == SegmentKind::Prompt { &[] } else { &segment.tokens[1..=accepted] };
    let tokens = drafts.iter().copied().chain([entry.token]).enumerate();
    SegmentOutput {
        accepted: drafts.len(),
        tokens: tokens
            .map(|(i, token)| Sampled { token, logprobs: wanted.then(|| (&result.logprobs[first_row + i]).into()) })
            .collect(),
        drafts: entry.draft.iter().copied().take(entry.drafts as usize).collect(),
        dead_end: None,
    }
}

impl Backend for CudaBackend {
    fn describe(&self) -> String {
        self.device.describe()
    }

    fn layout(&self) -> String {
        format!("{}, images of form {IMAGE_FORM}", self.device.describe())
    }

    fn options(&self) -> BackendOptions {
        self.options
    }

    fn cost(&self) -> StepCost {
        crate::cost::STEP
    }

    fn prompt_rows(&self) -> usize {
        self.shape.prompt_rows
    }

    fn step(&mut self, step: &Step<'_>) -> Result<Vec<SegmentOutput>, BackendError> {
        self.check(step)?;
        #[cfg(has_host_device)]
        if self.device.spoils_step() {
            self.spoil(step.segments[0].slot)?;
        }
        for segment in step.segments.iter().filter(|segment| segment.kind == SegmentKind::Prompt) {
            self.prompt(segment)?;
        }
        let result = self.decode(step)?;
        let (mut n, mut row) = (0, 0);
        let outputs = step.segments.iter().map(|segment| match &result {
            Some(result) if segment.sample.is_some() => {
                let output = output(segment, n, row, result);
                n += 1;
                row += if segment.kind == SegmentKind::Prompt { 1 } else { segment.tokens.len() };
                output
            }
            _ => SegmentOutput::default(),
        });
        let outputs: Vec<SegmentOutput> = outputs.collect();
        for (segment, output) in step.segments.iter().zip(&outputs) {
            let prompt = segment.kind == SegmentKind::Prompt;
            let taken = if prompt { segment.tokens.len() } else { output.accepted + 1 };
            self.consumed[segment.slot] = segment.position + taken as u32;
        }
        Ok(outputs)
    }

    fn reset_slot(&mut self, slot: SlotId) -> Result<(), BackendError> {
        for (offset, bytes) in state_parts(&self.shape, slot) {
            self.memory.state.clear(offset, bytes)?;
        }
        let (offset, bytes) = self.hidden_place(slot);
        self.memory.of(Work::PendingHidden).clear(offset, bytes)?;
        self.set_slot_state(slot, SlotState::default())?;
        self.consumed[slot] = 0;
        Ok(())
    }

    fn save_state(&mut self, slot: SlotId) -> Result<Arc<StateImage>, BackendError> {
        let state = self.slot_state(slot)?;
        if state.pending > 0 {
            self.run(&self.programs.settle[slot])?;
            self.set_slot_state(slot, SlotState { pending: 0, ..state })?;
        }
        let head = self.consumed[slot].to_le_bytes();
        Ok(self.outgoing.image(head, image_parts(&self.memory, &self.shape, slot))?)
    }

    fn load_state(&mut self, slot: SlotId, image: &StateImage) -> Result<(), BackendError> {
        check_size("state", self.image_bytes(), image.len())?;
        let (consumed, mut rest) = image.bytes()?.split_at(4);
        let parts = image_parts(&self.memory, &self.shape, slot).map(|(buffer, offset, bytes)| {
            let (part, more) = rest.split_at(bytes);
            rest = more;
            (buffer, offset, part)
        });
        self.transfer.write(parts)?;
        self.set_slot_state(slot, SlotState::default())?;
        self.consumed[slot] = consumed.try_into().map_or(0, u32::from_le_bytes);
        Ok(())
    }

    fn save_page(&mut self, page: PageId) -> Result<Vec<u8>, BackendError> {
        Ok(self.save_pages(&[page])?.pop().unwrap_or_default())
    }

    fn save_pages(&mut self, pages: &[PageId]) -> Result<Vec<Vec<u8>>, BackendError> {
        let bytes = self.shape.page_bytes();
        let mut saved: Vec<Vec<u8>> = pages.iter().map(|_| zeros(bytes)).collect();
        let cells = pages.iter().zip(&mut saved);
        self.transfer.read(cells.map(|(&page, cells)| (&self.memory.kv, page as usize * bytes, &mut cells[..])))?;
        Ok(saved)
    }

    fn load_page(&mut self, page: PageId, cells: &[u8]) -> Result<(), BackendError> {
        self.load_pages(&[(page, cells)])
    }

    fn load_pages(&mut self, pages: &[(PageId, &[u8])]) -> Result<(), BackendError> {
        let bytes = self.shape.page_bytes();
        pages.iter().try_for_each(|(_, cells)| check_size("page", bytes, cells.len()))?;
        let parts = pages.iter().map(|&(page, cells)| (&self.memory.kv, page as usize * bytes, cells));
        Ok(self.transfer.write(parts)?)
    }
}
