//! The daemon's snapshots over a WebSocket: kept open, opened anew when lost, and watched for silence.

use leptos::prelude::*;
use openjet_proto::{AgentState, AgentStatus, EngineStatus};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use wasm_bindgen::JsCast;
use wasm_bindgen::closure::Closure;
use web_sys::{MessageEvent, WebSocket};

/// Milliseconds without a snapshot after which what is shown counts as old; the daemon sends one every 200.
const STALE_MS: f64 = 2000.0;
/// Longest pause before another attempt to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Snapshots that an agent's history holds: one minute.
const HISTORY: usize = 300;

/// How fresh what is shown is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// No snapshot came yet.
    Connecting,
    /// Snapshots come.
    Live,
    /// The connection is open, but silent.
    Stale,
    /// The connection is lost; another one is tried.
    Lost,
}

/// The latest snapshot and what was seen before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feed {
    /// The latest snapshot.
    pub(crate) status: RwSignal<Option<EngineStatus>>,
    /// How fresh it is.
    pub(crate) link: RwSignal<Link>,
    /// Each agent's tokens per second, oldest first.
    pub(crate) history: RwSignal<Vec<VecDeque<f64>>>,
    /// Milliseconds since 1970 when it came.
    seen: RwSignal<f64>,
}

impl Feed {
    /// Connects to the daemon that served this page.
    pub(crate) fn open() -> Self {
        let feed = Self {
            status: RwSignal::new(None),
            link: RwSignal::new(Link::Connecting),
            history: RwSignal::new(Vec::new()),
            seen: RwSignal::new(0.0),
        };
        set_interval(move || feed.watch(), Duration::from_millis(500));
        feed.connect(Duration::from_millis(250));
        feed
    }

    /// Opens a connection; when it ends, another one is opened after `pause`, then after twice that.
    fn connect(self, pause: Duration) {
        let again = move |pause: Duration| set_timeout(move || self.connect((pause * 2).min(LONGEST_PAUSE)), pause);
        let Some(socket) = address().and_then(|address| WebSocket::new(&address).ok()) else {
            self.link.set(Link::Lost);
            again(pause);
            return;
        };
        let pause = Rc::new(Cell::new(pause));
        let fresh = Rc::clone(&pause);
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            let text = event.data().as_string().unwrap_or_default();
            if let Ok(status) = serde_json::from_str::<EngineStatus>(&text) {
                fresh.set(Duration::from_millis(250));
                self.take(status);
            }
        });
        socket.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        let on_close = Closure::once_into_js(move || {
            drop(on_message);
            self.link.set(Link::Lost);
            again(pause.get());
        });
        socket.set_onclose(Some(on_close.unchecked_ref()));
    }

    /// Takes in a snapshot.
    fn take(self, status: EngineStatus) {
        self.history.update(|history| {
            history.resize(status.agents.len(), VecDeque::new());
            for (past, agent) in history.iter_mut().zip(&status.agents) {
                if past.len() == HISTORY {
                    past.pop_front();
                }
                past.push_back(rate(agent));
            }
        });
        self.status.set(Some(status));
        self.seen.set(js_sys::Date::now());
        if self.link.get_untracked() != Link::Live {
            self.link.set(Link::Live);
        }
    }

    /// Notices silence.
    fn watch(self) {
        let silent = js_sys::Date::now() - self.seen.get_untracked() > STALE_MS;
        if silent && self.link.get_untracked() == Link::Live {
            self.link.set(Link::Stale);
        }
    }
}

/// Tokens per second right now: an agent that doesn't write keeps the figure of its last request.
pub(crate) fn rate(agent: &AgentStatus) -> f64 {
    if agent.state == AgentState::Decode { agent.tokens_per_second } else { 0.0 }
}

/// Where the snapshots come from.
fn address() -> Option<String> {
    let location = web_sys::window()?.location();
    let scheme = if location.protocol().ok()? == "https:" { "wss" } else { "ws" };
    Some(format!("{scheme}://{}/ws", location.host().ok()?))
}
