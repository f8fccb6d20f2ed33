//! `/v1/messages` and `/v1/messages/count_tokens`: the Anthropic Messages API.

pub(in crate::api) mod content;
mod format;
pub mod request;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde_json::json;

use self::stream::MessageStream;
use super::conversation::blocks::Blocks;
use super::conversation::{self, Begun, prompt};
use super::head;
use crate::app::App;
use crate::http::body::{Body, json_response, read_json};
use crate::http::error::ApiError;
use crate::http::sse;

/// Answers a conversation.
///
/// # Errors
/// Whatever is wrong with the request, before anything is sent.
pub async fn answer(app: &Arc<App>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    let session = head::session(&request)?;
    let body = read_json(request, app.body_limits()).await?;
    let asked = request::parse(body, serving.defaults)?;
    let model = head::model_name(app, &serving, asked.generate.model.clone())?;
    let (id, stream) = (head::new_id_after("msg_"), asked.generate.stream);
    let Begun { mut answer, .. } =
        conversation::begin(app, &serving, asked, session, "messages", "/v1/messages").await?;
    if stream {
        return Ok(sse::response(MessageStream::new(answer, id, model), Duration::from_secs(app.config().ping_s)));
    }
    let (mut blocks, mut end) = (Blocks::default(), None);
    while let Some(piece) = answer.next().await {
        let piece = piece?;
        blocks.extend(piece.deltas);
        end = piece.end.or(end);
    }
    Ok(json_response(StatusCode::OK, &format::message(&id, &model, blocks.into_vec(), end.as_ref())))
}

/// Counts the tokens of a conversation, exactly as the model would read them.
///
/// # Errors
/// Whatever is wrong with the request.
pub async fn count_tokens(app: &Arc<App>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    let body = read_json(request, app.body_limits()).await?;
    let asked = request::parse_for_count(body, serving.defaults)?;
    head::model_name(app, &serving, asked.generate.model.clone())?;
    let (_, prompt) = prompt::render(serving, asked).await?;
    Ok(json_response(StatusCode::OK, &json!({ "input_tokens": prompt.tokens.len() })))
}
