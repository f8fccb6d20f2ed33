//! The panel of actions: agents, models, drain.

use crate::control::{Control, Sure, draining, json};
use crate::feed::Feed;
use crate::format;
use crate::plan::Planned;
use leptos::prelude::*;
use leptos::task::spawn_local;
use openjet_proto::control::{AgentCount, Drain, Draining, LoadModel, ModelFile, ModelPlan, ModelStatus};
use openjet_proto::live::Actions;

/// Everything that can be changed here.
#[component]
pub(crate) fn ActionsPanel(feed: Feed, control: Control) -> impl IntoView {
    view! {
        <section class="panel actions" aria-labelledby="actions-title">
            <h2 id="actions-title">"Actions"</h2>
            <Show when=move || control.actions() == Actions::Off>
                <p class="dim">
                    "This page only shows. The settings "<code>"admin_key"</code>" and "<code>"admin_on_loopback"</code>
                    " let it change things; "<code>"openjetctl"</code>" always can."
                </p>
            </Show>
            <Show when=move || control.actions() == Actions::Key>
                <label class="field">
                    <span>"Admin key"</span>
                    <input
                        id="admin-key"
                        type="password"
                        autocomplete="off"
                        on:input=move |event| control.key.set(event_target_value(&event).trim().to_owned())
                    />
                </label>
            </Show>
            <Show when=move || control.actions() != Actions::Off>
                <SetAgents feed control />
                <Load control />
                <SetDrain feed control />
                <p class="note" role="status" data-figure="action">{control.note}</p>
            </Show>
        </section>
    }
}

#[component]
fn SetAgents(feed: Feed, control: Control) -> impl IntoView {
    let now = feed.engine(|engine| engine.agents.len());
    let wanted = RwSignal::new(None::<usize>);
    let send = move || {
        let Some(count) = wanted.get_untracked() else { return };
        control.act("PUT", "agents".to_owned(), json(&AgentCount { count }), |set: AgentCount| {
            format!("{} agents", set.count)
        });
    };
    view! {
        <form class="row" on:submit=move |event| {
            event.prevent_default();
            send();
        }>
            <label class="field">
                <span>"Agents"</span>
                <input
                    id="agent-count"
                    type="number"
                    min="1"
                    prop:value=move || wanted.get().unwrap_or(now.get()).to_string()
                    on:input=move |event| wanted.set(event_target_value(&event).parse().ok())
                />
            </label>
            <button type="submit" disabled=move || !control.ready() || wanted.with(Option::is_none)>"Set"</button>
        </form>
    }
}

/// Chooses a model, shows its plan, and only then loads it.
#[component]
fn Load(control: Control) -> impl IntoView {
    let models = RwSignal::new(Vec::<ModelFile>::new());
    let chosen = RwSignal::new(String::new());
    let plan = RwSignal::new(None::<ModelPlan>);
    let look = move |_| {
        spawn_local(async move {
            match control.ask::<Vec<ModelFile>>("GET", "models", None).await {
                Ok(list) => {
                    let id = list.iter().find(|model| model.loaded).or(list.first()).map(|model| model.id.clone());
                    chosen.set(id.unwrap_or_default());
                    models.set(list);
                }
                Err(error) => control.note.set(format!("✕ {error}")),
            }
        });
    };
    let wanted = move || LoadModel { model: Some(chosen.get_untracked()), ..LoadModel::default() };
    let show = move |_| {
        control.act("POST", "plan".to_owned(), json(&wanted()), move |found: ModelPlan| {
            let words = format!("this is what {} would take", found.model.name);
            plan.set(Some(found));
            words
        });
    };
    let load = move || {
        plan.set(None);
        control.act("POST", "load".to_owned(), json(&wanted()), |model: ModelStatus| format!("{} serves", model.name));
    };
    view! {
        <div class="row">
            <Show
                when=move || models.with(|models| !models.is_empty())
                fallback=move || view! { <button type="button" disabled=move || !control.ready() on:click=look>"List the models"</button> }
            >
                <label class="field">
                    <span>"Model"</span>
                    <select
                        id="models"
                        prop:value=chosen
                        on:change=move |event| {
                            chosen.set(event_target_value(&event));
                            plan.set(None);
                        }
                    >
                        <For each=move || models.get() key=|model| model.id.clone() children=|model| {
                            let size = format::bytes(model.bytes);
                            let state = if model.loaded { ", loaded" } else { "" };
                            view! {
                                <option value=model.id.clone() disabled=model.problem.is_some() selected=model.loaded>
                                    {format!("{} ({size}{state})", model.id)}
                                </option>
                            }
                        } />
                    </select>
                </label>
                <button type="button" disabled=move || !control.ready() on:click=show>"Show its plan"</button>
            </Show>
        </div>
        <Show when=move || plan.with(Option::is_some)>
            <Planned plan />
            <Sure
                text=Signal::stored("Load it".to_owned())
                again=Signal::stored("Press again to load it".to_owned())
                disabled=Signal::derive(move || !control.ready())
                act=load
            />
        </Show>
    }
}

#[component]
fn SetDrain(feed: Feed, control: Control) -> impl IntoView {
    let on = feed.of(|live| draining(Some(&live.daemon.health)));
    let word = move |start: &'static str, end: &'static str| {
        Signal::derive(move || if on.get() { end } else { start }.to_owned())
    };
    let act = move || {
        let on = !on.get_untracked();
        control.act("PUT", "drain".to_owned(), json(&Drain { on }), |drain: Draining| match drain {
            Draining { on: true, requests } => format!("no new requests are taken; {requests} still run or wait"),
            Draining { on: false, .. } => "requests are taken again".to_owned(),
        });
    };
    view! {
        <div class="row">
            <Sure
                text=word("Drain: take no new requests", "Take requests again")
                again=word("Press again to drain", "Press again to take requests")
                disabled=Signal::derive(move || !control.ready())
                act
            />
        </div>
    }
}
