//! The control socket: HTTP and JSON over a Unix socket, for `openjetctl`.

mod actions;
pub mod socket;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use openjet_proto::control::{ErrorDetail, ErrorReply};
use openjet_proto::events::What;
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::change;
use crate::http::body::{Body, json_response};
use crate::http::error::ApiError;
use crate::http::server::{Handler, Peer};
use crate::log::AUDIT;

/// Answers control requests.
#[derive(Clone, Debug)]
pub struct Control {
    /// The daemon.
    pub app: Arc<App>,
}

/// Why a request was refused, and what to do.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    message: String,
    hint: String,
}

impl Handler for Control {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let peer = request.extensions().get::<Peer>().copied();
        let answer = self.answer(request).await;
        let (response, problem) = match answer {
            Ok(response) => (response, None),
            Err(refusal) => (refusal.to_response(), Some(refusal.message)),
        };
        if method != Method::GET {
            self.audit(&method, &path, peer, response.status(), problem.as_deref());
        }
        response
    }
}

impl Control {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let agent = path.strip_prefix("/v1/agents/").and_then(|rest| rest.strip_suffix("/kick"));
        match (method.as_str(), path.as_str()) {
            ("GET", "/v1/status") => reply(&self.app.status()),
            ("GET", "/v1/agents") => self.agents(),
            ("PUT", "/v1/agents") => self.set_agents(request).await,
            ("POST", _) if agent.is_some() => self.kick(agent.unwrap_or_default()).await,
            ("GET", "/v1/models") => self.models().await,
            ("POST", "/v1/plan") => self.plan(request).await,
            ("POST", "/v1/load") => self.load(request).await,
            ("POST", "/v1/unload") => self.unload().await,
            ("PUT", "/v1/drain") => self.drain(request).await,
            ("GET", "/v1/conversations") => self.conversations().await,
            ("POST", "/v1/forget") => self.forget(request).await,
            ("GET", "/v1/metrics") => reply(&self.app.metrics.samples(&self.app)),
            ("GET", "/v1/log") => self.log(),
            ("PUT", "/v1/log") => self.set_log(request).await,
            ("GET", "/v1/events") => Ok(self.events()),
            _ => Err(misdirected(&method, &path, agent.is_some())),
        }
    }

    /// One line for each change that somebody asked for, done or not.
    fn audit(&self, method: &Method, path: &str, peer: Option<Peer>, status: StatusCode, problem: Option<&str>) {
        // Who comes over HTTP has the admin key, or is any user of this machine where the settings allow that.
        let (uid, gid) = (peer.map(|peer| peer.uid), peer.map(|peer| peer.gid));
        let pid = peer.and_then(|peer| peer.pid);
        let (action, status) = (format!("{method} {path}"), status.as_u16());
        tracing::info!(target: AUDIT, uid, gid, pid, action, status, problem, "control");
        self.app.events.tell(What::Action { action, uid, pid, status });
    }
}

/// What is wrong with a method or path.
fn misdirected(method: &Method, path: &str, kick: bool) -> Refusal {
    let methods = match path {
        "/v1/status" | "/v1/models" | "/v1/conversations" | "/v1/metrics" | "/v1/events" => "GET",
        "/v1/agents" | "/v1/log" => "GET or PUT",
        "/v1/drain" => "PUT",
        "/v1/plan" | "/v1/load" | "/v1/unload" | "/v1/forget" => "POST",
        _ if kick => "POST",
        _ => {
            let message = format!("there is no {path} on the control socket");
            return Refusal::new(StatusCode::NOT_FOUND, message, "use an openjetctl of the daemon's version");
        }
    };
    let message = format!("{path} does not take {method}");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message, &format!("use {methods}"))
}

fn reply(value: &impl Serialize) -> Result<Response<Body>, Refusal> {
    let value = serde_json::to_value(value)
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), "report this as a bug"))?;
    Ok(json_response(StatusCode::OK, &value))
}

impl Refusal {
    fn new(status: StatusCode, message: String, hint: &str) -> Self {
        Self { status, message, hint: hint.to_owned() }
    }

    /// The same as the HTTP API's error.
    fn of(error: &ApiError, hint: &str) -> Self {
        Self::new(error.status(), error.message().to_owned(), hint)
    }

    fn to_response(&self) -> Response<Body> {
        let error = ErrorDetail { message: self.message.clone(), hint: self.hint.clone() };
        json_response(self.status, &json!(ErrorReply { error }))
    }
}

impl From<change::Refused> for Refusal {
    fn from(refused: change::Refused) -> Self {
        Self::new(refused.status, refused.message, refused.hint)
    }
}
