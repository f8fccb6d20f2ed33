//! Small pictures of numbers.

use leptos::prelude::*;
use std::collections::VecDeque;
use std::fmt::Write;

/// A bar that shows `part` of `whole`, with both numbers in words beside it.
#[component]
pub(crate) fn Bar(
    /// What is measured.
    #[prop(into)]
    label: String,
    /// How much there is now.
    #[prop(into)]
    part: Signal<usize>,
    /// The most there can be.
    #[prop(into)]
    whole: Signal<usize>,
) -> impl IntoView {
    let text =
        move || format!("{} of {}", crate::format::count(part.get() as u64), crate::format::count(whole.get() as u64));
    view! {
        <label class="bar">
            <span>{label}</span>
            <span class="number">{text}</span>
            <progress max=move || whole.get().max(1).to_string() value=move || part.get().to_string()></progress>
        </label>
    }
}

/// A line of past values, the newest at the right edge. The number beside it says the same, so it is hidden from
/// screen readers.
#[component]
pub(crate) fn Spark(
    /// The values, oldest first.
    #[prop(into)]
    values: Signal<VecDeque<f64>>,
    /// How many fill the width.
    width: usize,
) -> impl IntoView {
    let points = move || {
        values.with(|values| {
            let top = values.iter().copied().fold(1.0, f64::max);
            let start = width.saturating_sub(values.len());
            let mut points = String::new();
            for (place, value) in values.iter().enumerate() {
                let _ = write!(points, "{},{:.1} ", start + place, 39.0 - 38.0 * value / top);
            }
            points
        })
    };
    view! {
        <svg class="spark" viewBox=format!("0 0 {width} 40") preserveAspectRatio="none" aria-hidden="true">
            <polyline points=points fill="none" vector-effect="non-scaling-stroke" />
        </svg>
    }
}
