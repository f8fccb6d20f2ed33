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

/// Compiles what an answer is held to. `always`: calls are held to their schemas where that is possible, asked or not.
///
/// # Errors
/// 400 names the field that can't be kept to.
pub(super) fn constraint(
    serving: &Serving,
    conversation: &Conversation,
    in_thinking: bool,
    always: bool,
) -> Result<Option<Constraint>, ApiError> {
    let Conversation { form, chat, one_call, generate, .. } = conversation;
    let tools = chat.tools.as_deref().unwrap_or_default();
    let grammars = &serving.grammars;
    let hold = match (&form.answer, &form.force) {
        (_, Force::Any) => Hold::Answer(calls(serving, tools, !one_call)?),
        (_, Force::Named(name)) => {
            let named: Vec<Value> = tools.iter().filter(|tool| tool["function"]["name"] == **name).cloned().collect();
            Hold::Answer(calls(serving, &named, !one_call)?)
        }
        (Some((answer, field)), Force::No) => {
            let calls = if tools.is_empty() { None } else { Some(calls_text(serving, tools)?) };
            let grammar = grammars.answer(answer, calls.as_deref());
            Hold::Answer(grammar.map_err(|error| {
                ApiError::param(field.clone(), format!("`{field}` can't be kept to: {error}"))
                    .with_code("invalid_value")
            })?)
        }
        (None, Force::No) if tools.is_empty() => Hold::Nothing,
        (None, Force::No) if form.strict_calls => Hold::Calls(calls(serving, tools, false)?),
        (None, Force::No) if always => match calls(serving, tools, false) {
            Ok(grammar) => Hold::Calls(grammar),
            Err(error) => {
                tracing::warn!(error = error.message(), "calls of this request are not held to their schemas");
                Hold::Nothing
            }
        },
        (None, Force::No) => Hold::Nothing,
    };
    if matches!(hold, Hold::Answer(_)) && generate.ignore_end {
        let message =
            "`ignore_eos` would go on after an answer that is over, so it does not go with a form or a forced call";
        return Err(ApiError::param("ignore_eos", message).with_code("unsupported_parameter"));
    }
    Ok(Constraint::new(grammars.vocabulary(), hold, in_thinking, form.thinking_budget))
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
