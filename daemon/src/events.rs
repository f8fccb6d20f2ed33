//! Tells whoever listens what happens in the daemon.

use std::time::{SystemTime, UNIX_EPOCH};

use openjet_proto::events::{Event, What};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Events that a reader may be behind before it misses some.
const BACKLOG: usize = 1024;

/// Where events are told; clones tell the same readers.
#[derive(Clone, Debug)]
pub struct Events(broadcast::Sender<Event>);

/// Somebody who listens.
#[derive(Debug)]
pub struct Reader(broadcast::Receiver<Event>);

impl Default for Events {
    fn default() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }
}

impl Events {
    /// Tells what has just happened.
    pub fn tell(&self, what: What) {
        // Without readers there is nobody to tell.
        let _unheard = self.0.send(event(what));
    }

    /// Hears everything from now on.
    #[must_use]
    pub fn listen(&self) -> Reader {
        Reader(self.0.subscribe())
    }
}

impl Reader {
    /// The next event; `None` when there will be no more. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(events)) => Some(event(What::Missed { events })),
            Err(RecvError::Closed) => None,
        }
    }
}

fn event(what: What) -> Event {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Event { at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX), what }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn who_is_too_slow_hears_how_much_was_missed() {
        let events = Events::default();
        events.tell(What::Drain { on: true });
        let mut reader = events.listen();
        for _ in 0..BACKLOG + 3 {
            events.tell(What::Drain { on: false });
        }
        assert_eq!(reader.next().await.unwrap().what, What::Missed { events: 3 });
        assert_eq!(reader.next().await.unwrap().what, What::Drain { on: false });
        drop(events);
        for _ in 1..BACKLOG {
            assert!(reader.next().await.is_some());
        }
        assert!(reader.next().await.is_none());
    }
}
