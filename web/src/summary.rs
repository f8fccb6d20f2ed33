//! The engine as a whole.

use crate::feed::{Feed, Link, rate};
use crate::format;
use crate::meter::Bar;
use leptos::prelude::*;
use openjet_proto::{EngineStatus, Health};

/// Health, speed, queue, pool and counters.
#[component]
pub(crate) fn Summary(feed: Feed) -> impl IntoView {
    let text = move |write: fn(&EngineStatus) -> String| {
        move || feed.status.with(|status| status.as_ref().map_or_else(|| "–".to_owned(), write))
    };
    let of = move |read: fn(&EngineStatus) -> usize| {
        Signal::derive(move || feed.status.with(|status| status.as_ref().map_or(0, read)))
    };
    let health = Memo::new(move |_| feed.status.with(|status| status.as_ref().map(|status| status.health.clone())));
    let link = move || match feed.link.get() {
        Link::Connecting => "connecting …",
        Link::Live => "live",
        Link::Stale => "no news for over 2 s: what is shown is old",
        Link::Lost => "connection lost: what is shown is old; trying again …",
    };
    view! {
        <p class="health" role="status">
            <span data-health=move || health.get().as_ref().map_or("", |health| words(health).0)>
                {move || health.get().as_ref().map_or_else(|| "unknown".to_owned(), |health| words(health).1)}
            </span>
            <span class="link" data-live=move || (feed.link.get() == Link::Live).to_string()>{link}</span>
        </p>
        <p class="backend">{text(|status| status.backend.clone())}</p>
        <dl class="totals">
            <div>
                <dt>"tokens/s"</dt>
                <dd id="total-rate">{text(|status| format::rate(status.agents.iter().map(rate).sum()))}</dd>
            </div>
            <div>
                <dt>"waiting"</dt>
                <dd id="queued">{text(|status| status.queued.to_string())}</dd>
            </div>
            <div>
                <dt>"tokens written"</dt>
                <dd id="tokens-generated">{text(|status| format::count(status.tokens_generated))}</dd>
            </div>
            <div>
                <dt>"from cache"</dt>
                <dd id="cached">
                    {text(|status| {
                        let cached = status.prompt_tokens_cached;
                        format::share(cached, cached + status.prompt_tokens_computed)
                    })}
                </dd>
            </div>
            <div>
                <dt>"requests done"</dt>
                <dd id="requests-finished">{text(|status| format::count(status.requests_finished))}</dd>
            </div>
            <div>
                <dt>"cancelled"</dt>
                <dd id="requests-cancelled">{text(|status| format::count(status.requests_cancelled))}</dd>
            </div>
        </dl>
        <Bar
            label="Pages in use"
            part=of(|status| status.pages_total - status.pages_free.min(status.pages_total))
            whole=of(|status| status.pages_total)
        />
    }
}

/// The health as the style sheet and as people know it.
fn words(health: &Health) -> (&'static str, String) {
    match health {
        Health::Loading { detail } => ("loading", format!("loading: {detail}")),
        Health::Ready => ("ready", "ready".to_owned()),
        Health::Draining => ("draining", "finishing its work, then stopping".to_owned()),
        Health::Unloaded { on_demand: true } => ("idle", "idle: the next request loads the model".to_owned()),
        Health::Unloaded { on_demand: false } => ("idle", "no model is loaded".to_owned()),
        Health::Failed { reason } => ("failed", format!("failed: {reason}")),
    }
}
