//! Loads the model and starts the engine on a backend.

mod gpu;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use openjet_engine::backend::cpu::CpuBackend;
use openjet_engine::backend::{Backend, BackendOptions, DEFAULT_AGENTS_MAX, DEFAULT_POOL};
use openjet_engine::constraint::Grammars;
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::gguf::{GgufFile, Problem};
use openjet_engine::model::Model;
use openjet_engine::step::PAGE_TOKENS;
use openjet_engine::text::{ChatTemplate, Tokenizer, TokenizerSpec};
use openjet_kernels::device::{Device, Selector};
use openjet_proto::control::ModelStatus;

use crate::api::head::now;
use crate::api::sampling::SamplingDefaults;
use crate::config::{BackendChoice, Config};
use crate::kept::Hashing;
use crate::serving::Serving;
use crate::unreadable;

/// The model that ships with the program.
static SHIPPED: &[u8] = include_bytes!("../../assets/openjet-tiny-Q4_K_M.gguf");

/// Its name in messages.
const SHIPPED_NAME: &str = "the model that ships with openjetd";

/// A file of more bytes is not run on the CPU unless that is asked for.
const LARGE_MODEL: u64 = 2 << 30;

/// Most agents on the CPU without a setting: each takes little memory there.
const CPU_AGENTS: usize = 64;

/// Loads what `config` says; `progress` is told what is being done.
///
/// # Errors
/// What is wrong with the file or the settings, with the fix where there is one.
pub fn load(config: &Config, progress: &dyn Fn(String)) -> anyhow::Result<Serving> {
    let started = std::time::Instant::now();
    let file = Arc::new(open(config.model.as_deref(), progress)?);
    let hashing = Hashing::start(config, &file);
    let bytes = file.bytes().len() as u64;
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
    let (name, model_context, vocab) = (model.config.name.clone(), model.config.context, model.config.vocab);
    let draft_head = model.config.has_draft_head;
    let pool = config.ctx.unwrap_or_else(|| model_context.min(DEFAULT_POOL));
    let context = pool.min(model_context);
    let options = BackendOptions {
        slots: config.agents.max(config.agents_max.unwrap_or(DEFAULT_AGENTS_MAX)),
        pages: pool.div_ceil(PAGE_TOKENS),
        kv: config.kv,
        draft_max: config.draft,
    };
    progress(format!("starting the backend for {name}"));
    let backend = backend(config, model, options, bytes, progress)?;
    let device = backend.describe();
    let engine_config = EngineConfig {
        agents: config.agents,
        draft: config.draft,
        queue: config.queue,
        host_cache: config.host_cache_mib << 20,
        store: hashing.and_then(|hashing| hashing.options(config)),
        show_text: config.shows_text().then(|| tokenizer.clone()),
        ..EngineConfig::new(context, vocab, tokenizer.end_tokens().to_vec())
    };
    // The thread ends with its last handle.
    let (engine, _thread) = Engine::start(backend, engine_config).context("the engine could not be started")?;
    let shown = config.model.as_deref().map_or(SHIPPED_NAME.to_owned(), |path| path.display().to_string());
    tracing::info!(
        "ready after {:.2} s: model {name} ({shown}), {device}, {} agents share {pool} tokens, {context} at most for one",
        started.elapsed().as_secs_f64(),
        config.agents,
    );
    Ok(Serving {
        engine,
        grammars: Grammars::new(tokenizer.clone()),
        tokenizer,
        template,
        model: ModelStatus {
            name,
            file: config.model.as_ref().map(|path| path.display().to_string()),
            bytes,
            context: model_context,
            vocab,
            draft_head,
        },
        context,
        defaults: sampling_defaults(&file)?,
        loaded_at: now(),
    })
}

fn open(path: Option<&Path>, progress: &dyn Fn(String)) -> anyhow::Result<GgufFile> {
    match path {
        Some(path) => {
            progress(format!("opening {}", path.display()));
            GgufFile::open(path).map_err(|error| match &error.problem {
                Problem::Io(cause) if cause.kind() == ErrorKind::PermissionDenied => anyhow!(unreadable::explain(path)),
                _ => error.into(),
            })
        }
        None => {
            progress(format!("opening {SHIPPED_NAME}"));
            Ok(GgufFile::from_bytes(SHIPPED_NAME, SHIPPED)?)
        }
    }
}

fn backend(
    config: &Config,
    model: Arc<Model>,
    options: BackendOptions,
    bytes: u64,
    progress: &dyn Fn(String),
) -> anyhow::Result<Box<dyn Backend>> {
    let on_cpu = BackendOptions { slots: config.agents.max(config.agents_max.unwrap_or(CPU_AGENTS)), ..options };
    if config.backend == BackendChoice::Cpu {
        return Ok(Box::new(CpuBackend::new(model, on_cpu)?));
    }
    let selector = config.gpu.as_deref().unwrap_or_default();
    let selector = if selector.is_empty() { Ok(Selector::First) } else { selector.parse() };
    match Device::open(&selector.map_err(|e| anyhow!("`gpu`: {e}"))?) {
        Ok(device) => Ok(Box::new(gpu::load(config, device, model, options, progress)?)),
        // A GPU that was asked for by name must be there.
        Err(problem) if config.backend == BackendChoice::Cuda || config.gpu.is_some() => Err(problem.into()),
        Err(problem) if bytes > LARGE_MODEL => bail!(
            "{problem}; a model of {:.1} GB is very slow on a CPU; to run it there all the same, start with --backend cpu",
            bytes as f64 / 1e9
        ),
        Err(problem) => {
            tracing::info!("running on the CPU: {problem}");
            Ok(Box::new(CpuBackend::new(model, on_cpu)?))
        }
    }
}

/// The file's own hints where it has them, else what the family's makers publish.
fn sampling_defaults(file: &GgufFile) -> anyhow::Result<SamplingDefaults> {
    let family = SamplingDefaults::FAMILY;
    let temperature = file.get_opt::<f32>("general.sampling.temp")?;
    let top_p = file.get_opt::<f32>("general.sampling.top_p")?;
    let top_k = file.get_opt::<i64>("general.sampling.top_k")?;
    Ok(SamplingDefaults {
        temperature: temperature.filter(|t| (0.0..=2.0).contains(t)).unwrap_or(family.temperature),
        top_p: top_p.filter(|p| (0.0..=1.0).contains(p)).unwrap_or(family.top_p),
        top_k: top_k.map_or(family.top_k, |k| u32::try_from(k).unwrap_or(0)),
    })
}
