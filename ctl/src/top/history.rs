//! The last minute's speeds, for the little curves.

use std::collections::VecDeque;

use openjet_proto::control::DaemonStatus;

/// Looks that are remembered.
const LOOKS: usize = 240;

/// Speeds at the last looks, the oldest first: of each agent, and of all together.
#[derive(Debug, Default)]
pub(super) struct History {
    agents: Vec<VecDeque<u64>>,
    all: VecDeque<u64>,
}

impl History {
    /// Notes the speeds of now. An idle agent has none.
    pub(super) fn add(&mut self, status: &DaemonStatus) {
        let agents = status.engine.as_ref().map(|engine| &engine.agents[..]).unwrap_or_default();
        self.agents.resize_with(agents.len(), VecDeque::new);
        let mut sum = 0.0;
        for (agent, past) in agents.iter().zip(&mut self.agents) {
            sum += agent.tokens_per_second_now;
            push(past, agent.tokens_per_second_now);
        }
        push(&mut self.all, sum);
    }

    /// The last `width` speeds of an agent.
    pub(super) fn of(&self, agent: usize, width: usize) -> Vec<u64> {
        self.agents.get(agent).map(|past| last(past, width)).unwrap_or_default()
    }

    /// The last `width` speeds of all together.
    pub(super) fn of_all(&self, width: usize) -> Vec<u64> {
        last(&self.all, width)
    }
}

fn push(past: &mut VecDeque<u64>, speed: f64) {
    if past.len() == LOOKS {
        past.pop_front();
    }
    past.push_back(speed.round() as u64);
}

fn last(past: &VecDeque<u64>, width: usize) -> Vec<u64> {
    past.iter().skip(past.len().saturating_sub(width)).copied().collect()
}
