//! Requests that wait.

use crate::feed::Feed;
use crate::format;
use leptos::prelude::*;
use openjet_proto::{WaitState, WaitingStatus};

/// Most of them that are listed; the others are counted.
const LISTED: usize = 6;

/// The queue, first come first.
#[component]
pub(crate) fn Queue(feed: Feed) -> impl IntoView {
    let queue = feed.engine(|engine| engine.queue.clone());
    let more = move || match queue.with(Vec::len) {
        0 => "Nobody waits.".to_owned(),
        waiting @ 1..=LISTED => format!("{waiting} in all"),
        waiting => format!("{waiting} in all, the first {LISTED} are shown"),
    };
    view! {
        <section class="panel queue" aria-labelledby="queue-title">
            <h2 id="queue-title">"Waiting"</h2>
            <p class="dim">{more}</p>
            <ol data-figure="queue">
                <For each=move || queue.get().into_iter().take(LISTED) key=|waiting| (waiting.request, waiting.waited_ms as u64) children=|waiting| view! {
                    <li>
                        <span class="state">{state(&waiting)}</span>
                        <span class="line">{waiting.session.clone().unwrap_or_else(|| format!("request {}", waiting.request))}</span>
                        <span class="number">{format!("{} tokens", format::count(waiting.prompt_tokens as u64))}</span>
                        <span class="number">{format::time(waiting.waited_ms)}</span>
                    </li>
                } />
            </ol>
        </section>
    }
}

fn state(waiting: &WaitingStatus) -> &'static str {
    match waiting.state {
        WaitState::Queued => "◷ queued",
        WaitState::Fetching => "⇡ from disk",
        WaitState::Parked => "‖ parked",
    }
}
