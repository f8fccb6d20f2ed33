//! Small pictures of numbers.

use crate::history::POINTS;
use leptos::prelude::*;
use std::collections::VecDeque;
use std::fmt::Write;

/// A bar that shows `part` of `whole`, with words beside it.
#[component]
pub(crate) fn Bar(
    /// What is measured.
    #[prop(into)]
    label: String,
    /// Names the number in tests.
    figure: &'static str,
    /// What stands beside it.
    #[prop(into)]
    text: Signal<String>,
    /// How much there is now.
    #[prop(into)]
    part: Signal<u64>,
    /// The most there can be.
    #[prop(into)]
    whole: Signal<u64>,
) -> impl IntoView {
    view! {
        <label class="bar">
            <span>{label}</span>
            <span class="number" data-figure=figure>{text}</span>
            <progress max=move || whole.get().max(1).to_string() value=move || part.get().to_string()></progress>
        </label>
    }
}

/// A line of the last minute, the newest value at the right edge. The number beside it says the same, so it is hidden from
/// screen readers.
#[component]
pub(crate) fn Spark(
    /// The values, oldest first.
    #[prop(into)]
    values: Signal<VecDeque<f64>>,
    /// Pixels high, as drawn.
    height: u32,
) -> impl IntoView {
    let points = Memo::new(move |_| values.with(|values| points(values, height)));
    view! {
        <svg class="spark" viewBox=format!("0 0 {POINTS} {height}") preserveAspectRatio="none" aria-hidden="true">
            <polygon points=move || points.with(|points| format!("{points}{POINTS},{height} {},{height}", start(points))) />
            <polyline points=points fill="none" vector-effect="non-scaling-stroke" />
        </svg>
    }
}

fn points(values: &VecDeque<f64>, height: u32) -> String {
    let top = values.iter().copied().fold(1.0, f64::max);
    let start = POINTS.saturating_sub(values.len()) + 1;
    let room = f64::from(height) - 2.0;
    let mut points = String::new();
    for (place, value) in values.iter().enumerate() {
        // Writing to a string can't fail.
        let _ok = write!(points, "{},{:.1} ", start + place, room + 1.0 - room * value / top);
    }
    points
}

/// Where a line begins.
fn start(points: &str) -> &str {
    points.split(',').next().filter(|start| !start.is_empty()).unwrap_or("300")
}
