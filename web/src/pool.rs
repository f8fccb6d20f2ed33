//! The key-value pool: whose pages, which are shared.

use crate::feed::Feed;
use crate::format;
use leptos::prelude::*;
use openjet_proto::PoolShare;

/// Cells of the map in a row.
const COLUMNS: usize = 64;
/// Rows of the map; in larger pools a cell stands for several pages.
const ROWS: usize = 12;
/// Side of a cell, as drawn.
const SIDE: usize = 10;

/// A map of the pool and what its colours mean.
#[component]
pub(crate) fn Pool(feed: Feed) -> impl IntoView {
    let total = feed.engine(|engine| engine.pages_total);
    let free = feed.engine(|engine| engine.pages_free);
    let shares = feed.engine(|engine| engine.pool.clone());
    let used = move || {
        format!(
            "{} of {}",
            format::count((total.get() - free.get().min(total.get())) as u64),
            format::count(total.get() as u64)
        )
    };
    let cell = move || total.get().div_ceil(COLUMNS * ROWS).max(1);
    let rows = move || total.get().div_ceil(cell()).div_ceil(COLUMNS).max(1);
    // Each set of users is one run of cells, in the order of the legend.
    let runs = Memo::new(move |_| {
        let mut from = 0;
        let mut runs = Vec::new();
        for share in shares.get() {
            let to = from + share.pages;
            runs.push((share, run(from.div_ceil(cell()), to.div_ceil(cell()))));
            from = to;
        }
        runs
    });
    view! {
        <section class="panel" aria-labelledby="pool-title">
            <h2 id="pool-title">"Key-value pool"</h2>
            <p class="dim">
                <span class="number" data-figure="pages">{used}</span> " pages in use; conversations: "
                <span class="number" data-figure="resting">{feed.engine(|engine| engine.resting)}</span>
                " resting in host memory"
            </p>
            <svg class="map" viewBox=move || format!("0 0 {} {}", COLUMNS * SIDE, rows() * SIDE) aria-hidden="true">
                <defs>
                    <pattern id="cells" width=SIDE height=SIDE patternUnits="userSpaceOnUse">
                        <path d=format!("M0 0H{SIDE}M0 0V{SIDE}") class="grid" />
                    </pattern>
                    <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
                        <rect width="2.5" height="6" class="hatch" />
                    </pattern>
                </defs>
                <path class="free" d=move || run(0, total.get().div_ceil(cell())) />
                <For each=move || runs.get() key=|(share, path)| (owner(share), shared(share), path.clone()) children=|(share, path)| view! {
                    <path data-owner=owner(&share) d=path.clone() />
                    <path d=path fill=if shared(&share) { "url(#hatch)" } else { "none" } />
                } />
                <path d=move || run(0, total.get().div_ceil(cell())) fill="url(#cells)" />
            </svg>
            <ul class="legend" data-figure="pool">
                <For each=move || shares.get() key=|share| (words(share), share.pages) children=|share| view! {
                    <li>
                        <Swatch owner=owner(&share) shared=shared(&share) />
                        <span>{words(&share)}</span>
                        <span class="number">{format::count(share.pages as u64)}</span>
                    </li>
                } />
                <li>
                    <Swatch owner="free".to_owned() shared=false />
                    <span>"free"</span>
                    <span class="number" data-figure="free">{move || format::count(free.get() as u64)}</span>
                </li>
            </ul>
        </section>
    }
}

#[component]
fn Swatch(owner: String, shared: bool) -> impl IntoView {
    view! {
        <svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">
            <rect width="14" height="14" data-owner=owner />
            <rect width="14" height="14" fill=if shared { "url(#hatch)" } else { "none" } />
        </svg>
    }
}

/// Outline of the cells from `from` up to `to`, row by row.
fn run(from: usize, to: usize) -> String {
    let mut path = String::new();
    let mut at = from;
    while at < to {
        let (row, column) = (at / COLUMNS, at % COLUMNS);
        // Whole rows are drawn as one.
        let rows = if column == 0 { ((to - at) / COLUMNS).max(1) } else { 1 };
        let end = if rows > 1 { COLUMNS } else { (column + to - at).min(COLUMNS) };
        path += &format!("M{} {}H{}V{}H{}Z", column * SIDE, row * SIDE, end * SIDE, (row + rows) * SIDE, column * SIDE);
        at += if rows > 1 { rows * COLUMNS } else { end - column };
    }
    path
}

fn shared(share: &PoolShare) -> bool {
    share.agents.len() + usize::from(share.kept) > 1
}

/// What a share is coloured by: its first agent, one of eight colours.
fn owner(share: &PoolShare) -> String {
    share.agents.first().map_or_else(|| "kept".to_owned(), |agent| (agent % 8).to_string())
}

fn words(share: &PoolShare) -> String {
    let agents: Vec<String> = share.agents.iter().map(ToString::to_string).collect();
    let agents = match &agents[..] {
        [] => return "prompts kept for later".to_owned(),
        [one] => format!("agent {one}"),
        many => format!("agents {} together", many.join(", ")),
    };
    if share.kept { format!("{agents}, kept for later too") } else { agents }
}
