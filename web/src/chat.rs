//! A small chat, to try the model.

use crate::completion;
use crate::feed::Feed;
use crate::format;
use crate::turn::{Call, Role, Turn, open_call, tools};
use leptos::prelude::*;
use leptos::task::spawn_local;
use openjet_proto::AgentState;
use web_sys::{AbortController, KeyboardEvent};

/// The conversation and the box below it.
#[component]
pub(crate) fn Chat(feed: Feed) -> impl IntoView {
    let turns = RwSignal::new(Vec::<Turn>::new());
    let (draft, offered) = (RwSignal::new(String::new()), RwSignal::new(false));
    let stop = RwSignal::new_local(None::<AbortController>);
    let session = format!("page-{:x}", (js_sys::Math::random() * 1e12) as u64);
    let busy = move || stop.with(Option::is_some);
    let call = Memo::new(move |_| turns.with(|turns| open_call(turns)));

    let own = session.clone();
    let send = move || {
        let said = draft.get_untracked().trim().to_owned();
        if said.is_empty() || stop.with_untracked(Option::is_some) {
            return;
        }
        draft.set(String::new());
        let answers = turns.with_untracked(|turns| open_call(turns));
        let role = if answers.is_some() { Role::Tool } else { Role::User };
        turns.update(|turns| turns.push(Turn { answers, ..Turn::new(role, said) }));
        if turns.with_untracked(|turns| open_call(turns)).is_none() {
            spawn_local(answer(turns, stop, offered.get_untracked(), own.clone()));
        }
    };
    let send_by_key = send.clone();
    let on_key = move |event: KeyboardEvent| {
        if event.key() == "Enter" && !event.shift_key() && !event.is_composing() {
            event.prevent_default();
            send_by_key();
        }
    };
    let label = move || {
        call.with(|call| match call {
            Some(call) => format!("Result of {}", call.name),
            None => "Message".to_owned(),
        })
    };
    view! {
        <section class="panel chat" aria-labelledby="chat-title">
            <h2 id="chat-title">"Try the model"</h2>
            <div class="turns" role="log" aria-label="Conversation" tabindex="0">
                <For each=move || 0..turns.with(Vec::len) key=|place| *place children=move |place| view! { <Said turns place /> } />
            </div>
            <Speed feed session busy=Signal::derive(busy) />
            <form on:submit=move |event| {
                event.prevent_default();
                send();
            }>
                <label for="question">{label}</label>
                <textarea
                    id="question"
                    rows="3"
                    placeholder="Enter sends, Shift+Enter starts a line"
                    prop:value=draft
                    on:input=move |event| draft.set(event_target_value(&event))
                    on:keydown=on_key
                ></textarea>
                <div class="buttons">
                    <button type="submit" disabled=busy>"Send"</button>
                    <button
                        type="button"
                        disabled=move || !busy()
                        on:click=move |_| stop.with(|stop| stop.iter().for_each(AbortController::abort))
                    >
                        "Stop"
                    </button>
                    <button type="button" disabled=busy on:click=move |_| turns.set(Vec::new())>"Clear"</button>
                    <label class="check">
                        <input id="tools" type="checkbox" on:change=move |event| offered.set(event_target_checked(&event)) />
                        "offer it tools; you type what they give"
                    </label>
                </div>
            </form>
        </section>
    }
}

/// How fast the answer comes, as the agent that writes it says.
#[component]
fn Speed(feed: Feed, session: String, busy: Signal<bool>) -> impl IntoView {
    let speed = feed.engine(move |engine| {
        let own = engine
            .agents
            .iter()
            .find(|agent| agent.session.as_deref() == Some(&session) && agent.state != AgentState::Idle);
        own.map_or_else(String::new, |agent| match agent.state {
            AgentState::Decode => {
                format!("agent {} writes {} tokens/s", agent.id, format::rate(agent.tokens_per_second_now))
            }
            _ => format!(
                "agent {} reads {}",
                agent.id,
                format::share(agent.prompt_done as u64, agent.prompt_tokens as u64)
            ),
        })
    });
    view! { <p class="note number" data-figure="chat">{move || if busy.get() { speed.get() } else { String::new() }}</p> }
}

/// One turn, thoughts folded.
#[component]
fn Said(turns: RwSignal<Vec<Turn>>, place: usize) -> impl IntoView {
    let text = move |read: fn(&Turn) -> &str| {
        Memo::new(move |_| turns.with(|turns| turns.get(place).map_or_else(String::new, |turn| read(turn).to_owned())))
    };
    let (role, content) = (text(|turn| turn.role.name()), text(|turn| &turn.content));
    let (thinking, note) = (text(|turn| &turn.thinking), text(|turn| &turn.note));
    let calls =
        Memo::new(move |_| turns.with(|turns| turns.get(place).map_or_else(Vec::new, |turn| turn.calls.clone())));
    let result = text(|turn| turn.answers.as_ref().map_or("", |call| &call.name));
    view! {
        <div class="turn" data-role=role>
            <Show when=move || thinking.with(|text| !text.is_empty())>
                <details>
                    <summary>"Thinking"</summary>
                    <div class="text">{thinking}</div>
                </details>
            </Show>
            <Show when=move || result.with(|name| !name.is_empty())>
                <p class="note">"Result of " {result}</p>
            </Show>
            <div class="text">{content}</div>
            <For each=move || calls.get() key=|call| (call.id.clone(), call.arguments.len()) children=|call: Call| view! {
                <div class="call">
                    <p>"⚒ calls " <strong>{call.name}</strong></p>
                    <pre>{call.arguments}</pre>
                </div>
            } />
            <p class="note">{note}</p>
        </div>
    }
}

/// Asks the model to go on with the conversation and writes its answer into the last turn.
async fn answer(
    turns: RwSignal<Vec<Turn>>,
    stop: RwSignal<Option<AbortController>, LocalStorage>,
    offered: bool,
    session: String,
) {
    let asked = turns.get_untracked();
    turns.update(|turns| turns.push(Turn::new(Role::Assistant, String::new())));
    let change = move |change: &mut dyn FnMut(&mut Turn)| {
        turns.update(|turns| turns.iter_mut().last().into_iter().for_each(change))
    };
    let Ok(controller) = AbortController::new() else {
        return change(&mut |turn| turn.note = "✕ this browser can't stop a request".to_owned());
    };
    let signal = controller.signal();
    stop.set(Some(controller));
    let mut finish = None;
    let take = |addition: completion::Addition| {
        finish = addition.finish.clone().or_else(|| finish.take());
        let note = addition.speed.map(|(tokens, rate)| note(tokens, rate, finish.as_deref()));
        let mut addition = Some(addition);
        change(&mut |turn| {
            addition.take().into_iter().for_each(|addition| addition.add_to(turn));
            turn.note.extend(note.as_deref());
        });
    };
    let result = completion::ask(&asked, offered.then(tools), &session, &signal, take).await;
    stop.set(None);
    if let Err(error) = result {
        let note = if signal.aborted() { "stopped".to_owned() } else { format!("error: {error}") };
        change(&mut |turn| turn.note.clone_from(&note));
    }
}

/// What is said below an answer of `tokens` tokens.
fn note(tokens: u64, rate: f64, finish: Option<&str>) -> String {
    let cut = if finish == Some("length") { ", cut at the limit" } else { "" };
    format!("{tokens} tokens, {} tokens/s{cut}", format::rate(rate))
}
