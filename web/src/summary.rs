//! The engine as a whole.

use crate::feed::Feed;
use crate::format;
use crate::history::total;
use crate::meter::{Bar, Spark};
use leptos::prelude::*;
use openjet_proto::AgentState;
use openjet_proto::live::Live;

/// Speed, the share of what the card can do, and counters.
#[component]
pub(crate) fn Summary(feed: Feed) -> impl IntoView {
    let rate = feed.words(|engine| format::rate(total(Some(engine))));
    let past = Signal::derive(move || feed.history.with(|history| history.total.clone()));
    let peak = move || {
        let top = feed.history.with(|history| history.total.iter().copied().fold(0.0, f64::max));
        format!("most in the last minute: {}", format::rate(top))
    };
    let working = feed.words(|engine| {
        let working = engine.agents.iter().filter(|agent| agent.state != AgentState::Idle).count();
        format!("{working} of {}", engine.agents.len())
    });
    let accepted = feed.words(|engine| {
        let sum =
            |counts: fn(&openjet_proto::AgentStatus) -> &Vec<u64>| engine.agents.iter().flat_map(counts).sum::<u64>();
        format::share(sum(|agent| &agent.drafts_accepted), sum(|agent| &agent.drafts_offered))
    });
    view! {
        <section class="panel hero" aria-labelledby="hero-title">
            <div class="speed">
                <h2 id="hero-title">"All agents together"</h2>
                <p class="big"><strong class="number" data-figure="rate">{rate}</strong> " tokens/s"</p>
                <Spark values=past height=60 />
                <p class="dim">{peak}</p>
                <Limit feed />
            </div>
            <dl class="tiles">
                <Tile name="agents at work" figure="working" text=working />
                <Tile name="waiting" figure="queued" text=feed.words(|engine| engine.queued.to_string()) />
                <Tile
                    name="of prompts from cache"
                    figure="cached"
                    text=feed.words(|engine| {
                        let cached = engine.prompt_tokens_cached;
                        format::share(cached, cached + engine.prompt_tokens_computed)
                    })
                />
                <Tile name="of drafts accepted" figure="accepted" text=accepted />
                <Tile name="tokens written" figure="generated" text=feed.words(|engine| format::count(engine.tokens_generated)) />
                <Tile name="steps a second" figure="steps" text=feed.words(|engine| format::rate(engine.steps_per_second)) />
                <Tile name="requests done" figure="finished" text=feed.words(|engine| format::count(engine.requests_finished)) />
                <Tile name="cancelled" figure="cancelled" text=feed.words(|engine| format::count(engine.requests_cancelled)) />
            </dl>
        </section>
    }
}

/// One number and what it is.
#[component]
fn Tile(name: &'static str, figure: &'static str, text: Memo<String>) -> impl IntoView {
    view! {
        <div>
            <dt>{name}</dt>
            <dd class="number" data-figure=figure>{text}</dd>
        </div>
    }
}

/// How much of what the card's memory delivers the steps need for the weights. Nobody can be faster than all of it.
#[component]
fn Limit(feed: Feed) -> impl IntoView {
    let share = feed.of(share);
    let text = move || {
        format::or_dash(share.get(), |share| format!("{:.0} % of what the card's memory delivers", share * 100.0))
    };
    view! {
        <Bar
            label="Share of the card's limit"
            figure="limit"
            text=Signal::derive(text)
            part=Signal::derive(move || share.get().map_or(0, |share| (share * 1000.0) as u64))
            whole=Signal::stored(1000)
        />
    }
}

/// Bytes of weights read a second, of the bytes that the memory delivers; none where that isn't known, as on a CPU.
fn share(live: &Live) -> Option<f64> {
    let (engine, model) = (live.daemon.engine.as_ref()?, live.daemon.model.as_ref()?);
    let bandwidth = live.daemon.device.as_ref()?.bandwidth.filter(|bandwidth| *bandwidth > 0.0)?;
    let weights: u64 = model.types.iter().map(|ty| ty.bytes).sum();
    Some(engine.steps_per_second * weights as f64 / bandwidth)
}
