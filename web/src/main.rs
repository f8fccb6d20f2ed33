//! The page: what each agent does, live, a way to change things, and a box to try the model.

mod actions;
mod agent;
mod chat;
mod completion;
mod control;
mod feed;
mod fetch;
mod format;
mod header;
mod history;
mod memory;
mod meter;
mod model;
mod plan;
mod pool;
mod requests;
mod summary;
mod turn;
mod waiting;

use actions::ActionsPanel;
use agent::AgentCard;
use chat::Chat;
use control::Control;
use feed::Feed;
use header::Header;
use leptos::prelude::*;
use memory::Card;
use model::Model;
use pool::Pool;
use requests::Requests;
use summary::Summary;
use waiting::Queue;

fn main() {
    // What stood there while this was being loaded.
    if let Some(shell) = document().get_element_by_id("shell") {
        shell.remove();
    }
    mount_to_body(App);
}

/// The whole page.
#[component]
fn App() -> impl IntoView {
    let feed = Feed::open();
    let control = Control::new(feed);
    let agents = feed.engine(|engine| engine.agents.len());
    view! {
        <Header feed />
        <main data-number=move || feed.number.get().to_string()>
            <Summary feed />
            <section aria-labelledby="agents-title">
                <h2 id="agents-title">"Agents"</h2>
                <div class="cards">
                    <For each=move || 0..agents.get() key=|id| *id children=move |id| view! { <AgentCard feed control id /> } />
                </div>
            </section>
            <div class="panels">
                <Pool feed />
                <Card feed />
                <Queue feed />
                <Model feed />
            </div>
            <Requests feed />
            <div class="panels wide">
                <Chat feed />
                <ActionsPanel feed control />
            </div>
        </main>
    }
}
