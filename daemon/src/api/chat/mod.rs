//! `/v1/chat/completions`.

mod format;
pub(in crate::api) mod messages;
pub mod request;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

use self::format::Collected;
use self::stream::ChatStream;
use super::conversation::{self, Begun};
use super::head::{self, Head};
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
    let chat = request::parse(body, serving.defaults, serving.model.vocab)?;
    let head = Head::new("chatcmpl", head::model_name(app, &serving, chat.generate.model.clone())?);
    let (stream, usage) = (chat.generate.stream, chat.generate.include_usage);
    let wants_ids = chat.generate.return_token_ids;
    let Begun { mut answer, prompt } =
        conversation::begin(app, &serving, chat, session, "messages", "/v1/chat/completions").await?;
    let token_ids = wants_ids.then_some(prompt);
    if stream {
        let source = ChatStream::new(answer, head, serving, token_ids, usage);
        return Ok(sse::response(source, Duration::from_secs(app.config().ping_s)));
    }
    let mut collected = Collected::new(token_ids);
    while let Some(piece) = answer.next().await {
        collected.add(piece?, &serving.tokenizer);
    }
    Ok(json_response(StatusCode::OK, &collected.into_json(&head)))
}
