//! Counts what is under way.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How many of something there are; waits until there is none.
#[derive(Debug)]
pub struct Counter(watch::Sender<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    count: usize,
    changed: Instant,
}

/// Counts for one as long as it is kept.
#[derive(Debug)]
pub struct Counted(watch::Sender<State>);

impl Default for Counter {
    fn default() -> Self {
        Self(watch::Sender::new(State { count: 0, changed: Instant::now() }))
    }
}

impl Counter {
    /// One more, until what is returned is dropped.
    #[must_use]
    pub fn enter(&self) -> Counted {
        self.0.send_modify(|state| *state = State { count: state.count + 1, changed: Instant::now() });
        Counted(self.0.clone())
    }

    /// How many there are.
    #[must_use]
    pub fn now(&self) -> usize {
        self.0.borrow().count
    }

    /// For how long there has been none.
    #[must_use]
    pub fn none_for(&self) -> Duration {
        let state = *self.0.borrow();
        if state.count == 0 { state.changed.elapsed() } else { Duration::ZERO }
    }

    /// Returns when there is none.
    pub async fn wait_until_none(&self) {
        let mut state = self.0.subscribe();
        // The sender lives as long as `self`, so the wait can't fail.
        let _none = state.wait_for(|state| state.count == 0).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|state| *state = State { count: state.count - 1, changed: Instant::now() });
    }
}
