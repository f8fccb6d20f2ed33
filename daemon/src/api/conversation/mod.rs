//! What every chat API is translated to: a conversation to go on with, whose answer comes as [`super::answer::Piece`]s.

pub mod blocks;
pub mod format;
pub mod history;
pub mod hold;
pub mod prompt;
mod task;
pub mod tools;

use std::sync::Arc;

use openjet_engine::text::{Chat, OutputParser, ToolSchemas};

use self::hold::{CallPolicy, Form};
use super::answer::Answer;
use super::sampling::Generate;
use super::writer::Writer;
use crate::app::App;
use crate::http::error::ApiError;
use crate::serving::Serving;

/// A conversation to go on with.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// How tokens are chosen, and what ends the text.
    pub generate: Generate,
    /// What the template is given.
    pub chat: Chat,
    /// End the answer after its first tool call.
    pub one_call: bool,
    /// What the answer is held to.
    pub form: Form,
    /// Most tokens of the answer.
    pub max_tokens: Option<u32>,
}

/// An answer that has begun.
#[derive(Debug)]
pub struct Begun {
    /// Its pieces.
    pub answer: Answer,
    /// What the model was given to read.
    pub prompt: Vec<u32>,
}

/// Renders a conversation that came to `path` and submits it. `session` keeps it on its agent, `history` names the field that is
/// at fault when the conversation is too long.
///
/// # Errors
/// Whatever is wrong with the conversation, before anything is generated.
pub async fn begin(
    app: &App,
    serving: &Arc<Serving>,
    mut conversation: Conversation,
    session: Option<String>,
    history: &'static str,
    path: &'static str,
) -> Result<Begun, ApiError> {
    let config = app.config();
    conversation.form.thinking_budget = conversation.form.thinking_budget.or(config.thinking_budget);
    let policy = CallPolicy { strict: config.strict_calls, choice: config.tool_choice.clone() };
    let (conversation, prompt, constraint) = prompt::prepare(serving.clone(), conversation, &policy).await?;
    let Conversation { generate, chat, one_call, max_tokens, .. } = conversation;
    let tools = chat.tools.as_deref();
    let parser = OutputParser::new(prompt.in_thinking, ToolSchemas::new(tools.unwrap_or_default()), tools.is_some());
    let writer = Writer::new(serving.tokenizer.clone(), Some(parser), generate.stops, one_call);
    let request = openjet_engine::request::Request {
        prompt: prompt.tokens.clone(),
        params: generate.params,
        max_tokens,
        end_tokens: Vec::new(),
        ignore_end: generate.ignore_end,
        draft: generate.draft,
        session,
        task: app.config().shows_text().then(|| task::of(&chat.messages)).flatten(),
        system_until: prompt.system_until,
        generation_prompt_at: prompt.generation_prompt_at,
        constraint,
    };
    let answer = Answer::submit(app, serving, request, writer, path).map_err(|error| error.overflow_of(history))?;
    Ok(Begun { answer, prompt: prompt.tokens })
}
