//! What an answer is held to, as every API asks for it.

use openjet_engine::constraint::{Answer, Constraint, Grammar, Hold, calls_grammar};
use serde_json::Value;

use super::Conversation;
use crate::http::error::ApiError;
use crate::serving::Serving;

/// What is asked of the form of an answer.
#[derive(Clone, Debug, Default)]
pub struct Form {
    /// What the text must be.
    pub answer: Option<AnswerForm>,
    /// Whether there must be a call.
    pub force: Force,
    /// Hold calls to the schemas of their tools, also those that the model makes by itself.
    pub strict_calls: bool,
    /// Most tokens of thinking.
    pub thinking_budget: Option<usize>,
}

/// What a text must be, and the field of the request that says so.
pub type AnswerForm = (Answer, String);

/// Whether there must be a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Force {
    /// If the model wants to.
    #[default]
    No,
    /// At least one, of any tool.
    Any,
    /// Of this tool.
    Named(String),
}

/// What the settings say of calls.
#[derive(Clone, Debug)]
pub struct CallPolicy {
    /// Hold calls to their schemas where that is possible, asked or not.
    pub strict: bool,
    /// The setting `tool_choice`: `auto`, `required` or the name of a tool.
    pub choice: String,
}

impl CallPolicy {
    /// The call that is to be made though the request does not say so. A user's turn is answered with one; where a tool's
    /// result is the news, the model must be free to end.
    fn force(&self, conversation: &Conversation) -> Force {
        let Conversation { form, chat, generate, .. } = conversation;
        let tools = chat.tools.as_deref().unwrap_or_default();
        let mut news = chat.messages.iter().rev().take_while(|message| message["role"] != "assistant");
        if form.answer.is_some() || generate.ignore_end || news.any(|message| message["role"] == "tool") {
            return Force::No;
        }
        match self.choice.as_str() {
            "auto" => Force::No,
            "required" if tools.is_empty() => Force::No,
            "required" => Force::Any,
            name if tools.iter().any(|tool| tool["function"]["name"] == name) => Force::Named(name.to_owned()),
            _ => Force::No,
        }
    }
}

/// Compiles what an answer is held to.
///
/// # Errors
/// 400 names the field that can't be kept to.
pub(super) fn constraint(
    serving: &Serving,
    conversation: &Conversation,
    in_thinking: bool,
    policy: &CallPolicy,
) -> Result<Option<Constraint>, ApiError> {
    let Conversation { form, chat, one_call, generate, .. } = conversation;
    let tools = chat.tools.as_deref().unwrap_or_default();
    let hold = match (&form.answer, &form.force) {
        (None, Force::No) => by_policy(serving, conversation, policy)?,
        (Some(answer), Force::No) => {
            let calls = if tools.is_empty() { None } else { Some(calls_text(serving, tools)?) };
            Hold::Answer(answer_grammar(serving, answer, calls.as_deref())?)
        }
        (_, force) => Hold::Answer(forced(serving, tools, force, !one_call)?),
    };
    if matches!(hold, Hold::Answer(_)) && generate.ignore_end {
        return Err(endless());
    }
    Ok(Constraint::new(serving.grammars.vocabulary(), hold, in_thinking, form.thinking_budget))
}

/// What a text is held to that continues a prompt.
///
/// # Errors
/// 400 names the field that can't be kept to.
pub fn text_constraint(serving: &Serving, form: &AnswerForm, ignore_end: bool) -> Result<Option<Constraint>, ApiError> {
    if ignore_end {
        return Err(endless());
    }
    let hold = Hold::Answer(answer_grammar(serving, form, None)?);
    Ok(Constraint::new(serving.grammars.vocabulary(), hold, false, None))
}

fn answer_grammar(serving: &Serving, (answer, field): &AnswerForm, calls: Option<&str>) -> Result<Grammar, ApiError> {
    serving.grammars.answer(answer, calls).map_err(|error| {
        ApiError::param(field.clone(), format!("`{field}` can't be kept to: {error}")).with_code("invalid_value")
    })
}

fn endless() -> ApiError {
    let message =
        "`ignore_eos` would go on after an answer that is over, so it does not go with a form or a forced call";
    ApiError::param("ignore_eos", message).with_code("unsupported_parameter")
}

/// Where the request leaves it to the model: the settings' word, which never makes a request fail.
fn by_policy(serving: &Serving, conversation: &Conversation, policy: &CallPolicy) -> Result<Hold, ApiError> {
    let tools = conversation.chat.tools.as_deref().unwrap_or_default();
    let force = policy.force(conversation);
    let hold = match force {
        _ if tools.is_empty() => return Ok(Hold::Nothing),
        Force::No if conversation.form.strict_calls => return Ok(Hold::Calls(calls(serving, tools, false)?)),
        Force::No if policy.strict => calls(serving, tools, false).map(Hold::Calls),
        Force::No => return Ok(Hold::Nothing),
        force => forced(serving, tools, &force, false).map(Hold::Answer),
    };
    Ok(hold.unwrap_or_else(|error| {
        tracing::warn!(error = error.message(), "calls of this request are not held to their schemas");
        Hold::Nothing
    }))
}

/// A call that must be, or `many` of them.
fn forced(serving: &Serving, tools: &[Value], force: &Force, many: bool) -> Result<Grammar, ApiError> {
    match force {
        Force::Named(name) => {
            let named: Vec<Value> = tools.iter().filter(|tool| tool["function"]["name"] == **name).cloned().collect();
            calls(serving, &named, many)
        }
        Force::No | Force::Any => calls(serving, tools, many),
    }
}

fn calls(serving: &Serving, tools: &[Value], many: bool) -> Result<Grammar, ApiError> {
    let text = calls_text(serving, tools)?;
    serving.grammars.calls(&text, many).map_err(|error| {
        let message = format!("calls can't be held to the schemas of `tools`: {error}");
        ApiError::param("tools", message).with_code("invalid_value")
    })
}

fn calls_text(serving: &Serving, tools: &[Value]) -> Result<String, ApiError> {
    let token = |text| {
        serving.tokenizer.added_token(text).ok_or_else(|| {
            let message = format!("the model has no token {text}, so a call can't be forced");
            ApiError::param("tools", message).with_code("unsupported_parameter")
        })
    };
    calls_grammar(tools, token("<tool_call>")?, token("</tool_call>")?).map_err(|error| {
        let path = format!("tools[{}]", error.tool);
        ApiError::param(path, error.message).with_code("invalid_value")
    })
}
