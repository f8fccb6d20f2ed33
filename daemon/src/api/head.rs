//! What stands at the head of every answer, and of every request that generates.

use hyper::Request;
use serde_json::{Value, json};

use super::sampling::random_u64;
use crate::app::App;
use crate::http::error::ApiError;
use crate::serving::Serving;

/// Headers that keep a conversation on its agent, the first that is there: our own, then what Claude Code, Codex (two versions)
/// and opencode (two kinds of provider) send on their own.
pub const SESSION_HEADERS: [&str; 6] = [
    "x-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-opencode-session",
];

/// Longest session key, in bytes.
const SESSION_BYTES: usize = 256;

/// An answer's id, time and model.
#[derive(Clone, Debug)]
pub struct Head {
    /// Unique.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The name that the client used, or the model's own.
    pub model: String,
}

impl Head {
    /// A new head; `prefix` is the kind of id, as in `chatcmpl`.
    #[must_use]
    pub fn new(prefix: &str, model: String) -> Self {
        Self { id: new_id(prefix), created: now(), model }
    }

    /// The members that answers and chunks begin with.
    #[must_use]
    pub fn to_json(&self, object: &str) -> Value {
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model })
    }
}

/// `PREFIX-` and 128 random bits.
#[must_use]
pub fn new_id(prefix: &str) -> String {
    new_id_after(&format!("{prefix}-"))
}

/// `prefix` and 128 random bits.
#[must_use]
pub fn new_id_after(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random_u64(), random_u64())
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// The name to echo.
///
/// # Errors
/// 404 when the setting `strict_model` is on and another model is named.
pub fn model_name(app: &App, serving: &Serving, asked: Option<String>) -> Result<String, ApiError> {
    let own = &serving.model.name;
    match asked {
        Some(name) if app.config().strict_model && name != *own => {
            let message = format!("there is no model `{name}`; the loaded one is `{own}`");
            Err(ApiError::not_found(message).with_code("model_not_found").with_param("model"))
        }
        Some(name) => Ok(name),
        None => Ok(own.clone()),
    }
}

/// The session key of a request, if it has one.
///
/// # Errors
/// 400 for one that is too long or not text.
pub fn session<B>(request: &Request<B>) -> Result<Option<String>, ApiError> {
    let sent = SESSION_HEADERS.iter().find_map(|&name| Some((name, request.headers().get(name)?)));
    let Some((name, value)) = sent else { return Ok(None) };
    match value.to_str() {
        Ok("") => Ok(None),
        Ok(text) if text.len() <= SESSION_BYTES => Ok(Some(text.to_owned())),
        _ => Err(ApiError::param(name, format!("{name} must be ASCII, up to {SESSION_BYTES} of it"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_ids_that_clients_send_are_sessions_and_our_own_header_goes_first() {
        let session = |headers: &[(&str, &str)]| {
            let request = headers.iter().fold(Request::builder(), |r, (name, value)| r.header(*name, *value));
            session(&request.body(()).unwrap())
        };
        assert_eq!(session(&[]).unwrap(), None);
        assert_eq!(session(&[("X-Session-Id", "")]).unwrap(), None);
        for name in SESSION_HEADERS {
            assert_eq!(session(&[(name, "a")]).unwrap().as_deref(), Some("a"));
        }
        assert_eq!(session(&[("session-id", "codex"), ("x-session-id", "mine")]).unwrap().as_deref(), Some("mine"));
        assert_eq!(session(&[("session-id", &"x".repeat(257))]).unwrap_err().param_name(), Some("session-id"));
    }
}
