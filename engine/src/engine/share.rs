//! Whose pages are whose.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use openjet_proto::PoolShare;

use super::worker::Worker;

/// Counting takes a look at every page in use: no more often than people can see.
const EVERY: Duration = Duration::from_millis(150);

/// The pool's pages by who uses them, as of a moment ago.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolMap {
    shares: Vec<PoolShare>,
    counted: Option<Instant>,
}

impl Worker {
    /// The pages in use by their users, each set of users once.
    pub(super) fn pool_map(&mut self) -> Vec<PoolShare> {
        let now = Instant::now();
        if self.pool.counted.is_none_or(|at| now - at >= EVERY) {
            self.pool = PoolMap { shares: self.count_pages(), counted: Some(now) };
        }
        self.pool.shares.clone()
    }

    fn count_pages(&self) -> Vec<PoolShare> {
        let mut shares: BTreeMap<(Vec<usize>, bool), usize> = BTreeMap::new();
        let mut shared = Vec::new();
        let mut counted = 0;
        for agent in &self.agents {
            let own = agent.pages.iter().filter(|&&page| self.pages.users(page) == 1).count();
            if own > 0 {
                shares.insert((vec![agent.slot], false), own);
                counted += own;
            }
            shared.extend(agent.pages.iter().filter(|&&p| self.pages.users(p) > 1).map(|&page| (page, agent.slot)));
        }
        shared.sort_unstable();
        for users in shared.chunk_by(|a, b| a.0 == b.0) {
            let agents: Vec<usize> = users.iter().map(|(_, agent)| *agent).collect();
            let kept = self.pages.users(users[0].0) as usize > agents.len();
            *shares.entry((agents, kept)).or_default() += 1;
            counted += 1;
        }
        let kept = (self.pages.total() - self.pages.free()).saturating_sub(counted);
        if kept > 0 {
            shares.insert((Vec::new(), true), kept);
        }
        shares.into_iter().map(|((agents, kept), pages)| PoolShare { agents, kept, pages }).collect()
    }
}
