//! Speeds of the last minute.

use openjet_proto::EngineStatus;
use std::collections::VecDeque;

/// Points that fill a picture: one minute.
pub(crate) const POINTS: usize = 300;

/// Tokens per second, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Of all agents together.
    pub(crate) total: VecDeque<f64>,
    /// Of each agent.
    pub(crate) agents: Vec<VecDeque<f64>>,
}

impl History {
    /// Adds what the engine does now; nothing while there is none.
    pub(crate) fn add(&mut self, engine: Option<&EngineStatus>) {
        let agents = engine.map_or(&[][..], |engine| &engine.agents);
        self.agents.resize(agents.len(), VecDeque::new());
        for (past, agent) in self.agents.iter_mut().zip(agents) {
            push(past, agent.tokens_per_second_now);
        }
        push(&mut self.total, total(engine));
    }
}

/// Tokens per second of all agents together.
pub(crate) fn total(engine: Option<&EngineStatus>) -> f64 {
    engine.map_or(0.0, |engine| engine.agents.iter().map(|agent| agent.tokens_per_second_now).sum())
}

fn push(past: &mut VecDeque<f64>, value: f64) {
    if past.len() == POINTS {
        past.pop_front();
    }
    past.push_back(value);
}
