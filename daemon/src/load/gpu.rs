//! The CUDA backend: its memory is planned, shown and checked before anything is loaded.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use openjet_engine::backend::BackendOptions;
use openjet_engine::model::Model;
use openjet_kernels::device::Device;
use openjet_kernels::plan::{CONTEXT_ESTIMATE, DISPLAY_RESERVE, Part, PlanOptions, plan, ways_out};
use openjet_kernels::tuning::{Chosen, Source};
use openjet_kernels::{CudaBackend, MemoryPlan};
use openjet_proto::device::{MemoryPart, MemoryStatus, TuningSource, TuningStatus};

use super::Progress;
use crate::config::Config;

/// A model needs more of the GPU's memory than there is: the plan, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DoesNotFit(String);

/// Plans the memory of `model` on `device`, with `freed` bytes more than are free there now.
///
/// # Errors
/// [`DoesNotFit`], or when the kernels can't run the model.
pub(super) fn plan_on(
    config: &Config,
    device: &Device,
    model: &Model,
    backend: BackendOptions,
    freed: usize,
) -> anyhow::Result<MemoryPlan> {
    let context = device.context_bytes().unwrap_or(CONTEXT_ESTIMATE);
    let display = if device.shows_display() { DISPLAY_RESERVE } else { 0 };
    let reserve = config.gpu_reserve_mib.map_or(display, |mib| (mib as usize) << 20);
    let options =
        PlanOptions { backend, embedding: config.embedding, context, reserve, host_cache: config.host_cache() };
    let available = device.free_bytes()? + context + freed;
    let plan = plan(model, &options, Some(available)).map_err(|e| anyhow!(e))?;
    if plan.fits == Some(false) {
        let ways = ways_out(model, &options, available).map_err(|e| anyhow!(e))?;
        let ways = ways.iter().map(|way| format!("it would fit with {way}\n")).collect::<String>();
        let (name, gpu) = (&model.config.name, device.describe());
        bail!(DoesNotFit(format!("{name} does not fit on {gpu}\n{plan}{ways}")));
    }
    Ok(plan)
}

/// Name of the file in the state directory that keeps what the self-test chose.
const TUNING: &str = "tuning.json";

/// Loads `model` onto `device`, and has it choose how its matmuls are shared out. Returns the backend, how many bytes its end will
/// give back, and the plan for people.
///
/// # Errors
/// As [`plan_on`], or what the device says.
pub(super) fn load(
    config: &Config,
    device: &Device,
    model: Arc<Model>,
    backend: BackendOptions,
    progress: Progress<'_>,
) -> anyhow::Result<(CudaBackend, usize, MemoryStatus)> {
    let plan = plan_on(config, device, &model, backend, 0)?;
    let (name, before) = (model.config.name.clone(), device.free_bytes()?);
    tracing::info!("{name} on {}\n{plan}", device.describe());
    let mut loading = Loading::new(&name, progress);
    let mut backend = CudaBackend::load(device.clone(), model, &plan, &mut |done, total| loading.moved(done, total))?;
    loading.bar.finish_and_clear();
    backend.tune(config.tune, config.state().map(|state| state.join(TUNING)).as_deref())?;
    tracing::info!("matmuls of {name} are shared out by {}", backend.tuning());
    Ok((backend, before.saturating_sub(device.free_bytes()?), told(&plan)))
}

/// What was chosen, for people who watch.
pub(super) fn told_tuning(chosen: &Chosen) -> TuningStatus {
    TuningStatus {
        source: match chosen.source {
            Source::BuiltIn => TuningSource::BuiltIn,
            Source::Measured => TuningSource::Measured,
            Source::Cached => TuningSource::Cached,
        },
        name: chosen.name.clone(),
        faster_percent: 100.0 * chosen.gain,
        seconds: chosen.seconds,
        part_cycles: chosen.tuning.part,
        tile_cycles: chosen.tiles().collect(),
    }
}

/// A plan for people who watch.
pub(crate) fn told(plan: &MemoryPlan) -> MemoryStatus {
    let part = |part: &Part| {
        let (name, detail) = (part.name.to_owned(), part.detail.clone());
        MemoryPart { name, detail, bytes: part.bytes as u64 }
    };
    MemoryStatus {
        parts: plan.parts.iter().map(part).collect(),
        total: plan.total as u64,
        host: plan.host.iter().map(part).collect(),
        page_bytes: plan.page_bytes as u64,
    }
}

/// Tells how far the weights are: a bar on a terminal, else a line in the log now and then; and every percent to whoever
/// watches the daemon.
struct Loading<'a> {
    name: &'a str,
    progress: Progress<'a>,
    bar: ProgressBar,
    percent: u64,
}

/// Percents between lines of the log.
const LOGGED: u64 = 20;

impl<'a> Loading<'a> {
    fn new(name: &'a str, progress: Progress<'a>) -> Self {
        // Hidden where the standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(format!("loading {name}"));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { name, progress, bar, percent: 0 }
    }

    fn moved(&mut self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        let percent = done * 100 / total.max(1);
        if percent > self.percent {
            (self.progress)(format!("loading {} onto the GPU: {percent}%", self.name));
            if self.bar.is_hidden() && percent / LOGGED > self.percent / LOGGED {
                tracing::info!("{percent}% of {} MiB are on the GPU", total >> 20);
            }
            self.percent = percent;
        }
    }
}
