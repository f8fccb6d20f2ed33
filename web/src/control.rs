//! What the page may change, where the daemon allows it: the actions of the control socket, over HTTP.

use crate::feed::Feed;
use crate::fetch;
use leptos::prelude::*;
use leptos::task::spawn_local;
use openjet_proto::live::Actions;
use openjet_proto::{AgentState, Health};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long a button waits to be pressed again.
const SURE: Duration = Duration::from_secs(4);

/// The way to the actions: the admin key, and what came of the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    actions: Memo<Option<Actions>>,
    /// The key that was typed.
    pub(crate) key: RwSignal<String>,
    /// What came of the last action.
    pub(crate) note: RwSignal<String>,
    /// One is under way.
    pub(crate) busy: RwSignal<bool>,
}

impl Control {
    /// Nothing was done yet.
    pub(crate) fn new(feed: Feed) -> Self {
        let actions = feed.of(|live| Some(live.actions));
        Self {
            actions,
            key: RwSignal::new(String::new()),
            note: RwSignal::new(String::new()),
            busy: RwSignal::new(false),
        }
    }

    /// Who may change things.
    pub(crate) fn actions(self) -> Actions {
        self.actions.get().unwrap_or(Actions::Off)
    }

    /// Whether an action can be tried now.
    pub(crate) fn ready(self) -> bool {
        let may = match self.actions() {
            Actions::Off => false,
            Actions::Key => self.key.with(|key| !key.is_empty()),
            Actions::Open => true,
        };
        may && !self.busy.get()
    }

    /// Asks the control API and hands on what it gives.
    ///
    /// # Errors
    /// The daemon's own words, or the browser's.
    pub(crate) async fn ask<T: DeserializeOwned>(
        self,
        method: &str,
        path: &str,
        body: Option<String>,
    ) -> Result<T, String> {
        let key = self.key.get_untracked();
        let headers = [("X-OpenJet-Admin", key.as_str())];
        let headers = if key.is_empty() { &[][..] } else { &headers };
        let response = fetch::send(method, &format!("/control/v1/{path}"), headers, body.as_deref(), None).await?;
        serde_json::from_str(&fetch::text(&response).await?).map_err(|error| error.to_string())
    }

    /// Does something, and notes what came of it in the words of `done`.
    pub(crate) fn act<T: DeserializeOwned + 'static>(
        self,
        method: &'static str,
        path: String,
        body: Option<String>,
        done: impl FnOnce(T) -> String + 'static,
    ) {
        self.busy.set(true);
        self.note.set("…".to_owned());
        spawn_local(async move {
            let result = self.ask(method, &path, body).await;
            self.note.set(result.map_or_else(|error| format!("✕ {error}"), |value| format!("✓ {}", done(value))));
            self.busy.set(false);
        });
    }
}

/// A body for [`Control::act`]. Facts always have a JSON form.
pub(crate) fn json(value: &impl Serialize) -> Option<String> {
    serde_json::to_string(value).ok()
}

/// A button that asks whether one is sure.
#[component]
pub(crate) fn Sure(
    /// What it says at first.
    #[prop(into)]
    text: Signal<String>,
    /// What it says when it was pressed once.
    #[prop(into)]
    again: Signal<String>,
    /// It can't be pressed.
    #[prop(into)]
    disabled: Signal<bool>,
    /// What it does when it was pressed twice.
    act: impl Fn() + Send + Sync + 'static,
) -> impl IntoView {
    let sure = RwSignal::new(false);
    let press = move |_| {
        if sure.get_untracked() {
            sure.set(false);
            act();
        } else {
            sure.set(true);
            set_timeout(move || sure.set(false), SURE);
        }
    };
    view! {
        <button type="button" class:sure=sure disabled=disabled on:click=press>
            {move || if sure.get() { again.get() } else { text.get() }}
        </button>
    }
}

/// Ends an agent's request. It keeps its place when there is nothing to end.
#[component]
pub(crate) fn Kick(feed: Feed, control: Control, id: usize) -> impl IntoView {
    let idle = feed.agent(id, |agent| agent.state == AgentState::Idle);
    let act = move || {
        control.act(
            "POST",
            format!("agents/{id}/kick"),
            Some("null".to_owned()),
            move |kicked: openjet_proto::control::Kicked| {
                if kicked.ended {
                    format!("the request of agent {id} was ended")
                } else {
                    format!("agent {id} had none")
                }
            },
        );
    };
    view! {
        <Show when=move || control.actions() != Actions::Off>
            <Sure
                text=Signal::stored("End its request".to_owned())
                again=Signal::stored("Press again to end it".to_owned())
                disabled=Signal::derive(move || idle.get() || !control.ready())
                act
            />
        </Show>
    }
}

/// Whether new requests are refused.
pub(crate) fn draining(health: Option<&Health>) -> bool {
    matches!(health, Some(Health::Draining))
}
