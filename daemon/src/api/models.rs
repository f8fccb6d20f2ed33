//! `/v1/models`.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::app::App;
use crate::http::body::{Body, json_response};
use crate::http::error::ApiError;
use crate::serving::Serving;

/// The loaded model, in the `data` list that the `OpenAI` and Anthropic APIs have, and in the `models` list that some clients
/// look for.
///
/// # Errors
/// 503 while there is none.
pub fn list(app: &App) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    let name = &serving.model.name;
    let body = json!({
        "object": "list",
        "data": [entry(&serving)],
        "has_more": false,
        "first_id": name,
        "last_id": name,
        "models": [{ "name": name, "model": name, "type": "model", "capabilities": ["completion"] }],
    });
    Ok(json_response(StatusCode::OK, &body))
}

/// One model by its name, which may have slashes.
///
/// # Errors
/// 404 when it is another than the loaded one, 503 while there is none.
pub fn one(app: &App, name: &str) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    if name != serving.model.name {
        let message = format!("there is no model `{name}`; the loaded one is `{}`", serving.model.name);
        return Err(ApiError::not_found(message).with_code("model_not_found"));
    }
    Ok(json_response(StatusCode::OK, &entry(&serving)))
}

fn entry(serving: &Serving) -> Value {
    json!({
        "id": serving.model.name,
        "object": "model",
        "created": serving.loaded_at,
        "owned_by": "openjet",
        "type": "model",
        "display_name": serving.model.name,
        "meta": {
            "n_ctx": serving.context,
            "n_ctx_train": serving.model.context,
            "n_vocab": serving.model.vocab,
            "size": serving.model.bytes,
        },
    })
}
