//! A small chat, to try the model.

use crate::completion::{self, Turn};
use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::{AbortController, KeyboardEvent};

/// The conversation and the box below it.
#[component]
pub(crate) fn Chat() -> impl IntoView {
    let turns = RwSignal::new(Vec::<Turn>::new());
    let draft = RwSignal::new(String::new());
    let stop = RwSignal::new_local(None::<AbortController>);
    let busy = move || stop.with(Option::is_some);

    let send = move || {
        let question = draft.get_untracked().trim().to_owned();
        if question.is_empty() || stop.with_untracked(Option::is_some) {
            return;
        }
        draft.set(String::new());
        turns.update(|turns| turns.push(turn("user", question)));
        spawn_local(answer(turns, stop));
    };
    let on_key = move |event: KeyboardEvent| {
        if event.key() == "Enter" && !event.shift_key() && !event.is_composing() {
            event.prevent_default();
            send();
        }
    };
    view! {
        <section class="chat" aria-labelledby="chat-title">
            <h2 id="chat-title">"Try it"</h2>
            <div class="turns" role="log" aria-label="Conversation" tabindex="0">
                <For each=move || 0..turns.with(Vec::len) key=|place| *place children=move |place| view! { <Said turns place /> } />
            </div>
            <form on:submit=move |event| {
                event.prevent_default();
                send();
            }>
                <label for="question">"Message"</label>
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
                </div>
            </form>
        </section>
    }
}

/// One turn, thoughts folded.
#[component]
fn Said(turns: RwSignal<Vec<Turn>>, place: usize) -> impl IntoView {
    let text = move |read: fn(&Turn) -> &str| {
        Memo::new(move |_| turns.with(|turns| turns.get(place).map_or_else(String::new, |turn| read(turn).to_owned())))
    };
    let (role, content) = (text(|turn| turn.role), text(|turn| &turn.content));
    let (thinking, note) = (text(|turn| &turn.thinking), text(|turn| &turn.note));
    view! {
        <div class="turn" data-role=role>
            <Show when=move || thinking.with(|text| !text.is_empty())>
                <details>
                    <summary>"Thinking"</summary>
                    <div class="text">{thinking}</div>
                </details>
            </Show>
            <div class="text">{content}</div>
            <p class="note">{note}</p>
        </div>
    }
}

fn turn(role: &'static str, content: String) -> Turn {
    Turn { role, content, thinking: String::new(), note: String::new() }
}

/// Asks the model to go on with the conversation and writes its answer into the last turn.
async fn answer(turns: RwSignal<Vec<Turn>>, stop: RwSignal<Option<AbortController>, LocalStorage>) {
    let asked = turns.get_untracked();
    turns.update(|turns| turns.push(turn("assistant", String::new())));
    let change =
        move |change: &dyn Fn(&mut Turn)| turns.update(|turns| turns.iter_mut().last().into_iter().for_each(change));
    let Ok(controller) = AbortController::new() else {
        change(&|turn| turn.note = "this browser can't stop a request".to_owned());
        return;
    };
    let signal = controller.signal();
    stop.set(Some(controller));
    let mut first = None;
    let mut finish = None;
    let result = completion::ask(&asked, &signal, |addition| {
        let now = js_sys::Date::now();
        finish = addition.finish.clone().or_else(|| finish.take());
        change(&|turn| {
            turn.content += &addition.content;
            turn.thinking += &addition.thinking;
            if let (Some(tokens), Some(first)) = (addition.tokens, first) {
                turn.note = note(tokens, now - first, finish.as_deref());
            }
        });
        first.get_or_insert(now);
    });
    let result = result.await;
    stop.set(None);
    if let Err(error) = result {
        let stopped = signal.aborted();
        change(&|turn| turn.note = if stopped { "stopped".to_owned() } else { format!("error: {error}") });
    }
}

/// What is said below an answer of `tokens` tokens that took `milliseconds` from its first piece to its last.
fn note(tokens: u64, milliseconds: f64, finish: Option<&str>) -> String {
    let rate = tokens.saturating_sub(1) as f64 * 1000.0 / milliseconds.max(1.0);
    let cut = if finish == Some("length") { ", cut at the limit" } else { "" };
    format!("{tokens} tokens, {} tokens/s{cut}", crate::format::rate(rate))
}
