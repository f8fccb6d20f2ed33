//! How fast something happens right now.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How far back "now" reaches.
const WINDOW: Duration = Duration::from_secs(2);

/// Counts of the last two seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    marks: VecDeque<(Instant, usize)>,
    /// Of all marks but the oldest, which only says since when is counted.
    sum: usize,
}

impl Recent {
    /// Adds `count` at `now`, not before the calls before it.
    pub(super) fn add(&mut self, now: Instant, count: usize) {
        if !self.marks.is_empty() {
            self.sum += count;
        }
        self.marks.push_back((now, count));
        while self.marks.get(1).is_some_and(|(at, _)| now - *at > WINDOW) {
            self.marks.pop_front();
            self.sum -= self.marks.front().map_or(0, |(_, count)| *count);
        }
    }

    /// How many a second at `now`; 0 when nothing was added for as long as the window.
    pub(super) fn per_second(&self, now: Instant) -> f64 {
        let (Some((first, _)), Some((last, _))) = (self.marks.front(), self.marks.back()) else { return 0.0 };
        let seconds = now.duration_since(*first).as_secs_f64();
        if now.duration_since(*last) > WINDOW || seconds <= 0.0 { 0.0 } else { self.sum as f64 / seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_per_second_follow_a_change_within_the_window() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut recent = Recent::default();
        assert_eq!(recent.per_second(at(0)), 0.0);
        for i in 0..=100 {
            recent.add(at(i * 100), 5);
        }
        assert!((recent.per_second(at(10_000)) - 50.0).abs() < 3.0, "{}", recent.per_second(at(10_000)));
        for i in 1..=30 {
            recent.add(at(10_000 + i * 100), 1);
        }
        assert!((recent.per_second(at(13_000)) - 10.0).abs() < 1.0, "{}", recent.per_second(at(13_000)));
        assert!(recent.per_second(at(14_000)) < recent.per_second(at(13_000)));
        assert_eq!(recent.per_second(at(16_000)), 0.0);
    }
}
