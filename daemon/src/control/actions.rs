//! What the control socket's requests do.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use openjet_proto::control::{AgentCount, Drain, Draining, Forget, Forgotten, Kicked, LoadModel, LogFilter, Unloaded};
use openjet_proto::events::What;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Control, Refusal, reply};
use crate::events::Reader;
use crate::http::body::{Body, BodyLimits, read_json};
use crate::http::sse::{self, EventSource, data};
use crate::phase::{Phase, Reason};
use crate::serving::Serving;
use crate::{log, models};

/// Most bytes of a request.
const BODY_BYTES: usize = 64 << 10;

/// Longest wait for a request's body.
const BODY_TIME: Duration = Duration::from_secs(5);

/// Silence in the stream of events after which there is a sign of life.
const PING: Duration = Duration::from_secs(10);

impl Control {
    pub(super) fn agents(&self) -> Result<Response<Body>, Refusal> {
        let engine = self.app.status().engine.ok_or_else(|| {
            let hint = "`openjetctl status` says what the daemon is doing";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the engine is not running".to_owned(), hint)
        })?;
        reply(&engine.agents)
    }

    pub(super) async fn set_agents(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let AgentCount { count } = body(request, "send {\"count\": N}").await?;
        let count = self.serving()?.engine.set_agents(count).await.map_err(|message| {
            let hint = "ask for fewer agents, or restart with a larger setting agents_max";
            Refusal::new(StatusCode::CONFLICT, message, hint)
        })?;
        reply(&AgentCount { count })
    }

    pub(super) async fn kick(&self, agent: &str) -> Result<Response<Body>, Refusal> {
        let hint = "`openjetctl agents` lists the agents";
        let agent: usize = agent.parse().map_err(|_| {
            Refusal::new(StatusCode::BAD_REQUEST, format!("{agent} is not the number of an agent"), hint)
        })?;
        let ended = self.serving()?.engine.kick(agent).await;
        let ended = ended.map_err(|message| Refusal::new(StatusCode::NOT_FOUND, message, hint))?;
        reply(&Kicked { agent, ended })
    }

    pub(super) async fn models(&self) -> Result<Response<Body>, Refusal> {
        let (folders, status) = (self.app.config().model_paths.clone(), self.app.status());
        let list = tokio::task::spawn_blocking(move || models::list(&folders, status.model.as_ref())).await;
        let list = list.map_err(|error| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), "report this as a bug")
        })?;
        reply(&list)
    }

    pub(super) async fn plan(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let asked: LoadModel = body(request, "send {\"model\": \"NAME\"}").await?;
        reply(&self.app.change.plan(&self.app, asked).await?)
    }

    pub(super) async fn load(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let asked: LoadModel = body(request, "send {\"model\": \"NAME\"}").await?;
        let app = self.app.clone();
        // It goes on when whoever asked has gone away.
        let change = tokio::spawn(async move { app.change.load(&app, asked).await });
        reply(&finished(change).await??)
    }

    pub(super) async fn unload(&self) -> Result<Response<Body>, Refusal> {
        let app = self.app.clone();
        let change = tokio::spawn(async move { app.change.unload(&app, false).await });
        reply(&Unloaded { model: finished(change).await?? })
    }

    pub(super) async fn drain(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let Drain { on } = body(request, "send {\"on\": true}, or false to take requests again").await?;
        match (&*self.app.phase(), on) {
            (Phase::Ready(serving), true) => self.app.set_phase(Phase::Draining(serving.clone(), Reason::Operator)),
            (Phase::Draining(serving, Reason::Operator), false) => self.app.set_phase(Phase::Ready(serving.clone())),
            (Phase::Ready(_), false) | (Phase::Draining(_, Reason::Operator), true) => {}
            (other, _) => {
                let message = format!("not now: {}", other.words());
                return Err(Refusal::new(StatusCode::CONFLICT, message, "wait until a model is loaded"));
            }
        }
        self.app.events.tell(What::Drain { on });
        reply(&Draining { on, requests: self.app.requests.now() })
    }

    pub(super) async fn conversations(&self) -> Result<Response<Body>, Refusal> {
        reply(&self.serving()?.engine.conversations().await.map_err(ended)?)
    }

    pub(super) async fn forget(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let which = match body(request, "send \"all\" or {\"conversation\": \"ID\"}").await? {
            Forget::All => None,
            Forget::Conversation(which) => Some(which),
        };
        let serving = self.serving()?;
        let count = serving.engine.forget(which).await.map_err(ended)?;
        // Texts that were encoded have no session: all of them go, whatever was named.
        serving.tokenizer.forget();
        reply(&Forgotten { count })
    }

    pub(super) fn log(&self) -> Result<Response<Body>, Refusal> {
        reply(&LogFilter { filter: log::current() })
    }

    pub(super) async fn set_log(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let hint = "send {\"filter\": \"LEVEL\"}: error, warn, info, debug, trace, or filters such as info,openjetd::http=debug";
        let LogFilter { filter } = body(request, hint).await?;
        log::set(&filter).map_err(|message| Refusal::new(StatusCode::BAD_REQUEST, message, hint))?;
        self.log()
    }

    pub(super) fn events(&self) -> Response<Body> {
        sse::response(Told(self.app.events.listen()), PING)
    }

    /// The model, also while new requests of clients are refused.
    fn serving(&self) -> Result<Arc<Serving>, Refusal> {
        let phase = self.app.phase();
        match phase.loaded() {
            Some(serving) => Ok(serving.clone()),
            None => phase.serving().map_err(|error| Refusal::of(&error, "wait until the daemon is ready")),
        }
    }
}

/// Events for one reader.
struct Told(Reader);

impl EventSource for Told {
    async fn next(&mut self) -> Option<Bytes> {
        let event = self.0.next().await?;
        Some(data(&json!(event)).into())
    }
}

/// A request's typed body.
async fn body<T: DeserializeOwned>(request: Request<Incoming>, hint: &str) -> Result<T, Refusal> {
    let limits = BodyLimits { bytes: BODY_BYTES, time: BODY_TIME };
    let value = read_json(request, limits).await.map_err(|error| Refusal::of(&error, hint))?;
    serde_json::from_value(value).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string(), hint))
}

/// What a task came to.
async fn finished<T>(task: tokio::task::JoinHandle<T>) -> Result<T, Refusal> {
    task.await.map_err(|error| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("it was broken off: {error}"), "report this as a bug")
    })
}

fn ended(message: String) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message, "restart the daemon")
}
