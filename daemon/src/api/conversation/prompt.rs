//! From a conversation to the tokens that the model reads.

use std::sync::Arc;

use openjet_engine::constraint::Constraint;
use openjet_engine::text::{Chat, ChatTemplate, Prompt, TemplateError};

use super::Conversation;
use super::hold::{self, CallPolicy};
use crate::http::error::ApiError;
use crate::serving::Serving;

/// Renders and tokenizes a conversation on a thread where it may take its time.
///
/// # Errors
/// 400 with the template's own words when it refuses the conversation.
pub async fn render(serving: Arc<Serving>, conversation: Conversation) -> Result<(Conversation, Prompt), ApiError> {
    let render = move || {
        let prompt = template(&serving)?.prompt(&conversation.chat, &serving.tokenizer).map_err(refused)?;
        Ok((conversation, prompt))
    };
    apart(render).await
}

/// As [`render`], and compiles what the answer is held to.
///
/// # Errors
/// As [`render`], or 400 for a form that can't be kept to.
pub async fn prepare(
    serving: Arc<Serving>,
    conversation: Conversation,
    policy: &CallPolicy,
) -> Result<(Conversation, Prompt, Option<Constraint>), ApiError> {
    let policy = policy.clone();
    let prepare = move || {
        let prompt = template(&serving)?.prompt(&conversation.chat, &serving.tokenizer).map_err(refused)?;
        let constraint = hold::constraint(&serving, &conversation, prompt.in_thinking, &policy)?;
        Ok((conversation, prompt, constraint))
    };
    apart(prepare).await
}

/// The text of a conversation, and its tokens.
///
/// # Errors
/// As [`render`].
pub async fn text(serving: Arc<Serving>, chat: Chat) -> Result<(String, Prompt), ApiError> {
    let render = move || {
        let template = template(&serving)?;
        let text = template.text(&chat).map_err(refused)?;
        Ok((text, template.prompt(&chat, &serving.tokenizer).map_err(refused)?))
    };
    apart(render).await
}

async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::internal(format!("rendering the conversation failed: {error}")))?
}

fn template(serving: &Serving) -> Result<&ChatTemplate, ApiError> {
    serving.template.as_ref().ok_or_else(|| {
        ApiError::bad_request("the model has no chat template; use /v1/completions").with_code("no_chat_template")
    })
}

fn refused(error: TemplateError) -> ApiError {
    match error {
        TemplateError::Invalid { field, message } => ApiError::param(field.clone(), format!("`{field}` {message}")),
        other => ApiError::param("messages", format!("the model's chat template refuses this: {other}")),
    }
    .with_code("template_error")
}
