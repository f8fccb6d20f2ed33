//! One agent.

use crate::feed::Feed;
use crate::format;
use crate::meter::{Bar, Spark};
use leptos::prelude::*;
use openjet_proto::{AgentState, AgentStatus};

/// All that is known of the agent in slot `id`.
#[component]
pub(crate) fn AgentCard(feed: Feed, id: usize) -> impl IntoView {
    let agent = Memo::new(move |_| feed.status.with(|status| status.as_ref()?.agents.get(id).cloned()));
    let of = move |read: fn(&AgentStatus) -> usize| {
        Signal::derive(move || agent.with(|agent| agent.as_ref().map_or(0, read)))
    };
    let text = move |write: fn(&AgentStatus) -> String| {
        move || agent.with(|agent| agent.as_ref().map_or_else(String::new, write))
    };
    let past = Signal::derive(move || feed.history.with(|history| history.get(id).cloned().unwrap_or_default()));
    view! {
        <article class="card" aria-label=format!("Agent {id}")>
            <div class="title">
                <h3>{format!("Agent {id}")}</h3>
                <span class="state" data-state=text(|agent| state(agent).0.to_owned())>
                    {text(|agent| state(agent).1)}
                </span>
            </div>
            <p class="rate">
                <strong class="number">{text(|agent| format::rate(agent.tokens_per_second))}</strong>
                {text(|agent| if agent.state == AgentState::Idle { " tokens/s, last request" } else { " tokens/s" }.to_owned())}
            </p>
            <Spark values=past width=300 />
            <Bar label="Context" part=of(|agent| agent.context_tokens) whole=of(|agent| agent.context_limit) />
            <Bar label="Prompt read" part=of(|agent| agent.prompt_done) whole=of(|agent| agent.prompt_tokens) />
            <dl>
                <dt>"Prompt from cache"</dt>
                <dd>{text(|agent| format::share(agent.cached_tokens as u64, agent.prompt_tokens as u64))}</dd>
                <dt>"Drafts accepted"</dt>
                <dd>{text(drafts)}</dd>
                <dt>"at positions 1 to 4"</dt>
                <dd>{text(drafts_by_place)}</dd>
                <dt>"Written"</dt>
                <dd>{text(|agent| format::count(agent.generated_tokens as u64))}</dd>
                <dt>"First token"</dt>
                <dd>{text(|agent| agent.first_token_ms.map_or_else(|| "–".to_owned(), format::time))}</dd>
                <dt>"Queued"</dt>
                <dd>{text(|agent| format::time(agent.queued_ms))}</dd>
                <dt>"Pages (shared)"</dt>
                <dd>{text(|agent| format!("{} ({})", agent.pages, agent.pages_shared))}</dd>
                <dt>"Session"</dt>
                <dd>{text(|agent| agent.session.clone().unwrap_or_else(|| "–".to_owned()))}</dd>
            </dl>
        </article>
    }
}

/// The state as the style sheet and as people know it.
fn state(agent: &AgentStatus) -> (&'static str, String) {
    match agent.state {
        AgentState::Idle => ("idle", "○ idle".to_owned()),
        AgentState::Prefill => {
            ("prefill", format!("◐ reading {}", format::share(agent.prompt_done as u64, agent.prompt_tokens as u64)))
        }
        AgentState::Decode => ("decode", "● writing".to_owned()),
    }
}

fn drafts(agent: &AgentStatus) -> String {
    format::share(agent.drafts_accepted.iter().sum(), agent.drafts_offered.iter().sum())
}

fn drafts_by_place(agent: &AgentStatus) -> String {
    let places = agent.drafts_offered.iter().zip(&agent.drafts_accepted).filter(|(offered, _)| **offered > 0);
    // No more than a line holds: cards must not grow while one reads them.
    let shares: Vec<String> = places.take(4).map(|(&offered, &accepted)| format::share(accepted, offered)).collect();
    if shares.is_empty() { "–".to_owned() } else { shares.join(" · ") }
}
