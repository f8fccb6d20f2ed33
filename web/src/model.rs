//! The model and its file.

use crate::feed::Feed;
use crate::format;
use leptos::prelude::*;
use openjet_proto::control::{DaemonStatus, ModelStatus};

/// Facts that change with the model alone, and the daemon's own.
#[component]
pub(crate) fn Model(feed: Feed) -> impl IntoView {
    let fact = move |write: fn(&ModelStatus) -> String| {
        feed.of(move |live| format::or_dash(live.daemon.model.as_ref(), write))
    };
    let own = move |write: fn(&DaemonStatus) -> String| feed.of(move |live| write(&live.daemon));
    view! {
        <section class="panel" aria-labelledby="model-title">
            <h2 id="model-title">"Model"</h2>
            <dl class="facts">
                <dt>"Name"</dt>
                <dd data-figure="name">{fact(|model| model.name.clone())}</dd>
                <dt>"File"</dt>
                <dd data-figure="file">{fact(|model| model.file.clone().unwrap_or_else(|| "ships with the program".to_owned()))}</dd>
                <dt>"Size"</dt>
                <dd data-figure="size">
                    {fact(|model| format!("{}, {} parameters", format::bytes(model.bytes), format::short(model.parameters)))}
                </dd>
                <dt>"Blocks"</dt>
                <dd data-figure="blocks">
                    {fact(|model| format!("{}, of them {} with attention", model.blocks, model.attention_blocks))}
                </dd>
                <dt>"Made for"</dt>
                <dd data-figure="limits">
                    {fact(|model| {
                        let (context, vocab) = (model.context as u64, model.vocab as u64);
                        format!("{} tokens of context, {} in its vocabulary", format::count(context), format::count(vocab))
                    })}
                </dd>
                <dt>"Draft head"</dt>
                <dd data-figure="head">{fact(|model| if model.draft_head { "yes" } else { "no" }.to_owned())}</dd>
                <dt>"Types"</dt>
                <dd data-figure="types">{fact(types)}</dd>
                <dt>"Daemon"</dt>
                <dd data-figure="daemon">
                    {own(|daemon| {
                        let up = format::time(daemon.uptime_s.floor() * 1000.0);
                        format!("openjetd {}, process {}, up {up}", daemon.version, daemon.pid)
                    })}
                </dd>
            </dl>
        </section>
    }
}

/// How the bytes are coded, most first.
fn types(model: &ModelStatus) -> String {
    let all: u64 = model.types.iter().map(|ty| ty.bytes).sum();
    let types: Vec<String> =
        model.types.iter().map(|ty| format!("{} {}", ty.name, format::share(ty.bytes, all))).collect();
    types.join(", ")
}
