//! `/v1/chat/completions`.

mod format;
mod prompt;
pub mod request;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use openjet_engine::text::{OutputParser, ToolSchemas};

use self::format::Collected;
use self::stream::ChatStream;
use super::answer::Answer;
use super::head::{self, Head};
use super::writer::Writer;
use crate::app::App;
use crate::http::body::{Body, json_response, read_json};
use crate::http::error::ApiError;
use crate::http::sse;

pub use prompt::{render, text};

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
    let (chat, prompt) = render(serving.clone(), chat).await?;
    let tools = chat.chat.tools.as_deref();
    let parser = OutputParser::new(prompt.in_thinking, ToolSchemas::new(tools.unwrap_or_default()), tools.is_some());
    let writer = Writer::new(serving.tokenizer.clone(), Some(parser), chat.generate.stops.clone(), chat.one_call);
    let token_ids = chat.generate.return_token_ids.then(|| prompt.tokens.clone());
    let request = openjet_engine::request::Request {
        prompt: prompt.tokens,
        params: chat.generate.params.clone(),
        max_tokens: chat.max_tokens,
        end_tokens: Vec::new(),
        ignore_end: chat.generate.ignore_end,
        draft: chat.generate.draft,
        session,
        generation_prompt_at: prompt.generation_prompt_at,
    };
    let mut answer = Answer::submit(app, &serving, request, writer).map_err(|error| error.overflow_of("messages"))?;
    if chat.generate.stream {
        let source = ChatStream::new(answer, head, serving, token_ids, chat.generate.include_usage);
        return Ok(sse::response(source, Duration::from_secs(app.config.ping_s)));
    }
    let mut collected = Collected::new(token_ids);
    while let Some(piece) = answer.next().await {
        collected.add(piece?, &serving.tokenizer);
    }
    Ok(json_response(StatusCode::OK, &collected.into_json(&head)))
}
