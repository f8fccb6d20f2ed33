//! `/v1/responses`: the `OpenAI` Responses API.

mod builder;
mod custom;
pub(in crate::api) mod input;
pub mod request;
pub mod store;
mod stream;
pub(in crate::api) mod tools;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

use self::builder::Builder;
use self::stream::ResponseStream;
use super::conversation::{self, Begun};
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
    let asked = request::parse(body, serving.defaults, &app.responses)?;
    let model = head::model_name(app, &serving, asked.conversation.generate.model.clone())?;
    let stream = asked.conversation.generate.stream;
    let Begun { mut answer, .. } =
        conversation::begin(app, &serving, asked.conversation, session, "input", "/v1/responses").await?;
    let mut builder = Builder::new(model, asked.about);
    if stream {
        let source = ResponseStream::new(answer, builder, app.clone());
        return Ok(sse::response(source, Duration::from_secs(app.config().ping_s)));
    }
    while let Some(piece) = answer.next().await {
        builder.piece(piece?);
    }
    builder.keep(&app.responses);
    Ok(json_response(StatusCode::OK, &builder.response()))
}
