//! `/metrics`: what Prometheus reads. Times and ends are counted as they happen; the engine's own numbers are read at each
//! scrape.

mod engine;
mod samples;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use openjet_proto::control::MetricSample;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, TextEncoder};

use self::engine::EngineMetrics;
use crate::api::usage::Usage;
use crate::app::App;
use crate::http::body::{Body, full};
use crate::http::error::ApiError;

/// Seconds, for waits of a request.
const WAITS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Seconds, for gaps between tokens.
const GAPS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12];

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    drafts: IntCounter,
    drafts_accepted: IntCounter,
    /// By agent: waits, prompt tokens, those of them not computed again, generated tokens, requests.
    first_token: HistogramVec,
    gap: HistogramVec,
    queue: HistogramVec,
    prompt_tokens: IntCounterVec,
    cached_tokens: IntCounterVec,
    generated_tokens: IntCounterVec,
    agent_requests: IntCounterVec,
    engine: Mutex<EngineMetrics>,
}

impl Metrics {
    /// All at zero.
    ///
    /// # Errors
    /// When two metrics have one name, which is a mistake in this file.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let by_agent = |name: &str, help: &str| add(&registry, IntCounterVec::new(Opts::new(name, help), &["agent"])?);
        let count = |name: &str, help: &str| add(&registry, IntCounter::new(name, help)?);
        let seconds = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            add(&registry, HistogramVec::new(options, &["agent"])?)
        };
        let requests = Opts::new("openjet_requests_total", "Requests by how they ended.");
        Ok(Self {
            requests: add(&registry, IntCounterVec::new(requests, &["finish"])?)?,
            first_token: seconds(
                "openjet_first_token_seconds",
                "From the arrival of a request to its first token.",
                WAITS,
            )?,
            gap: seconds("openjet_inter_token_seconds", "Between the steps that brought tokens of one request.", GAPS)?,
            queue: seconds("openjet_queue_seconds", "From the arrival of a request to an agent.", WAITS)?,
            drafts: count("openjet_draft_tokens_total", "Drafted tokens that were verified.")?,
            drafts_accepted: count("openjet_draft_tokens_accepted_total", "Drafted tokens that were accepted.")?,
            prompt_tokens: by_agent("openjet_agent_prompt_tokens_total", "Prompt tokens by agent.")?,
            cached_tokens: by_agent(
                "openjet_agent_prompt_tokens_cached_total",
                "Prompt tokens that were not computed again, by agent.",
            )?,
            generated_tokens: by_agent("openjet_agent_generated_tokens_total", "Generated tokens by agent.")?,
            agent_requests: by_agent("openjet_agent_requests_total", "Requests that an agent took.")?,
            engine: Mutex::new(EngineMetrics::new(&registry)?),
            registry,
        })
    }

    /// An agent took a request.
    pub(crate) fn started(&self, agent: usize, queued: Duration, prompt: usize, cached: usize) {
        let agent = &[agent.to_string()];
        self.queue.with_label_values(agent).observe(queued.as_secs_f64());
        self.agent_requests.with_label_values(agent).inc();
        self.prompt_tokens.with_label_values(agent).inc_by(prompt as u64);
        self.cached_tokens.with_label_values(agent).inc_by(cached as u64);
    }

    /// A step brought `tokens` of a request: its first ones, `waited` after its arrival, or more, `waited` after the last.
    pub(crate) fn tokens(&self, agent: usize, tokens: usize, first: bool, waited: Duration) {
        let histogram = if first { &self.first_token } else { &self.gap };
        let agent = &[agent.to_string()];
        histogram.with_label_values(agent).observe(waited.as_secs_f64());
        self.generated_tokens.with_label_values(agent).inc_by(tokens as u64);
    }

    /// A request is over.
    pub(crate) fn ended(&self, finish: &str, usage: &Usage) {
        self.requests.with_label_values(&[finish]).inc();
        self.drafts.inc_by(usage.drafts.0 as u64);
        self.drafts_accepted.inc_by(usage.drafts.1 as u64);
    }

    /// All of it, as of now.
    fn gather(&self, app: &App) -> Vec<MetricFamily> {
        // Two scrapes at once would see each other's half.
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.read(&app.status());
        self.registry.gather()
    }

    /// All of it as text.
    fn encode(&self, app: &App) -> prometheus::Result<Vec<u8>> {
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.gather(app), &mut out)?;
        Ok(out)
    }

    /// All of it, number by number.
    #[must_use]
    pub fn samples(&self, app: &App) -> Vec<MetricSample> {
        self.gather(app).iter().flat_map(samples::of).collect()
    }
}

/// Adds a metric to the registry.
fn add<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// The response to a scrape.
///
/// # Errors
/// 500 when the numbers can't be written down.
pub fn scrape(app: &App) -> Result<Response<Body>, ApiError> {
    let text = app.metrics.encode(app).map_err(|error| ApiError::internal(format!("the metrics: {error}")))?;
    let mut response = Response::new(full(text));
    *response.status_mut() = StatusCode::OK;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}
