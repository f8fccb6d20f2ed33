//! One agent.

use crate::control::{Control, Kick};
use crate::feed::Feed;
use crate::format;
use crate::meter::{Bar, Spark};
use leptos::prelude::*;
use openjet_proto::{AgentState, AgentStatus};

/// Places in a draft that are shown; a card must not grow while one reads it.
const PLACES: usize = 8;

/// All that is known of the agent in slot `id`.
#[component]
pub(crate) fn AgentCard(feed: Feed, control: Control, id: usize) -> impl IntoView {
    let text = move |write: fn(&AgentStatus) -> String| feed.agent(id, write);
    let number = move |read: fn(&AgentStatus) -> usize| {
        let number = feed.agent(id, read);
        Signal::derive(move || number.get() as u64)
    };
    let past = Signal::derive(move || feed.history.with(|history| history.agents.get(id).cloned().unwrap_or_default()));
    view! {
        <article class="panel card" data-state=text(|agent| state(agent).0.to_owned()) aria-label=format!("Agent {id}")>
            <div class="title">
                <h3>{format!("Agent {id}")}</h3>
                <span class="state" data-figure="state">{text(|agent| state(agent).1)}</span>
            </div>
            <p class="line" data-figure="task" title=text(|agent| agent.task.clone().unwrap_or_default())>
                {text(|agent| agent.task.clone().unwrap_or_else(|| "–".to_owned()))}
            </p>
            <p class="rate">
                <strong class="number" data-figure="now">{text(|agent| format::rate(agent.tokens_per_second_now))}</strong>
                " tokens/s"
            </p>
            <Spark values=past height=40 />
            <Bar
                label="Context"
                figure="context"
                text=text(|agent| of(agent.context_tokens, agent.context_limit))
                part=number(|agent| agent.context_tokens)
                whole=number(|agent| agent.context_limit)
            />
            <Bar
                label="Prompt read"
                figure="prompt"
                text=text(|agent| of(agent.prompt_done, agent.prompt_tokens))
                part=number(|agent| agent.prompt_done)
                whole=number(|agent| agent.prompt_tokens)
            />
            <Drafts feed id />
            <dl class="facts">
                <dt>"Prompt from cache"</dt>
                <dd data-figure="cached">{text(|agent| format::share(agent.cached_tokens as u64, agent.prompt_tokens as u64))}</dd>
                <dt>"First token"</dt>
                <dd data-figure="first">{text(|agent| format::or_dash(agent.first_token_ms, format::time))}</dd>
                <dt>"Queued"</dt>
                <dd data-figure="queued">{text(|agent| format::time(agent.queued_ms))}</dd>
                <dt>"Written"</dt>
                <dd data-figure="written">
                    {text(|agent| {
                        let (tokens, rate) = (agent.generated_tokens as u64, format::rate(agent.tokens_per_second));
                        format!("{} at {rate}/s", format::count(tokens))
                    })}
                </dd>
                <dt>"Pages (shared)"</dt>
                <dd data-figure="pages">{text(|agent| format!("{} ({})", agent.pages, agent.pages_shared))}</dd>
                <dt>"Session"</dt>
                <dd class="line" data-figure="session" title=text(|agent| agent.session.clone().unwrap_or_default())>
                    {text(|agent| agent.session.clone().unwrap_or_else(|| "–".to_owned()))}
                </dd>
            </dl>
            <p class="tail" data-figure="tail">
                <span>{text(|agent| agent.tail.clone().unwrap_or_else(|| "Its text is not shown here.".to_owned()))}</span>
            </p>
            <Kick feed control id />
        </article>
    }
}

/// How many drafts were accepted at each place, of those offered there.
#[component]
fn Drafts(feed: Feed, id: usize) -> impl IntoView {
    let all =
        feed.agent(id, |agent| format::share(agent.drafts_accepted.iter().sum(), agent.drafts_offered.iter().sum()));
    let place = move |place: usize| {
        let counts = feed.agent(id, move |agent| {
            let of = |counts: &[u64]| counts.get(place).copied().unwrap_or_default();
            (of(&agent.drafts_accepted), of(&agent.drafts_offered))
        });
        let height = move || counts.with(|&(accepted, offered)| 30.0 * accepted as f64 / offered.max(1) as f64);
        let percent = move || counts.with(|&(accepted, offered)| format::share(accepted, offered).replace(" %", ""));
        view! {
            <li>
                <svg viewBox="0 0 10 30" preserveAspectRatio="none" aria-hidden="true">
                    <rect class="rest" width="10" height="30" />
                    <rect width="10" height=height y=move || 30.0 - height() />
                </svg>
                <span class="number">{percent}</span>
            </li>
        }
    };
    view! {
        <div class="drafts">
            <p><span>"Drafts accepted, % by position"</span> <span class="number" data-figure="drafts">{all}</span></p>
            <ol data-figure="places">{(0..PLACES).map(place).collect_view()}</ol>
        </div>
    }
}

fn of(part: usize, whole: usize) -> String {
    format!("{} of {}", format::count(part as u64), format::count(whole as u64))
}

/// The state as the style sheet and as people know it.
fn state(agent: &AgentStatus) -> (&'static str, String) {
    match agent.state {
        AgentState::Idle => ("idle", "○ idle".to_owned()),
        AgentState::Sharing => ("sharing", "◌ waits to share a prompt".to_owned()),
        AgentState::Prefill => {
            ("prefill", format!("◐ reading {}", format::share(agent.prompt_done as u64, agent.prompt_tokens as u64)))
        }
        AgentState::Decode => ("decode", "● writing".to_owned()),
    }
}
