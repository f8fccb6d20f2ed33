//! Loads and unloads models while the daemon runs, one change at a time.
//!
//! A model that fits beside the one that serves is loaded there and takes over at once; requests to the old one end with it. One
//! that fits only in the old one's place is planned first; then the old one's requests have the time of a drain, and what
//! they have not written by then they are told about. Until the new one is ready, and whenever it fails, the old one is back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow};
use hyper::StatusCode;
use openjet_kernels::MemoryPlan;
use openjet_proto::control::{LoadModel, ModelPlan, ModelStatus};
use openjet_proto::events::What;
use tokio::sync::{Mutex, MutexGuard};

use crate::app::App;
use crate::config::Config;
use crate::http::error::ApiError;
use crate::load::{Checked, DoesNotFit, Prepared, told};
use crate::phase::{Phase, Reason};
use crate::serving::Serving;

/// Why a model was not changed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// What kind of refusal it is.
    pub status: StatusCode,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: &'static str,
}

/// The changes of the model.
#[derive(Debug)]
pub struct Change {
    /// The settings that the model was loaded with last. Held while it changes.
    last: Mutex<Arc<Config>>,
    progress: StdMutex<Option<String>>,
    /// A request has it loaded again; others wait.
    waking: AtomicBool,
}

type Last<'a> = MutexGuard<'a, Arc<Config>>;

impl Change {
    /// Nothing is loaded yet; `config` says what will be first.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            last: Mutex::new(Arc::new(config.clone())),
            progress: StdMutex::new(None),
            waking: AtomicBool::new(false),
        }
    }

    /// What is being done to load another model while one serves.
    #[must_use]
    pub fn progress(&self) -> Option<String> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Loads the first model.
    ///
    /// # Errors
    /// Why it can't be loaded; the daemon then can't serve.
    pub async fn first(&self, app: &Arc<App>) -> anyhow::Result<()> {
        let last = self.last.lock().await;
        let result = self.load_alone(app, &last).await;
        if let Err(error) = &result {
            app.set_phase(Phase::Failed(format!("{error:#}")));
        }
        result
    }

    /// Loads another model, or the last one again.
    ///
    /// # Errors
    /// [`Refused`]; the model that served before serves again then.
    pub async fn load(&self, app: &Arc<App>, asked: LoadModel) -> Result<ModelStatus, Refused> {
        let mut last = self.begin(app)?;
        let wanted = Arc::new(settings(app, &last, &asked)?);
        let old = app.phase().loaded().cloned();
        let result = match &old {
            Some(old) => self.change(app, old, &last, &wanted, asked.replace).await,
            None => match self.load_alone(app, &wanted).await {
                Ok(()) => Ok(()),
                Err(error) => {
                    app.set_phase(Phase::Unloaded { on_demand: false });
                    Err(failed(&error))
                }
            },
        };
        self.tell(app, None);
        result?;
        *last = wanted;
        let model = app.phase().loaded().map(|serving| serving.model.clone());
        model.ok_or_else(|| failed(&anyhow!("the model was loaded and is gone again")))
    }

    /// What [`Change::load`] would take, without doing it.
    ///
    /// # Errors
    /// [`Refused`] for a model that can't be run, whatever the memory.
    pub async fn plan(&self, app: &Arc<App>, asked: LoadModel) -> Result<ModelPlan, Refused> {
        let config = settings(app, &*self.begin(app)?, &asked)?;
        let freed = app.phase().loaded().map_or(0, |old| old.gpu_bytes);
        apart(move || plan(&config, freed, asked.replace)).await.map_err(|error| failed(&error))
    }

    /// Unloads the model; its requests have the time of a drain. `on_demand`: the next request loads it again. Returns its
    /// name.
    ///
    /// # Errors
    /// [`Refused`] while another change is under way.
    pub async fn unload(&self, app: &Arc<App>, on_demand: bool) -> Result<Option<String>, Refused> {
        let _last = self.begin(app)?;
        let phase = app.phase();
        let Some(old) = phase.loaded() else {
            app.set_phase(Phase::Unloaded { on_demand });
            return Ok(None);
        };
        if on_demand {
            // Who comes now waits for it to come back.
            app.set_phase(Phase::Unloaded { on_demand });
        } else {
            app.set_phase(Phase::Draining(old.clone(), Reason::Leaving));
        }
        retire(app, old, "the model is being unloaded").await;
        app.set_phase(Phase::Unloaded { on_demand });
        Ok(Some(old.model.name.clone()))
    }

    /// Loads the model again for a request, where it was unloaded for want of use; waits for who does so already.
    ///
    /// # Errors
    /// 503 when it can't be loaded.
    pub async fn wake(&self, app: &Arc<App>) -> Result<(), ApiError> {
        let asleep = |app: &App| matches!(&*app.phase(), Phase::Unloaded { on_demand: true });
        if !asleep(app) && !self.waking.load(Ordering::Acquire) {
            return Ok(());
        }
        let last = self.last.lock().await;
        if !asleep(app) {
            return Ok(());
        }
        tracing::info!("a request has come: loading the model again");
        self.waking.store(true, Ordering::Release);
        let loaded = self.load_alone(app, &last).await;
        self.waking.store(false, Ordering::Release);
        loaded.map_err(|error| {
            app.set_phase(Phase::Unloaded { on_demand: true });
            ApiError::unavailable(format!("the model can't be loaded again: {error:#}"), 10).with_code("load_failed")
        })
    }

    fn begin(&self, app: &App) -> Result<Last<'_>, Refused> {
        let refuse = |message: &str, hint| Refused { status: StatusCode::CONFLICT, message: message.to_owned(), hint };
        if let Phase::Draining(_, Reason::Stopping) | Phase::Failed(_) = &*app.phase() {
            return Err(refuse("the daemon is stopping", "start it again"));
        }
        self.last.try_lock().map_err(|_| {
            refuse("a model is being loaded or unloaded already", "wait for it; `openjetctl status` says how far it is")
        })
    }

    /// Loads with nothing else there, and serves.
    async fn load_alone(&self, app: &Arc<App>, config: &Arc<Config>) -> anyhow::Result<()> {
        let progress = {
            let app = app.clone();
            move |detail: String| {
                app.events.tell(What::Loading { detail: detail.clone() });
                app.set_phase(Phase::Loading(detail));
            }
        };
        progress("starting".to_owned());
        let config = config.clone();
        let serving = apart(move || crate::load::load(&config, &progress)).await?;
        serve(app, serving);
        Ok(())
    }

    async fn change(
        &self,
        app: &Arc<App>,
        old: &Arc<Serving>,
        last: &Arc<Config>,
        wanted: &Arc<Config>,
        replace: bool,
    ) -> Result<(), Refused> {
        match self.beside(app, wanted, replace, old.gpu_bytes).await.map_err(|error| failed(&error))? {
            Some(prepared) => {
                // The folder of conversations is for one engine at a time.
                if let Err(error) = old.engine.release_store().await {
                    tracing::warn!("the old model's conversations are lost: {error}");
                }
                let config = wanted.clone();
                let serving = apart(move || prepared.start(&config)).await.map_err(|error| failed(&error))?;
                serve(app, serving);
                let (app, old) = (app.clone(), old.clone());
                tokio::spawn(async move {
                    old.retire(None, "another model has taken this one's place").await;
                    app.events.tell(What::Unloaded { model: old.model.name.clone() });
                });
                Ok(())
            }
            None => {
                app.set_phase(Phase::Draining(old.clone(), Reason::Leaving));
                retire(app, old, "another model takes this one's place").await;
                let Err(error) = self.load_alone(app, wanted).await else { return Ok(()) };
                tracing::error!("the new model can't be loaded, going back to the old one: {error:#}");
                match self.load_alone(app, last).await {
                    Ok(()) => Err(failed(&error.context("the old model serves again"))),
                    Err(back) => {
                        let both = format!("{error:#}; nor can the old one be loaded again: {back:#}");
                        app.set_phase(Phase::Failed(both.clone()));
                        Err(failed(&anyhow!(both)))
                    }
                }
            }
        }
    }

    /// Loads a model while the old one serves. None where it fits only once the old one's memory, `freed`, is given back, or
    /// where that is asked for.
    async fn beside(
        &self,
        app: &Arc<App>,
        wanted: &Arc<Config>,
        replace: bool,
        freed: usize,
    ) -> anyhow::Result<Option<Prepared>> {
        let (config, app) = (wanted.clone(), app.clone());
        apart(move || {
            let progress = |detail: String| app.change.tell(&app, Some(detail));
            let checked = Checked::read(&config, &progress)?;
            if replace {
                return checked.check(&config, freed).map(|()| None);
            }
            match checked.check(&config, 0) {
                Ok(()) => checked.prepare(&config, &progress).map(Some),
                Err(error) if error.is::<DoesNotFit>() => checked.check(&config, freed).map(|()| None),
                Err(error) => Err(error),
            }
        })
        .await
    }

    fn tell(&self, app: &App, progress: Option<String>) {
        if let Some(detail) = &progress {
            app.events.tell(What::Loading { detail: detail.clone() });
        }
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }
}

/// The settings for what is asked: those of the daemon, and of the last model where nothing is said.
fn settings(app: &App, last: &Config, asked: &LoadModel) -> Result<Config, Refused> {
    let refuse = |message: String, hint| Refused { status: StatusCode::BAD_REQUEST, message, hint };
    let mut config = (*app.config()).clone();
    match asked.model.as_deref() {
        None => (config.model, config.agents, config.ctx) = (last.model.clone(), last.agents, last.ctx),
        Some(name) => config.model = Some(name.into()),
    }
    config.agents = asked.agents.unwrap_or(config.agents);
    config.ctx = asked.ctx.or(config.ctx);
    config.check().map_err(|(_, message)| refuse(message, "choose another value"))?;
    let file = config.model_file().map_err(|message| refuse(message, "name one that is there"))?;
    if let Some(file) = file.as_ref().filter(|file| !file.is_absolute()) {
        return Err(refuse(format!("{} is not an absolute path", file.display()), "send the whole path"));
    }
    config.model = file;
    Ok(config)
}

/// Plans what `config` says: beside what is on the GPU, or in its place, which would free `freed` bytes.
fn plan(config: &Config, freed: usize, replace: bool) -> anyhow::Result<ModelPlan> {
    let checked = Checked::read(config, &|_| ())?;
    let model = checked.facts(config);
    let of = |memory: Option<MemoryPlan>, fits, verdict: String| {
        let available = memory.as_ref().and_then(|plan| plan.available).map(|bytes| bytes as u64);
        let memory = memory.as_ref().map(told);
        ModelPlan { model, memory, available, fits, verdict }
    };
    let beside = if replace { None } else { Some(checked.plan(config, 0)) };
    let in_its_place = match beside {
        Some(Ok(None)) => return Ok(of(None, true, "The CPU runs it, in host memory.".to_owned())),
        Some(Ok(plan)) => {
            return Ok(of(plan, true, "It fits beside what is loaded, which serves until then.".to_owned()));
        }
        Some(Err(error)) if !error.is::<DoesNotFit>() => return Err(error),
        Some(Err(_)) | None => checked.plan(config, freed),
    };
    match in_its_place {
        Ok(plan) => Ok(of(plan, true, "It takes the place of what is loaded, whose requests end first.".to_owned())),
        Err(error) if error.is::<DoesNotFit>() => Ok(of(None, false, format!("{error:#}"))),
        Err(error) => Err(error),
    }
}

/// Lets the old model's requests end, tells the others, and gives its memory back.
async fn retire(app: &Arc<App>, old: &Arc<Serving>, reason: &str) {
    tracing::info!(model = old.model.name, requests = old.requests.now(), "{reason}");
    old.retire(Some(Duration::from_secs(app.config().drain_s)), reason).await;
    app.events.tell(What::Unloaded { model: old.model.name.clone() });
}

fn serve(app: &Arc<App>, serving: Serving) {
    let model = serving.model.name.clone();
    app.set_phase(Phase::Ready(Arc::new(serving)));
    app.events.tell(What::Loaded { model });
}

fn failed(error: &anyhow::Error) -> Refused {
    let hint = if error.is::<DoesNotFit>() {
        "change what the plan names, or `openjetctl plan` another file"
    } else {
        "`openjetctl inspect FILE` says what is in the file"
    };
    Refused { status: StatusCode::CONFLICT, message: format!("{error:#}"), hint }
}

/// Runs what takes its time on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await.context("the loading thread has ended")?
}
