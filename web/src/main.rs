//! The page: what each agent does, live, and a box to try the model.

mod agent;
mod chat;
mod completion;
mod feed;
mod format;
mod meter;
mod summary;

use agent::AgentCard;
use chat::Chat;
use feed::Feed;
use leptos::prelude::*;
use summary::Summary;

fn main() {
    mount_to_body(App);
}

/// The whole page.
#[component]
fn App() -> impl IntoView {
    let feed = Feed::open();
    let ids = Memo::new(move |_| feed.status.with(|status| status.as_ref().map_or(0, |status| status.agents.len())));
    view! {
        <header>
            <h1>"OpenJet"</h1>
            <Summary feed />
        </header>
        <main>
            <section aria-labelledby="agents-title">
                <h2 id="agents-title">"Agents"</h2>
                <div class="cards">
                    <For each=move || 0..ids.get() key=|id| *id children=move |id| view! { <AgentCard feed id /> } />
                </div>
            </section>
            <Chat />
        </main>
    }
}
