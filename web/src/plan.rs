//! What a model would take, before it is loaded.

use crate::format;
use leptos::prelude::*;
use openjet_proto::control::ModelPlan;
use openjet_proto::device::MemoryPart;

/// A model's plan, part by part.
#[component]
pub(crate) fn Planned(plan: RwSignal<Option<ModelPlan>>) -> impl IntoView {
    let facts = move || {
        plan.with(|plan| {
            let model = &plan.as_ref()?.model;
            let (size, parameters) = (format::bytes(model.bytes), format::short(model.parameters));
            let context = format::count(model.context as u64);
            Some(format!("{}: {size}, {parameters} parameters, made for {context} tokens of context", model.name))
        })
    };
    let parts =
        move |list: fn(&ModelPlan) -> Vec<MemoryPart>| plan.with(|plan| plan.as_ref().map(list).unwrap_or_default());
    let device = move || parts(|plan| plan.memory.as_ref().map(|memory| memory.parts.clone()).unwrap_or_default());
    let sum = move || {
        plan.with(|plan| {
            let plan = plan.as_ref()?;
            let memory = plan.memory.as_ref()?;
            let of = plan.available.map_or_else(String::new, |bytes| format!(" of {}", format::bytes(bytes)));
            Some(format!("{}{of}", format::bytes(memory.total)))
        })
    };
    view! {
        <div class="plan" data-figure="plan">
            <p>{facts}</p>
            <dl class="facts">
                <For each=device key=|part| part.name.clone() children=|part| view! {
                    <dt title=part.detail>{part.name}</dt>
                    <dd>{format::bytes(part.bytes)}</dd>
                } />
                <dt>"In all"</dt>
                <dd>{move || sum().unwrap_or_else(|| "it would run on the CPU, in host memory".to_owned())}</dd>
            </dl>
            <p>{move || plan.with(|plan| plan.as_ref().map(|plan| plan.verdict.clone()))}</p>
        </div>
    }
}
