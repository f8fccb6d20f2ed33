//! The card: memory against the plan, power, temperature.

use crate::feed::Feed;
use crate::format;
use crate::meter::Bar;
use leptos::prelude::*;
use openjet_proto::device::DeviceStatus;
use openjet_proto::live::Live;

/// What NVML and the plan say; without a card, that there is none.
#[component]
pub(crate) fn Card(feed: Feed) -> impl IntoView {
    let there = feed.of(|live| live.daemon.device.is_some() || live.daemon.memory.is_some());
    let name = feed.of(|live| live.daemon.device.as_ref().map_or_else(String::new, |device| device.name.clone()));
    let fact = move |write: fn(&DeviceStatus) -> Option<String>| {
        feed.of(move |live| format::or_dash(live.daemon.device.as_ref().and_then(write), |text| text))
    };
    view! {
        <section class="panel" aria-labelledby="card-title">
            <h2 id="card-title">"Card"</h2>
            <Show when=move || there.get() fallback=|| view! {
                <p class="dim">"The model runs on the CPU: there is no card to tell of."</p>
            }>
                <p class="line" data-figure="card">{name}</p>
                <Bar
                    label="Memory in use"
                    figure="memory"
                    text=feed.of(|live| memory(live).map_or_else(|| "–".to_owned(), |(used, total)| of(used, total)))
                    part=feed.of(|live| memory(live).map_or(0, |(used, _)| used))
                    whole=feed.of(|live| memory(live).map_or(0, |(_, total)| total))
                />
                <Plan feed />
                <dl class="facts">
                    <dt>"Load"</dt>
                    <dd data-figure="load">{fact(|device| device.load.map(|load| format!("{load} %")))}</dd>
                    <dt>"Power"</dt>
                    <dd data-figure="power">
                        {fact(|device| {
                            let limit = device.power_limit.map_or_else(String::new, |limit| format!(" of {limit:.0} W"));
                            device.power.map(|power| format!("{power:.0} W{limit}"))
                        })}
                    </dd>
                    <dt>"Temperature"</dt>
                    <dd data-figure="temperature">{fact(|device| device.temperature.map(|degrees| format!("{degrees} °C")))}</dd>
                    <dt>"Clocks: cores, memory"</dt>
                    <dd data-figure="clocks">
                        {fact(|device| device.clock.zip(device.memory_clock).map(|(core, memory)| format!("{core}, {memory} MHz")))}
                    </dd>
                </dl>
            </Show>
        </section>
    }
}

/// Where the memory goes by the plan.
#[component]
fn Plan(feed: Feed) -> impl IntoView {
    let parts = feed.of(|live| live.daemon.memory.as_ref().map_or_else(Vec::new, |plan| plan.parts.clone()));
    let total = feed.of(|live| live.daemon.memory.as_ref().map_or(0, |plan| plan.total));
    view! {
        <details class="plan">
            <summary>"Planned: " <span class="number" data-figure="planned">{move || format::bytes(total.get())}</span></summary>
            <dl class="facts">
                <For each=move || parts.get() key=|part| (part.name.clone(), part.bytes) children=|part| view! {
                    <dt title=part.detail.clone()>{part.name}</dt>
                    <dd>{format::bytes(part.bytes)}</dd>
                } />
            </dl>
        </details>
    }
}

/// Bytes in use and in all.
fn memory(live: &Live) -> Option<(u64, u64)> {
    let device = live.daemon.device.as_ref()?;
    device.memory_used.zip(device.memory_total)
}

fn of(part: u64, whole: u64) -> String {
    format!("{} of {}", format::bytes(part), format::bytes(whole))
}
