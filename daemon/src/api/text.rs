//! `/tokenize`, `/detokenize` and `/apply-template`: the model's text side alone.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use openjet_engine::text::{ControlTokens, Tokenizer};
use serde_json::{Value, json};

use super::chat;
use super::conversation::prompt;
use super::fields::{Field, Fields, done, integer};
use crate::app::App;
use crate::http::body::{Body, json_response, read_json};
use crate::http::error::ApiError;

/// The fields of `/tokenize`.
pub const TOKENIZE_FIELDS: &[Field] = &[
    done("content", "the text"),
    done("parse_special", "whether the spelling of a control token is that token; true without it"),
    done("with_pieces", "each token with its text"),
    done("model", "any"),
];

/// The fields of `/detokenize`.
pub const DETOKENIZE_FIELDS: &[Field] = &[done("tokens", "token ids"), done("model", "any")];

/// Text to token ids.
///
/// # Errors
/// 400 names the field.
pub async fn tokenize(app: &App, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    let mut fields = Fields::new("", read_json(request, app.body_limits()).await?)?;
    fields.string("model")?;
    let text = fields.required_string("content")?;
    let control =
        if fields.boolean("parse_special")?.unwrap_or(true) { ControlTokens::Match } else { ControlTokens::AsText };
    let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    fields.finish(&[TOKENIZE_FIELDS])?;
    let encode = move || {
        let tokens = serving.tokenizer.encode(&text, control);
        if pieces { tokens.iter().map(|&id| piece(&serving.tokenizer, id)).collect() } else { json!(tokens) }
    };
    let tokens = tokio::task::spawn_blocking(encode)
        .await
        .map_err(|error| ApiError::internal(format!("the text could not be tokenized: {error}")))?;
    Ok(json_response(StatusCode::OK, &json!({ "tokens": tokens })))
}

/// A token with its text, or with its bytes where they are no whole characters.
fn piece(tokenizer: &Tokenizer, id: u32) -> Value {
    let bytes = tokenizer.token_bytes(id);
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "id": id, "piece": text }),
        Err(_) => json!({ "id": id, "piece": bytes }),
    }
}

/// Token ids to text.
///
/// # Errors
/// 400 names the field.
pub async fn detokenize(app: &App, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    let mut fields = Fields::new("", read_json(request, app.body_limits()).await?)?;
    fields.string("model")?;
    let tokens = fields.list("tokens")?.ok_or_else(|| fields.missing("tokens"))?;
    fields.finish(&[DETOKENIZE_FIELDS])?;
    let mut bytes = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let id = integer(token).and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < serving.model.vocab);
        let id = id.ok_or_else(|| {
            let path = format!("tokens[{i}]");
            ApiError::param(path.clone(), format!("`{path}` must be a token id, 0 to {}", serving.model.vocab - 1))
        })?;
        bytes.extend_from_slice(serving.tokenizer.token_bytes(id));
    }
    Ok(json_response(StatusCode::OK, &json!({ "content": String::from_utf8_lossy(&bytes) })))
}

/// A chat request to the text and the tokens that the model would read. Takes the fields of `/v1/chat/completions`.
///
/// # Errors
/// 400 names the field.
pub async fn apply_template(app: &Arc<App>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    let body = read_json(request, app.body_limits()).await?;
    let chat = chat::request::parse(body, serving.defaults, serving.model.vocab)?;
    let (text, prompt) = prompt::text(serving, chat.chat).await?;
    Ok(json_response(StatusCode::OK, &json!({ "prompt": text, "tokens": prompt.tokens })))
}
