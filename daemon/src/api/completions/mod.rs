//! `/v1/completions`.

mod format;
pub mod request;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use openjet_engine::constraint::Constraint;
use openjet_engine::text::{ControlTokens, Tokenizer};

use self::format::Choice;
use self::request::{CompletionRequest, Prompt};
use self::stream::CompletionStream;
use super::answer::Answer;
use super::conversation::hold::text_constraint;
use super::head::{self, Head};
use super::usage::Usage;
use super::writer::Writer;
use crate::app::App;
use crate::http::body::{Body, json_response, read_json};
use crate::http::error::ApiError;
use crate::http::sse;
use crate::serving::Serving;

/// Continues texts.
///
/// # Errors
/// Whatever is wrong with the request, before anything is sent.
pub async fn answer(app: &Arc<App>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let serving = app.serving()?;
    let session = head::session(&request)?;
    let body = read_json(request, app.body_limits()).await?;
    let asked = request::parse(body, serving.defaults, serving.model.vocab)?;
    let head = Head::new("cmpl", head::model_name(app, &serving, asked.generate.model.clone())?);
    let Prepared { asked, prompts, constraint } = prepare(serving.clone(), asked).await?;
    let mut choices = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        choices.push(choice(app, &serving, &asked, prompt, constraint.clone(), session.clone())?);
    }
    if asked.generate.stream {
        let source = CompletionStream::new(choices, head, serving, asked.generate.include_usage);
        return Ok(sse::response(source, Duration::from_secs(app.config().ping_s)));
    }
    let (mut out, mut usages) = (Vec::with_capacity(choices.len()), Vec::with_capacity(choices.len()));
    // All of them run at once; they are only collected one after the other.
    for (index, mut choice) in choices.into_iter().enumerate() {
        let mut text = choice.echo.take().unwrap_or_default();
        let mut tokens = Vec::new();
        let mut end = None;
        while let Some(piece) = choice.answer.next().await {
            let piece = piece?;
            text += &format::text(piece.deltas);
            tokens.extend(piece.tokens);
            end = piece.end.or(end);
        }
        let finish = end.as_ref().map(|end| end.reason.name());
        out.push(choice.entry(index, &text, &tokens, finish, &serving.tokenizer));
        usages.push(end.map(|end| end.usage).unwrap_or_default());
    }
    let mut body = head.to_json("text_completion");
    body["choices"] = out.into();
    body["usage"] = Usage::to_json(&usages);
    if let [usage] = &usages[..] {
        body["timings"] = usage.timings();
    }
    Ok(json_response(StatusCode::OK, &body))
}

fn choice(
    app: &App,
    serving: &Arc<Serving>,
    asked: &CompletionRequest,
    prompt: Vec<u32>,
    constraint: Option<Constraint>,
    session: Option<String>,
) -> Result<Choice, ApiError> {
    let writer = Writer::new(serving.tokenizer.clone(), None, asked.generate.stops.clone(), false);
    let echo = asked.echo.then(|| {
        let bytes: Vec<u8> = prompt.iter().flat_map(|&id| serving.tokenizer.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let prompt_ids = asked.generate.return_token_ids.then(|| prompt.clone());
    let request = openjet_engine::request::Request {
        prompt,
        params: asked.generate.params.clone(),
        max_tokens: Some(asked.max_tokens),
        end_tokens: Vec::new(),
        ignore_end: asked.generate.ignore_end,
        draft: asked.generate.draft,
        session,
        task: None,
        system_until: None,
        generation_prompt_at: None,
        constraint,
    };
    let answer = Answer::submit(app, serving, request, writer, "/v1/completions")
        .map_err(|error| error.overflow_of("prompt"))?;
    Ok(Choice { answer, echo, prompt_ids, wants_logprobs: asked.generate.params.logprobs.is_some(), offset: 0 })
}

/// A request with what took time to make of it.
struct Prepared {
    asked: CompletionRequest,
    prompts: Vec<Vec<u32>>,
    constraint: Option<Constraint>,
}

/// Tokenizes and compiles on a thread where that may take its time.
async fn prepare(serving: Arc<Serving>, asked: CompletionRequest) -> Result<Prepared, ApiError> {
    let prepare = move || {
        let tokens = |prompt| tokens(&serving.tokenizer, prompt, asked.suffix.as_deref());
        let prompts = asked.prompts.iter().map(tokens).collect::<Result<_, _>>()?;
        let form = asked.form.as_ref();
        let constraint = form.map(|form| text_constraint(&serving, form, asked.generate.ignore_end)).transpose()?;
        Ok(Prepared { prompts, constraint: constraint.flatten(), asked })
    };
    tokio::task::spawn_blocking(prepare)
        .await
        .map_err(|error| ApiError::internal(format!("the prompt could not be prepared: {error}")))?
}

/// A prompt's tokens. With a suffix they are laid out for filling in the middle.
fn tokens(tokenizer: &Tokenizer, prompt: &Prompt, suffix: Option<&str>) -> Result<Vec<u32>, ApiError> {
    let text = match prompt {
        Prompt::Tokens(tokens) => return Ok(tokens.clone()),
        Prompt::Text(text) => text,
    };
    let encode = |text: &str| tokenizer.encode(text, ControlTokens::Match);
    let Some(suffix) = suffix else { return Ok(encode(text)) };
    let marker = |name: &str| {
        tokenizer.added_token(name).ok_or_else(|| {
            let message = format!("the model has no token {name}, so it can't fill in before a suffix");
            ApiError::param("suffix", message).with_code("unsupported_parameter")
        })
    };
    let mut out = vec![marker("<|fim_prefix|>")?];
    out.extend(encode(text));
    out.push(marker("<|fim_suffix|>")?);
    out.extend(encode(suffix));
    out.push(marker("<|fim_middle|>")?);
    Ok(out)
}
