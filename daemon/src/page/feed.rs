//! What open pages are told: a task that looks at the daemon a few times a second, while anybody reads, and writes what has
//! changed once for all readers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use openjet_proto::live::{Live, ToPage};
use openjet_proto::patch::Patch;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use crate::app::App;

/// Time between messages.
const PERIOD: Duration = Duration::from_millis(200);

/// The latest message, for any number of readers.
#[derive(Debug)]
pub struct Feed(watch::Sender<Option<Arc<Frame>>>);

/// One message: as a change, and as a snapshot for who has missed the one before.
#[derive(Debug)]
pub struct Frame {
    /// Its number.
    pub number: u64,
    /// What has changed; none where there was nothing before it.
    change: Option<Utf8Bytes>,
    state: Value,
    snapshot: OnceLock<Utf8Bytes>,
}

impl Frame {
    /// The message after that with the number `before`, if that was seen.
    #[must_use]
    pub fn after(&self, before: Option<u64>) -> Utf8Bytes {
        match &self.change {
            Some(change) if before.is_some_and(|before| before + 1 == self.number) => change.clone(),
            _ => {
                let write = || json!(ToPage::Snapshot { number: self.number, state: self.state.clone() });
                self.snapshot.get_or_init(|| write().to_string().into()).clone()
            }
        }
    }
}

impl Feed {
    /// A feed that has said nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// A place among the readers.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Frame>>> {
        self.0.subscribe()
    }

    /// How many read.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.0.receiver_count()
    }

    /// Writes messages for as long as somebody reads.
    pub async fn run(app: Arc<App>) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut number = 0;
        loop {
            ticks.tick().await;
            let feed = &app.feed.0;
            if feed.receiver_count() == 0 {
                // Nobody has seen the last one.
                feed.send_replace(None);
                continue;
            }
            number += 1;
            let last = feed.borrow().clone();
            match frame(number, last.as_deref(), &live(&app)) {
                Ok(frame) => drop(feed.send_replace(Some(Arc::new(frame)))),
                Err(error) => tracing::error!(%error, "a message for the page could not be written"),
            }
        }
    }
}

impl Default for Feed {
    fn default() -> Self {
        Self::new()
    }
}

/// Everything that pages show.
fn live(app: &App) -> Live {
    Live { daemon: app.status(), requests: app.requests_over.list(), actions: app.admin.actions() }
}

fn frame(number: u64, last: Option<&Frame>, live: &Live) -> serde_json::Result<Frame> {
    let state = serde_json::to_value(live)?;
    let change = last.map(|last| {
        let change = Patch::between(&last.state, &state).unwrap_or(Patch::Members(Default::default()));
        serde_json::to_string(&ToPage::Update { number, change })
    });
    Ok(Frame { number, change: change.transpose()?.map(Utf8Bytes::from), state, snapshot: OnceLock::new() })
}
