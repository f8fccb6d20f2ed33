//! Where the daemon stands.

use std::sync::Arc;

use openjet_proto::Health;

use crate::http::error::ApiError;
use crate::serving::Serving;

/// Seconds after which a refused client may come back while the model is being loaded.
const LOADING_RETRY_S: u64 = 2;

/// Where the daemon stands.
#[derive(Clone, Debug)]
pub enum Phase {
    /// The model is being loaded; what is being done.
    Loading(String),
    /// Requests are served.
    Ready(Arc<Serving>),
    /// Running requests end, new ones are refused.
    Draining(Arc<Serving>, Reason),
    /// No model is loaded.
    Unloaded {
        /// The next request loads it again, and waits for it.
        on_demand: bool,
    },
    /// It can't serve; why.
    Failed(String),
}

/// Why new requests are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The daemon ends.
    Stopping,
    /// Its operator wants it.
    Operator,
    /// The model makes room, for another one or for good.
    Leaving,
}

impl Phase {
    /// The loaded model, whether or not it takes new requests.
    #[must_use]
    pub fn loaded(&self) -> Option<&Arc<Serving>> {
        match self {
            Self::Ready(serving) | Self::Draining(serving, _) => Some(serving),
            Self::Loading(_) | Self::Unloaded { .. } | Self::Failed(_) => None,
        }
    }

    /// The loaded model, for a new request.
    ///
    /// # Errors
    /// 503 with the state when there is none, or when no new requests are taken.
    pub fn serving(&self) -> Result<Arc<Serving>, ApiError> {
        let (message, retry, code) = match self {
            Self::Ready(serving) => return Ok(serving.clone()),
            Self::Loading(detail) => (format!("the model is being loaded ({detail})"), LOADING_RETRY_S, "loading"),
            Self::Draining(_, reason) => {
                let why = match reason {
                    Reason::Stopping => "the daemon is stopping; no new requests are taken",
                    Reason::Operator => "the daemon is being drained; no new requests are taken",
                    Reason::Leaving => {
                        "the model makes room for another one; no new requests are taken until it is there"
                    }
                };
                (why.to_owned(), 5, "draining")
            }
            Self::Unloaded { .. } => {
                ("no model is loaded; `openjetctl load` on the server loads one".to_owned(), 10, "unloaded")
            }
            Self::Failed(reason) => (format!("the engine has failed: {reason}"), 10, "failed"),
        };
        Err(ApiError::unavailable(message, retry).with_code(code))
    }

    /// The same for whoever checks on the daemon, the engine's own word included.
    #[must_use]
    pub fn health(&self) -> Health {
        let engine = self.loaded().map(|serving| serving.engine.status().health.clone());
        match self {
            Self::Loading(detail) => Health::Loading { detail: detail.clone() },
            Self::Ready(_) => engine.unwrap_or(Health::Draining),
            Self::Draining(..) => engine.filter(|own| matches!(own, Health::Failed { .. })).unwrap_or(Health::Draining),
            Self::Unloaded { on_demand } => Health::Unloaded { on_demand: *on_demand },
            Self::Failed(reason) => Health::Failed { reason: reason.clone() },
        }
    }

    /// A few words for the service manager.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Loading(detail) => detail.clone(),
            Self::Ready(serving) => format!("serving {}", serving.model.name),
            Self::Draining(_, Reason::Stopping) => "waiting for running requests".to_owned(),
            Self::Draining(..) => "taking no new requests".to_owned(),
            Self::Unloaded { on_demand: true } => "idle; the next request loads the model".to_owned(),
            Self::Unloaded { on_demand: false } => "no model is loaded".to_owned(),
            Self::Failed(reason) => format!("failed: {reason}"),
        }
    }
}
