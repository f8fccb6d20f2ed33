//! What all requests share: settings, the loaded model, where the daemon stands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use openjet_proto::Health;
use openjet_proto::control::DaemonStatus;
use tokio::sync::watch;

use crate::api::responses::store::ResponseStore;
use crate::config::Config;
use crate::http::body::BodyLimits;
use crate::http::error::ApiError;
use crate::http::keys::Keys;
use crate::metrics::Metrics;
use crate::page::feed::Feed;
use crate::serving::Serving;

/// Seconds after which a refused client may come back while the model is being loaded.
const LOADING_RETRY_S: u64 = 2;

/// The daemon's shared state.
#[derive(Debug)]
pub struct App {
    /// The settings.
    pub config: Config,
    /// What open pages are told.
    pub feed: Feed,
    /// Who may ask.
    pub keys: Keys,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Answers that later requests may go on from.
    pub responses: ResponseStore,
    phase: ArcSwap<Phase>,
    requests: watch::Sender<usize>,
    cut: watch::Sender<bool>,
    started: Instant,
    listen: String,
}

/// Where the daemon stands.
#[derive(Clone, Debug)]
pub enum Phase {
    /// The model is being loaded; what is being done.
    Loading(String),
    /// Requests are served.
    Ready(Arc<Serving>),
    /// Running requests end, new ones are refused.
    Draining(Arc<Serving>),
    /// It can't serve; why.
    Failed(String),
}

/// Counts a request for as long as it is kept.
#[derive(Debug)]
pub struct RequestGuard(watch::Sender<usize>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl App {
    /// A daemon that is loading; `listen` is the address of its HTTP API.
    ///
    /// # Errors
    /// When the metrics can't be made.
    pub fn new(config: Config, listen: String, keys: Keys) -> anyhow::Result<Self> {
        Ok(Self {
            keys,
            metrics: Arc::new(Metrics::new()?),
            config,
            feed: Feed::new(),
            responses: ResponseStore::default(),
            phase: ArcSwap::from_pointee(Phase::Loading("starting".to_owned())),
            requests: watch::Sender::new(0),
            cut: watch::Sender::new(false),
            started: Instant::now(),
            listen,
        })
    }

    /// Goes on to another phase.
    pub fn set_phase(&self, phase: Phase) {
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
        match &**self.phase.load() {
            Phase::Ready(serving) => Ok(serving.clone()),
            Phase::Loading(detail) => {
                Err(ApiError::unavailable(format!("the model is being loaded ({detail})"), LOADING_RETRY_S)
                    .with_code("loading"))
            }
            Phase::Draining(_) => {
                Err(ApiError::unavailable("the daemon is stopping; no new requests are taken", self.config.drain_s)
                    .with_code("draining"))
            }
            Phase::Failed(reason) => {
                Err(ApiError::unavailable(format!("the engine has failed: {reason}"), 10).with_code("failed"))
            }
        }
    }

    /// Where the daemon stands, the engine's own word included.
    #[must_use]
    pub fn health(&self) -> Health {
        match &**self.phase.load() {
            Phase::Loading(detail) => Health::Loading { detail: detail.clone() },
            Phase::Ready(serving) => serving.engine.status().health.clone(),
            Phase::Draining(_) => Health::Draining,
            Phase::Failed(reason) => Health::Failed { reason: reason.clone() },
        }
    }

    /// Everything that the control socket tells.
    #[must_use]
    pub fn status(&self) -> DaemonStatus {
        let serving = match &**self.phase.load() {
            Phase::Ready(serving) | Phase::Draining(serving) => Some(serving.clone()),
            Phase::Loading(_) | Phase::Failed(_) => None,
        };
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            listen: self.listen.clone(),
            health: self.health(),
            requests: *self.requests.borrow(),
            model: serving.as_ref().map(|serving| serving.model.clone()),
            engine: serving.map(|serving| (*serving.engine.status()).clone()),
        }
    }

    /// Counts a request until the guard is dropped.
    #[must_use]
    pub fn count_request(&self) -> RequestGuard {
        self.requests.send_modify(|n| *n += 1);
        RequestGuard(self.requests.clone())
    }

    /// Returns when no request is left.
    pub async fn wait_until_idle(&self) {
        // The sender lives as long as `self`, so the wait can't fail.
        let mut requests = self.requests.subscribe();
        let _idle = requests.wait_for(|n| *n == 0).await;
    }

    /// Ends all running requests with an error.
    pub fn cut_requests(&self) {
        self.cut.send_replace(true);
    }

    /// Turns true when running requests must end.
    #[must_use]
    pub fn cut(&self) -> watch::Receiver<bool> {
        self.cut.subscribe()
    }

    /// What request bodies may cost.
    #[must_use]
    pub fn body_limits(&self) -> BodyLimits {
        BodyLimits { bytes: self.config.body_limit_mib << 20, time: Duration::from_secs(self.config.body_timeout_s) }
    }
}
