//! How much of a prompt goes into a step.

use std::time::Duration;

use crate::step::PAGE_TOKENS;

/// Weight of the newest measurement.
const SMOOTHING: f64 = 0.2;
/// While others write, a step with a prompt chunk may take this many times a step without.
const SLOWDOWN: f64 = 2.5;

/// Learns what steps cost and sizes prompt chunks so that nobody who writes has to wait long.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    chunk: usize,
    goal: Duration,
    /// Seconds of a step without prompt rows.
    decode: Option<f64>,
    /// Seconds that one prompt token adds.
    token: Option<f64>,
}

impl Pace {
    pub(super) fn new(chunk: usize, goal: Duration) -> Self {
        Self { chunk, goal, decode: None, token: None }
    }

    /// Most prompt tokens for the next step, at least one page and at most the configured chunk.
    pub(super) fn chunk(&self, somebody_writes: bool) -> usize {
        if !somebody_writes {
            return self.chunk;
        }
        let decode = self.decode.unwrap_or_default();
        let Some(token) = self.token else { return PAGE_TOKENS };
        let extra = (decode * (SLOWDOWN - 1.0)).min(self.goal.as_secs_f64() - decode);
        let pages = (extra / token / PAGE_TOKENS as f64).floor().max(1.0) as usize;
        (pages * PAGE_TOKENS).min(self.chunk)
    }

    /// Learns from a step.
    pub(super) fn observe(&mut self, took: Duration, prompt_tokens: usize, decode_rows: usize) {
        let took = took.as_secs_f64();
        let learn = |known: &mut Option<f64>, new: f64| {
            *known = Some(known.map_or(new, |old| old + SMOOTHING * (new - old)));
        };
        if prompt_tokens == 0 {
            learn(&mut self.decode, took);
        } else if prompt_tokens >= PAGE_TOKENS / 2 {
            let decode = if decode_rows > 0 { self.decode.unwrap_or_default() } else { 0.0 };
            learn(&mut self.token, (took - decode).max(took * 0.1) / prompt_tokens as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_large_alone_and_keep_the_goal_in_company() {
        let mut pace = Pace::new(2048, Duration::from_millis(80));
        assert_eq!(pace.chunk(false), 2048);
        assert_eq!(pace.chunk(true), 64);
        for _ in 0..50 {
            pace.observe(Duration::from_millis(10), 0, 4);
            pace.observe(Duration::from_millis(110), 1000, 4);
        }
        // 0.1 ms a token; 15 ms more than a plain step's 10 ms are allowed.
        assert_eq!(pace.chunk(true), 128);
        for _ in 0..50 {
            pace.observe(Duration::from_millis(60), 0, 4);
        }
        // The goal of 80 ms leaves 20 ms now.
        assert!(pace.chunk(true) <= 256);
    }
}
