//! What stands at the head of every answer, and of every request that generates.

use hyper::Request;
use serde_json::{Value, json};

use super::sampling::random_u64;
use crate::app::App;
use crate::http::error::ApiError;
use crate::serving::Serving;

/// Header that keeps a conversation on its agent.
pub const SESSION_HEADER: &str = "x-session-id";

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
        Some(name) if app.config.strict_model && name != *own => {
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
    let Some(value) = request.headers().get(SESSION_HEADER) else { return Ok(None) };
    match value.to_str() {
        Ok("") => Ok(None),
        Ok(text) if text.len() <= SESSION_BYTES => Ok(Some(text.to_owned())),
        _ => {
            Err(ApiError::param(SESSION_HEADER, format!("{SESSION_HEADER} must be ASCII, up to {SESSION_BYTES} of it")))
        }
    }
}
