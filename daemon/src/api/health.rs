//! `/health` and `/slots`.

use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use openjet_proto::Health;
use serde_json::{Value, json};

use crate::app::App;
use crate::http::body::{Body, json_response};
use crate::http::error::ApiError;

/// 200 when requests are served, else 503; the state in both.
#[must_use]
pub fn health(app: &App) -> Response<Body> {
    let health = app.health();
    let mut body = json!(health);
    if matches!(health, Health::Ready | Health::Unloaded { on_demand: true }) {
        // What health checks written for llama-server look for.
        body["status"] = Value::from("ok");
        return json_response(StatusCode::OK, &body);
    }
    let mut response = json_response(StatusCode::SERVICE_UNAVAILABLE, &body);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
    response
}

/// Every agent.
///
/// # Errors
/// 503 while there is no engine.
pub fn slots(app: &App) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    Ok(json_response(StatusCode::OK, &json!(serving.engine.status().agents)))
}
