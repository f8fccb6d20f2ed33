//! The daemon's messages over a WebSocket: kept open, opened anew when lost, and watched for silence.

use crate::history::History;
use leptos::prelude::*;
use openjet_proto::live::{FromPage, Live, ToPage};
use openjet_proto::{AgentStatus, EngineStatus};
use serde_json::Value;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use wasm_bindgen::JsCast;
use wasm_bindgen::closure::Closure;
use web_sys::{MessageEvent, WebSocket};

/// Milliseconds without a message after which what is shown counts as old; the daemon sends one every 200.
const STALE_MS: f64 = 2000.0;
/// Longest pause before another attempt to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How fresh what is shown is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// No message came yet.
    Connecting,
    /// Messages come.
    Live,
    /// The connection is open, but silent.
    Stale,
    /// The connection is lost; another one is tried.
    Lost,
}

/// The newest state and what was seen before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feed {
    /// The newest state.
    pub(crate) live: RwSignal<Option<Live>>,
    /// How fresh it is.
    pub(crate) link: RwSignal<Link>,
    /// Speeds of the last minute.
    pub(crate) history: RwSignal<History>,
    /// Number of the newest message.
    pub(crate) number: RwSignal<u64>,
    /// Milliseconds since 1970 when it came.
    seen: RwSignal<f64>,
}

impl Feed {
    /// Connects to the daemon that served this page.
    pub(crate) fn open() -> Self {
        let feed = Self {
            live: RwSignal::new(None),
            link: RwSignal::new(Link::Connecting),
            history: RwSignal::new(History::default()),
            number: RwSignal::new(0),
            seen: RwSignal::new(0.0),
        };
        set_interval(move || feed.watch(), Duration::from_millis(500));
        feed.connect(Duration::from_millis(250));
        feed
    }

    /// What `read` finds in the newest state; the default before there is one.
    pub(crate) fn of<T>(self, read: impl Fn(&Live) -> T + Send + Sync + 'static) -> Memo<T>
    where
        T: Default + PartialEq + Send + Sync + 'static,
    {
        Memo::new(move |_| self.live.with(|live| live.as_ref().map_or_else(T::default, &read)))
    }

    /// What `read` finds in the engine's status; the default while there is no engine.
    pub(crate) fn engine<T>(self, read: impl Fn(&EngineStatus) -> T + Send + Sync + 'static) -> Memo<T>
    where
        T: Default + PartialEq + Send + Sync + 'static,
    {
        self.of(move |live| live.daemon.engine.as_ref().map_or_else(T::default, &read))
    }

    /// Words about the engine; a dash while there is none.
    pub(crate) fn words(self, write: impl Fn(&EngineStatus) -> String + Send + Sync + 'static) -> Memo<String> {
        let read = move |live: &Live| live.daemon.engine.as_ref().map(&write);
        Memo::new(move |_| self.live.with(|live| live.as_ref().and_then(&read).unwrap_or_else(|| "–".to_owned())))
    }

    /// What `read` finds in an agent's status; the default while there is no such agent.
    pub(crate) fn agent<T>(self, id: usize, read: impl Fn(&AgentStatus) -> T + Send + Sync + 'static) -> Memo<T>
    where
        T: Default + PartialEq + Send + Sync + 'static,
    {
        self.engine(move |engine| engine.agents.get(id).map_or_else(T::default, &read))
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
        let (own, mut state, mut last) = (socket.clone(), Value::Null, 0);
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            let text = event.data().as_string().unwrap_or_default();
            let number = match serde_json::from_str::<ToPage>(&text) {
                Ok(ToPage::Snapshot { number, state: all }) => {
                    state = all;
                    number
                }
                Ok(ToPage::Update { number, change }) if number == last + 1 => {
                    change.apply(&mut state);
                    number
                }
                // It is no use to go on from here: a new connection begins with everything. The closing can't fail.
                _ => return drop(own.close()),
            };
            last = number;
            if let Ok(live) = serde_json::from_value::<Live>(state.clone()) {
                fresh.set(Duration::from_millis(250));
                self.take(number, live);
            }
            if let Ok(seen) = serde_json::to_string(&FromPage::Seen(number)) {
                // An error means that the connection is lost, which is noticed elsewhere.
                let _lost = own.send_with_str(&seen);
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

    /// Takes in a state.
    fn take(self, number: u64, live: Live) {
        self.history.update(|history| history.add(live.daemon.engine.as_ref()));
        self.live.set(Some(live));
        self.number.set(number);
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

/// Where the messages come from.
fn address() -> Option<String> {
    let location = web_sys::window()?.location();
    let scheme = if location.protocol().ok()? == "https:" { "wss" } else { "ws" };
    Some(format!("{scheme}://{}/ws", location.host().ok()?))
}
