//! The engine's numbers as metrics.

use openjet_proto::control::DaemonStatus;
use openjet_proto::{AgentState, Health};
use prometheus::{Gauge, GaugeVec, IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

use super::add;

/// Names of the states, as labels.
const STATES: [(AgentState, &str); 4] = [
    (AgentState::Idle, "idle"),
    (AgentState::Sharing, "sharing"),
    (AgentState::Prefill, "prefill"),
    (AgentState::Decode, "decode"),
];

/// Metrics that are set from the engine's status at each scrape.
#[derive(Debug)]
pub(super) struct EngineMetrics {
    ready: IntGauge,
    uptime: Gauge,
    requests: IntGauge,
    queued: IntGauge,
    agents: IntGauge,
    pages: IntGaugeVec,
    steps: IntCounter,
    generated: IntCounter,
    prompt_computed: IntCounter,
    prompt_cached: IntCounter,
    cancelled: IntCounter,
    state: IntGaugeVec,
    context: IntGaugeVec,
    agent_pages: IntGaugeVec,
    speed: GaugeVec,
    /// The engine's own counts at the last scrape.
    last: [u64; 5],
}

impl EngineMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| add(registry, IntGauge::new(name, help)?);
        let gauges =
            |name: &str, help: &str, labels: &[&str]| add(registry, IntGaugeVec::new(Opts::new(name, help), labels)?);
        let count = |name: &str, help: &str| add(registry, IntCounter::new(name, help)?);
        let speed = Opts::new("openjet_agent_tokens_per_second", "Speed of an agent's current or last answer.");
        Ok(Self {
            ready: gauge("openjet_ready", "1 when requests are served.")?,
            uptime: add(registry, Gauge::new("openjet_uptime_seconds", "Since the daemon started.")?)?,
            requests: gauge("openjet_requests_in_flight", "Requests in the daemon, waiting ones too.")?,
            queued: gauge("openjet_requests_queued", "Requests that wait for an agent.")?,
            agents: gauge("openjet_agents", "Agents.")?,
            pages: gauges("openjet_pages", "Pages of the key-value pool by use.", &["use"])?,
            steps: count("openjet_steps_total", "Steps of the engine.")?,
            generated: count("openjet_generated_tokens_total", "Tokens generated.")?,
            prompt_computed: count("openjet_prompt_tokens_computed_total", "Prompt tokens computed.")?,
            prompt_cached: count("openjet_prompt_tokens_cached_total", "Prompt tokens that were not computed again.")?,
            cancelled: count("openjet_requests_cancelled_total", "Requests whose client went away.")?,
            state: gauges("openjet_agent_state", "1 for what an agent is doing.", &["agent", "state"])?,
            context: gauges("openjet_agent_context_tokens", "Tokens of an agent's conversation.", &["agent"])?,
            agent_pages: gauges("openjet_agent_pages", "Pages of an agent's conversation.", &["agent"])?,
            speed: add(registry, GaugeVec::new(speed, &["agent"])?)?,
            last: [0; 5],
        })
    }

    /// Takes the numbers of `status`.
    pub(super) fn read(&mut self, status: &DaemonStatus) {
        self.ready.set(i64::from(status.health == Health::Ready));
        self.uptime.set(status.uptime_s);
        self.requests.set(status.requests as i64);
        self.state.reset();
        self.context.reset();
        self.agent_pages.reset();
        self.speed.reset();
        let Some(engine) = &status.engine else { return };
        self.queued.set(engine.queued as i64);
        self.agents.set(engine.agents.len() as i64);
        self.pages.with_label_values(&["free"]).set(engine.pages_free as i64);
        self.pages.with_label_values(&["used"]).set(engine.pages_total as i64 - engine.pages_free as i64);
        let counters = [
            (&self.steps, engine.steps),
            (&self.generated, engine.tokens_generated),
            (&self.prompt_computed, engine.prompt_tokens_computed),
            (&self.prompt_cached, engine.prompt_tokens_cached),
            (&self.cancelled, engine.requests_cancelled),
        ];
        for ((counter, now), last) in counters.into_iter().zip(&mut self.last) {
            // Less than before: another model was loaded, and its engine counts from 0.
            counter.inc_by(now.checked_sub(*last).unwrap_or(now));
            *last = now;
        }
        for agent in &engine.agents {
            let id = agent.id.to_string();
            for (state, name) in STATES {
                self.state.with_label_values(&[id.as_str(), name]).set(i64::from(agent.state == state));
            }
            self.context.with_label_values(&[&id]).set(agent.context_tokens as i64);
            self.agent_pages.with_label_values(&[&id]).set(agent.pages as i64);
            self.speed.with_label_values(&[&id]).set(agent.tokens_per_second);
        }
    }
}
