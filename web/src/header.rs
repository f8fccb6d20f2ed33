//! The top of the page: which model, where the daemon stands, and how fresh all this is.

use crate::feed::{Feed, Link};
use crate::format;
use leptos::prelude::*;
use openjet_proto::Health;

/// Name, model, health and connection.
#[component]
pub(crate) fn Header(feed: Feed) -> impl IntoView {
    let model = feed.of(|live| {
        live.daemon.model.as_ref().map_or_else(
            || "no model".to_owned(),
            |model| format!("{} · {}", model.name, format::or_dash(model.types.first(), |ty| ty.name.clone())),
        )
    });
    let backend = feed.words(|engine| engine.backend.clone());
    let health = feed.of(|live| Some(live.daemon.health.clone()));
    let link = move || match feed.link.get() {
        Link::Connecting => "connecting …",
        Link::Live => "● live",
        Link::Stale => "◌ no news for over 2 s: what is shown is old",
        Link::Lost => "✕ connection lost: what is shown is old; trying again …",
    };
    view! {
        <header class="top">
            <img src="icon.svg" alt="" width="40" height="40" />
            <h1>"OpenJet"</h1>
            <p class="what"><strong data-figure="model">{model}</strong> <span data-figure="backend">{backend}</span></p>
            <p class="health" role="status">
                <span class="pill" data-health=move || health.with(|health| health.as_ref().map_or("", |health| words(health).0))>
                    {move || health.with(|health| health.as_ref().map_or_else(|| "unknown".to_owned(), |health| words(health).1))}
                </span>
                <span class="pill link" data-live=move || (feed.link.get() == Link::Live).to_string()>{link}</span>
            </p>
        </header>
    }
}

/// The health as the style sheet and as people know it.
fn words(health: &Health) -> (&'static str, String) {
    match health {
        Health::Loading { detail } => ("loading", format!("◔ loading: {detail}")),
        Health::Ready => ("ready", "✓ ready".to_owned()),
        Health::Draining => ("draining", "◑ finishing its work; no new requests are taken".to_owned()),
        Health::Unloaded { on_demand: true } => ("unloaded", "◌ idle: the next request loads the model".to_owned()),
        Health::Unloaded { on_demand: false } => ("unloaded", "◌ no model is loaded".to_owned()),
        Health::Failed { reason } => ("failed", format!("✕ failed: {reason}")),
    }
}
