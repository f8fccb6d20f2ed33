//! The control socket: HTTP and JSON over a Unix socket, for `openjetctl`.

pub mod socket;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use openjet_proto::control::{AgentCount, ErrorDetail, ErrorReply, Forget, Forgotten};
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::http::body::{Body, json_response, read_json};
use crate::http::error::ApiError;
use crate::http::server::Handler;

/// Answers control requests.
#[derive(Clone, Debug)]
pub struct Control {
    /// The daemon.
    pub app: Arc<App>,
}

impl Handler for Control {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match (&method, path.as_str()) {
            (&Method::GET, "/v1/status") => reply(&self.app.status()),
            (&Method::GET, "/v1/agents") => match self.app.status().engine {
                Some(engine) => reply(&engine.agents),
                None => not_running(),
            },
            (&Method::PUT, "/v1/agents") => self.set_agents(request).await,
            (&Method::GET, "/v1/conversations") => self.conversations().await,
            (&Method::POST, "/v1/forget") => self.forget(request).await,
            (_, "/v1/forget") => {
                refuse(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"), "use POST")
            }
            (_, "/v1/status" | "/v1/conversations") => {
                refuse(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"), "use GET")
            }
            (_, "/v1/agents") => {
                refuse(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"), "use GET or PUT")
            }
            _ => refuse(
                StatusCode::NOT_FOUND,
                format!("there is no {path} on the control socket"),
                "use an openjetctl of the daemon's version",
            ),
        }
    }
}

impl Control {
    async fn conversations(&self) -> Response<Body> {
        match self.app.serving() {
            Ok(serving) => match serving.engine.conversations().await {
                Ok(kept) => reply(&kept),
                Err(message) => refuse(StatusCode::SERVICE_UNAVAILABLE, message, "restart the daemon"),
            },
            Err(error) => refuse_as(&error, "wait until the daemon is ready"),
        }
    }

    async fn forget(&self, request: Request<Incoming>) -> Response<Body> {
        let hint = "send \"all\" or {\"conversation\": \"ID\"}";
        let value = match read_json(request, self.app.body_limits()).await {
            Ok(value) => value,
            Err(error) => return refuse_as(&error, hint),
        };
        let which = match serde_json::from_value(value) {
            Ok(Forget::All) => None,
            Ok(Forget::Conversation(which)) => Some(which),
            Err(error) => return refuse(StatusCode::BAD_REQUEST, error.to_string(), hint),
        };
        let serving = match self.app.serving() {
            Ok(serving) => serving,
            Err(error) => return refuse_as(&error, "wait until the daemon is ready"),
        };
        match serving.engine.forget(which).await {
            Ok(count) => {
                tracing::info!(count, "conversations forgotten");
                reply(&Forgotten { count })
            }
            Err(message) => refuse(StatusCode::SERVICE_UNAVAILABLE, message, "restart the daemon"),
        }
    }

    async fn set_agents(&self, request: Request<Incoming>) -> Response<Body> {
        let value = match read_json(request, self.app.body_limits()).await {
            Ok(value) => value,
            Err(error) => return refuse_as(&error, "send {\"count\": N}"),
        };
        let count = match serde_json::from_value::<AgentCount>(value) {
            Ok(AgentCount { count }) => count,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, error.to_string(), "send {\"count\": N}"),
        };
        let serving = match self.app.serving() {
            Ok(serving) => serving,
            Err(error) => return refuse_as(&error, "wait until the daemon is ready"),
        };
        match serving.engine.set_agents(count).await {
            Ok(count) => {
                tracing::info!(count, "agents set");
                reply(&AgentCount { count })
            }
            Err(message) => refuse(
                StatusCode::CONFLICT,
                message,
                "ask for fewer agents, or restart with a larger setting agents_max",
            ),
        }
    }
}

fn reply(value: &impl Serialize) -> Response<Body> {
    match serde_json::to_value(value) {
        Ok(value) => json_response(StatusCode::OK, &value),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), "report this as a bug"),
    }
}

fn not_running() -> Response<Body> {
    let message = "the engine is not running".to_owned();
    refuse(StatusCode::SERVICE_UNAVAILABLE, message, "`openjetctl status` says what the daemon is doing")
}

fn refuse_as(error: &ApiError, hint: &str) -> Response<Body> {
    refuse(error.status(), error.message().to_owned(), hint)
}

fn refuse(status: StatusCode, message: String, hint: &str) -> Response<Body> {
    let reply = ErrorReply { error: ErrorDetail { message, hint: hint.to_owned() } };
    json_response(status, &json!(reply))
}
