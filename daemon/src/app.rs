//! What all requests share: settings, the loaded model, where the daemon stands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use openjet_proto::Health;
use openjet_proto::control::DaemonStatus;
use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::api::responses::store::ResponseStore;
use crate::change::Change;
use crate::config::Config;
use crate::counter::{Counted, Counter};
use crate::events::Events;
use crate::http::admin::Admin;
use crate::http::body::BodyLimits;
use crate::http::error::ApiError;
use crate::http::keys::Keys;
use crate::metrics::Metrics;
use crate::page::feed::Feed;
use crate::phase::Phase;
use crate::requests::RequestLog;
use crate::serving::{Cut, Serving};
use crate::systemd;

/// The daemon's shared state.
#[derive(Debug)]
pub struct App {
    /// What open pages are told.
    pub feed: Feed,
    /// Who may change things over HTTP.
    pub admin: Admin,
    /// The latest requests.
    pub requests_over: Arc<RequestLog>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What happens, for whoever listens.
    pub events: Events,
    /// Answers that later requests may go on from.
    pub responses: ResponseStore,
    /// Requests in the daemon.
    pub requests: Counter,
    /// Loads and unloads models, one change at a time.
    pub change: Change,
    config: ArcSwap<Config>,
    keys: ArcSwap<Keys>,
    phase: ArcSwap<Phase>,
    cut: watch::Sender<Cut>,
    started: Instant,
    listen: String,
}

/// Keeps a request counted for as long as it lives.
pub type RequestGuard = [Counted; 2];

impl App {
    /// A daemon that is loading; `listen` is the address of its HTTP API.
    ///
    /// # Errors
    /// When the admin key can't be used or the metrics can't be made.
    pub fn new(config: Config, listen: String, keys: Keys) -> anyhow::Result<Self> {
        Ok(Self {
            change: Change::new(&config),
            admin: Admin::load(&config)?,
            requests_over: Arc::default(),
            keys: ArcSwap::from_pointee(keys),
            metrics: Arc::new(Metrics::new()?),
            config: ArcSwap::from_pointee(config),
            events: Events::default(),
            feed: Feed::new(),
            responses: ResponseStore::default(),
            requests: Counter::default(),
            phase: ArcSwap::from_pointee(Phase::Loading("starting".to_owned())),
            cut: watch::Sender::new(None),
            started: Instant::now(),
            listen,
        })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// Who may ask.
    #[must_use]
    pub fn keys(&self) -> Arc<Keys> {
        self.keys.load_full()
    }

    /// Takes other settings and keys for all requests from now on.
    pub fn set_config(&self, config: Config, keys: Keys) {
        self.keys.store(Arc::new(keys));
        self.config.store(Arc::new(config));
    }

    /// Goes on to another phase.
    pub fn set_phase(&self, phase: Phase) {
        systemd::notify(&[NotifyState::Status(&phase.words())]);
        self.phase.store(Arc::new(phase));
    }

    /// Where the daemon stands.
    #[must_use]
    pub fn phase(&self) -> Arc<Phase> {
        self.phase.load_full()
    }

    /// The loaded model, for a request that wants to generate or to know it.
    ///
    /// # Errors
    /// 503 with the state when there is none, or when no new requests are taken.
    pub fn serving(&self) -> Result<Arc<Serving>, ApiError> {
        self.phase.load().serving()
    }

    /// Where the daemon stands, the engine's own word included.
    #[must_use]
    pub fn health(&self) -> Health {
        self.phase.load().health()
    }

    /// Everything that the control socket tells.
    #[must_use]
    pub fn status(&self) -> DaemonStatus {
        let phase = self.phase();
        let serving = phase.loaded();
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            listen: self.listen.clone(),
            health: phase.health(),
            requests: self.requests.now(),
            model: serving.map(|serving| serving.model.clone()),
            memory: serving.and_then(|serving| serving.memory.clone()),
            tuning: serving.and_then(|serving| serving.tuning.clone()),
            device: serving.and_then(|serving| Some(serving.card.as_ref()?.status())),
            change: self.change.progress(),
            engine: serving.map(|serving| (*serving.engine.status()).clone()),
        }
    }

    /// Counts a request of a model until the guard is dropped.
    #[must_use]
    pub fn count_request(&self, serving: &Serving) -> RequestGuard {
        [self.requests.enter(), serving.requests.enter()]
    }

    /// Ends all running requests with an error.
    pub fn cut_requests(&self) {
        self.cut.send_replace(Some("the daemon is stopping".into()));
    }

    /// Tells why running requests must end, once they must.
    #[must_use]
    pub fn cut(&self) -> watch::Receiver<Cut> {
        self.cut.subscribe()
    }

    /// What request bodies may cost.
    #[must_use]
    pub fn body_limits(&self) -> BodyLimits {
        let config = self.config();
        BodyLimits { bytes: config.body_limit_mib << 20, time: Duration::from_secs(config.body_timeout_s) }
    }
}
