//! Loads a model in steps that can fail one by one: read and check the file, plan, take it onto the backend, warm that up, start
//! the engine.

mod device;
mod gpu;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{Backend, BackendOptions, DEFAULT_AGENTS_MAX, DEFAULT_POOL, warm_up};
use openjet_engine::constraint::Grammars;
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::gguf::{GgufFile, Problem};
use openjet_engine::inspect::Inspection;
use openjet_engine::model::Model;
use openjet_engine::step::PAGE_TOKENS;
use openjet_engine::text::{ChatTemplate, Tokenizer, TokenizerSpec};
use openjet_kernels::MemoryPlan;
use openjet_proto::control::{ModelStatus, TensorType};
use openjet_proto::device::{MemoryStatus, TuningStatus};
use tokio::sync::watch;

use crate::api::head::now;
use crate::api::sampling::SamplingDefaults;
use crate::card::Card;
use crate::config::Config;
use crate::counter::Counter;
use crate::kept::Hashing;
use crate::serving::Serving;
use crate::unreadable;

use device::Gpu;
pub use gpu::DoesNotFit;
pub(crate) use gpu::told;

/// The model that ships with the program.
static SHIPPED: &[u8] = include_bytes!("../../assets/openjet-tiny-Q4_K_M.gguf");

/// Its name in messages.
const SHIPPED_NAME: &str = "the model that ships with openjetd";

/// Most agents on the CPU without a setting: each takes little memory there.
const CPU_AGENTS: usize = 64;

/// Time after which a device is warm enough.
const WARM_UP: Duration = Duration::from_secs(1);

/// Told what is being done.
pub type Progress<'a> = &'a dyn Fn(String);

/// Loads what `config` says.
///
/// # Errors
/// What is wrong with the file or the settings, with the fix where there is one.
pub fn load(config: &Config, progress: Progress<'_>) -> anyhow::Result<Serving> {
    Checked::read(config, progress)?.prepare(config, progress)?.start(config)
}

/// A model whose file was read and found good, and the device for it. Nothing is allocated for it yet.
#[derive(Debug)]
pub struct Checked {
    file: Arc<GgufFile>,
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    /// Tokens of the pool.
    pool: usize,
    options: BackendOptions,
    /// The GPU; the CPU runs it without one.
    gpu: Option<Gpu>,
    began: Instant,
}

/// A model on its backend.
#[derive(Debug)]
pub struct Prepared {
    checked: Checked,
    backend: Box<dyn Backend>,
    gpu_bytes: usize,
    memory: Option<MemoryStatus>,
    tuning: Option<TuningStatus>,
    hashing: Option<Hashing>,
}

impl Checked {
    /// Reads what `config` says and opens the device.
    ///
    /// # Errors
    /// What is wrong with the file, or why there is no device for it.
    pub fn read(config: &Config, progress: Progress<'_>) -> anyhow::Result<Self> {
        let began = Instant::now();
        let file = Arc::new(open(config.model_file().map_err(|e| anyhow!(e))?.as_deref(), progress)?);
        let model = Arc::new(Model::load(file.clone())?);
        let spec = TokenizerSpec::from_gguf(&file)?;
        let of_file = || format!("{}: the tokenizer can't be used", file.name());
        let tokenizer = Arc::new(Tokenizer::new(&spec).with_context(of_file)?);
        let template = spec.chat_template.map(|source| ChatTemplate::new(source, &tokenizer)).transpose();
        let template = template.with_context(|| format!("{}: the chat template can't be used", file.name()))?;
        if tokenizer.vocab_size() != model.config.vocab {
            bail!(
                "{}: the tokenizer has {} tokens, but the model {}",
                file.name(),
                tokenizer.vocab_size(),
                model.config.vocab
            );
        }
        let pool = config.ctx.unwrap_or_else(|| model.config.context.min(DEFAULT_POOL));
        let gpu = device::choose(config, file.bytes().len() as u64, progress)?;
        let most = config.agents_max.unwrap_or(if gpu.is_some() { DEFAULT_AGENTS_MAX } else { CPU_AGENTS });
        let options = BackendOptions {
            slots: config.agents.max(most),
            pages: pool.div_ceil(PAGE_TOKENS),
            kv: config.kv,
            draft_max: config.draft,
        };
        Ok(Self { file, model, tokenizer, template, pool, options, gpu, began })
    }

    /// Plans its memory, on a GPU with `freed` bytes more than are free now.
    ///
    /// # Errors
    /// [`DoesNotFit`] with the plan and what would fit.
    pub fn check(&self, config: &Config, freed: usize) -> anyhow::Result<()> {
        self.plan(config, freed).map(drop)
    }

    /// The same, and gives the plan; none where the CPU would run it.
    ///
    /// # Errors
    /// As [`Checked::check`].
    pub fn plan(&self, config: &Config, freed: usize) -> anyhow::Result<Option<MemoryPlan>> {
        let plan = |gpu: &Gpu| gpu::plan_on(config, &gpu.device, &self.model, self.options, freed);
        self.gpu.as_ref().map(plan).transpose()
    }

    /// Facts about the model and its file.
    #[must_use]
    pub fn facts(&self, config: &Config) -> ModelStatus {
        let facts = &self.model.config;
        let Inspection { parameters, types, .. } = Inspection::of(&self.file);
        let types =
            types.into_iter().map(|usage| TensorType { name: usage.ty, tensors: usage.tensors, bytes: usage.bytes });
        ModelStatus {
            name: facts.name.clone(),
            file: config.model_file().ok().flatten().map(|path| path.display().to_string()),
            bytes: self.file.bytes().len() as u64,
            context: facts.context,
            vocab: facts.vocab,
            draft_head: facts.has_draft_head,
            parameters,
            blocks: facts.blocks,
            attention_blocks: facts.recurrent.iter().filter(|&&recurrent| !recurrent).count(),
            types: types.collect(),
        }
    }

    /// Most tokens that one agent's context holds.
    fn context(&self) -> usize {
        self.pool.min(self.model.config.context)
    }

    /// Takes it onto its backend, and has that run its first steps.
    ///
    /// # Errors
    /// [`DoesNotFit`], or what the device says.
    pub fn prepare(self, config: &Config, progress: Progress<'_>) -> anyhow::Result<Prepared> {
        progress(format!("starting the backend for {}", self.model.config.name));
        let hashing = Hashing::start(config, &self.file);
        let (mut backend, gpu_bytes, memory, tuning): (Box<dyn Backend>, _, _, _) = match &self.gpu {
            Some(gpu) => {
                let model = self.model.clone();
                let (backend, bytes, memory) = gpu::load(config, &gpu.device, model, self.options, progress)?;
                let tuning = gpu::told_tuning(backend.tuning());
                (Box::new(backend), bytes, Some(memory), Some(tuning))
            }
            None => (Box::new(CpuBackend::new(self.model.clone(), self.options)?), 0, None, None),
        };
        progress(format!("warming up {}", self.model.config.name));
        let began = Instant::now();
        warm_up(&mut *backend, self.model.config.vocab, self.context(), WARM_UP)?;
        tracing::info!("warmed up in {:.2} s", began.elapsed().as_secs_f64());
        Ok(Prepared { checked: self, backend, gpu_bytes, memory, tuning, hashing })
    }
}

impl Prepared {
    /// Starts the engine. Conversations are kept on disk unless another engine still uses the folder.
    ///
    /// # Errors
    /// When the engine refuses its settings.
    pub fn start(self, config: &Config) -> anyhow::Result<Serving> {
        let Self { checked, backend, gpu_bytes, memory, tuning, hashing } = self;
        let (status, context) = (checked.facts(config), checked.context());
        let Checked { file, model, tokenizer, template, pool, began, gpu, .. } = checked;
        let facts = &model.config;
        let device = backend.describe();
        let host_cache = config.host_cache();
        let engine_config = EngineConfig {
            agents: config.agents,
            draft: config.draft,
            queue: config.queue,
            host_cache,
            store: hashing.and_then(|hashing| hashing.options(config)),
            show_text: config.shows_text().then(|| tokenizer.clone()),
            ..EngineConfig::new(context, facts.vocab, tokenizer.end_tokens().to_vec())
        };
        let (engine, thread) = Engine::start(backend, engine_config).context("the engine could not be started")?;
        tracing::info!(
            "ready after {:.2} s: model {} ({}), {device}, {} agents share {pool} tokens, {context} at most for one; \
             {} MiB of host memory for conversations without an agent, as many for states of prompts",
            began.elapsed().as_secs_f64(),
            facts.name,
            file.name(),
            config.agents,
            host_cache >> 20,
        );
        Ok(Serving {
            engine,
            thread: Mutex::new(Some(thread)),
            grammars: Grammars::new(tokenizer.clone()),
            tokenizer,
            template,
            model: status,
            memory,
            tuning,
            card: gpu.and_then(|gpu| gpu.card).map(|info| Card::watch(&info)),
            context,
            defaults: sampling_defaults(&file, config)?,
            loaded_at: now(),
            gpu_bytes,
            requests: Counter::default(),
            cut: watch::Sender::new(None),
        })
    }
}

fn open(path: Option<&Path>, progress: Progress<'_>) -> anyhow::Result<GgufFile> {
    let Some(path) = path else {
        progress(format!("opening {SHIPPED_NAME}"));
        return shipped();
    };
    progress(format!("opening {}", path.display()));
    GgufFile::open(path).map_err(|error| match &error.problem {
        Problem::Io(cause) if cause.kind() == ErrorKind::PermissionDenied => anyhow!(unreadable::explain(path)),
        _ => error.into(),
    })
}

/// The model that ships with the program.
///
/// # Errors
/// None, unless the program was built wrongly.
pub fn shipped() -> anyhow::Result<GgufFile> {
    Ok(GgufFile::from_bytes(SHIPPED_NAME, SHIPPED)?)
}

/// The settings, else the file's own hints where it has them, else what the family's makers publish.
fn sampling_defaults(file: &GgufFile, config: &Config) -> anyhow::Result<SamplingDefaults> {
    let family = SamplingDefaults::FAMILY;
    let hint = file.get_opt::<f32>("general.sampling.temp")?;
    let temperature = config.temperature.map(|t| t as f32).or(hint);
    let top_p = file.get_opt::<f32>("general.sampling.top_p")?;
    let top_k = file.get_opt::<i64>("general.sampling.top_k")?;
    Ok(SamplingDefaults {
        temperature: temperature.filter(|t| (0.0..=2.0).contains(t)).unwrap_or(family.temperature),
        top_p: top_p.filter(|p| (0.0..=1.0).contains(p)).unwrap_or(family.top_p),
        top_k: top_k.map_or(family.top_k, |k| u32::try_from(k).unwrap_or(0)),
    })
}
