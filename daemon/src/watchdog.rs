//! Tells systemd's watchdog that the engine goes round its loop; a step that hangs, on a lost GPU for example, is then seen.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sd_notify::NotifyState;

use crate::app::App;
use crate::serving::Serving;
use crate::systemd::notify;

/// A file of more bytes is large for a CPU: one step may take minutes there.
const LARGE: u64 = 2 << 30;

/// The time that a step of a large model on a CPU has.
const SLOW: Duration = Duration::from_secs(1200);

/// Feeds the watchdog, where there is one; never returns then.
pub async fn feed(app: Arc<App>) {
    let Some(asked) = sd_notify::watchdog_enabled() else { return };
    let mut in_force = asked;
    let mut last = None;
    loop {
        tokio::time::sleep(asked / 4).await;
        let engine = app.phase().loaded().cloned();
        // Which engine, and how often it has gone round.
        let place = engine.as_ref().map(|serving| (Arc::as_ptr(serving) as usize, serving.engine.turns()));
        if engine.as_ref().is_none_or(|serving| has_ended(serving)) || place != last {
            notify(&[NotifyState::Watchdog]);
        }
        last = place;
        let wanted = engine.map_or(asked, |serving| patience(&serving, asked));
        if wanted != in_force {
            in_force = wanted;
            notify(&[NotifyState::WatchdogUsec(u32::try_from(wanted.as_micros()).unwrap_or(u32::MAX))]);
        }
    }
}

/// Whether its thread has ended as it should, or somebody waits for that.
fn has_ended(serving: &Serving) -> bool {
    serving
        .thread
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .is_none_or(std::thread::JoinHandle::is_finished)
}

fn patience(serving: &Serving, asked: Duration) -> Duration {
    let slow = serving.gpu_bytes == 0 && serving.model.bytes > LARGE;
    if slow { asked.max(SLOW) } else { asked }
}
