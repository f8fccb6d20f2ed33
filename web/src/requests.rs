//! The latest requests that are over, with filters.

use crate::feed::Feed;
use crate::format;
use leptos::prelude::*;
use openjet_proto::live::RequestRecord;
use wasm_bindgen::JsValue;

/// The log, newest first.
#[component]
pub(crate) fn Requests(feed: Feed) -> impl IntoView {
    let all = feed.of(|live| live.requests.clone());
    let (ending, words) = (RwSignal::new("all".to_owned()), RwSignal::new(String::new()));
    let shown = Memo::new(move |_| {
        let (ending, words) = (ending.get(), words.get().to_lowercase());
        let fits = |record: &&RequestRecord| ends(record, &ending) && mentions(record, words.trim());
        all.with(|all| all.iter().rev().filter(fits).cloned().collect::<Vec<_>>())
    });
    let count = move || format!("{} of the latest {}", shown.with(Vec::len), all.with(Vec::len));
    view! {
        <section class="panel log" aria-labelledby="log-title">
            <h2 id="log-title">"Requests"</h2>
            <form class="filters" on:submit=|event| event.prevent_default()>
                <label>
                    <span>"Ended"</span>
                    <select id="ending" on:change=move |event| ending.set(event_target_value(&event))>
                        <option value="all">"in any way"</option>
                        <option value="done">"well"</option>
                        <option value="length">"at the limit"</option>
                        <option value="cancelled">"by the client"</option>
                        <option value="error">"with an error"</option>
                    </select>
                </label>
                <label>
                    <span>"With the words"</span>
                    <input id="words" type="search" placeholder="session, path, reason" on:input=move |event| words.set(event_target_value(&event)) />
                </label>
                <p class="dim number" role="status" data-figure="shown">{count}</p>
            </form>
            <div class="scroll" tabindex="0" role="region" aria-label="List of requests">
                <table>
                    <thead>
                        <tr>
                            <th scope="col">"Ended"</th>
                            <th scope="col">"How"</th>
                            <th scope="col">"Request"</th>
                            <th scope="col">"Agent"</th>
                            <th scope="col">"Prompt"</th>
                            <th scope="col">"Cached"</th>
                            <th scope="col">"Written"</th>
                            <th scope="col">"Tokens/s"</th>
                            <th scope="col">"Drafts"</th>
                            <th scope="col">"First token"</th>
                            <th scope="col">"Session or reason"</th>
                        </tr>
                    </thead>
                    <tbody>
                        <For each=move || shown.get() key=|record| (record.id, record.ended_ms, record.path.clone()) children=row />
                    </tbody>
                </table>
            </div>
        </section>
    }
}

fn row(record: RequestRecord) -> impl IntoView {
    let id = record.id.map_or_else(|| record.path.clone(), |id| format!("{id} {}", record.path));
    let drafts = format::share(record.drafts_accepted as u64, record.drafts_offered as u64);
    let why = record.error.clone().or_else(|| record.session.clone()).unwrap_or_else(|| "–".to_owned());
    view! {
        <tr data-finish=record.finish.clone()>
            <td>{clock(record.ended_ms)}</td>
            <td>{ending(&record.finish)}</td>
            <td>{id}</td>
            <td>{format::or_dash(record.agent, |agent| agent.to_string())}</td>
            <td>{format::count(record.prompt_tokens as u64)}</td>
            <td>{format::share(record.cached_tokens as u64, record.prompt_tokens as u64)}</td>
            <td>{format::count(record.generated_tokens as u64)}</td>
            <td>{format::rate(record.tokens_per_second)}</td>
            <td>{drafts}</td>
            <td>{format::time(record.first_token_ms)}</td>
            <td class="why">{why}</td>
        </tr>
    }
}

/// How a request ended, with a sign.
fn ending(finish: &str) -> String {
    let sign = match finish {
        "stop" | "tool_calls" => "✓",
        "length" => "…",
        "cancelled" => "⊘",
        _ => "✕",
    };
    format!("{sign} {}", finish.replace('_', " "))
}

fn ends(record: &RequestRecord, ending: &str) -> bool {
    let finish = record.finish.as_str();
    match ending {
        "done" => matches!(finish, "stop" | "tool_calls"),
        "error" => matches!(finish, "failed" | "refused"),
        "all" => true,
        other => finish == other,
    }
}

fn mentions(record: &RequestRecord, words: &str) -> bool {
    let texts = [Some(&record.path), record.session.as_ref(), record.error.as_ref(), Some(&record.finish)];
    texts.into_iter().flatten().any(|text| text.to_lowercase().contains(words))
        || record.id.is_some_and(|id| id.to_string() == words)
}

/// The time of day here.
fn clock(ended_ms: u64) -> String {
    let date = js_sys::Date::new(&JsValue::from_f64(ended_ms as f64));
    format!("{:02}:{:02}:{:02}", date.get_hours(), date.get_minutes(), date.get_seconds())
}
