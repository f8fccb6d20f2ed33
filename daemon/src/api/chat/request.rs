//! Reads a chat request.

use openjet_engine::text::Chat;
use serde_json::{Map, Value};

use super::messages;
use crate::api::conversation::tools::Choice;
use crate::api::conversation::{Conversation, format};
use crate::api::fields::{Field, Fields, done, harmless, refused};
use crate::api::sampling::{self, SamplingDefaults, TOP_LOGPROBS};
use crate::http::error::ApiError;

/// The fields of `/v1/chat/completions` besides [`sampling::FIELDS`].
pub const FIELDS: &[Field] = &[
    done("messages", "roles system, developer, user, assistant, tool; text only"),
    done("tools", "functions"),
    done("tool_choice", "none, auto, required, or a function; a call that must be is held to the function's schema"),
    done("parallel_tool_calls", "false ends the answer after its first call"),
    done("max_tokens", "without it as many as the context holds"),
    done("max_completion_tokens", "the same as max_tokens"),
    done("logprobs", "log probabilities of the content's tokens"),
    done("top_logprobs", "0 to 20 alternatives"),
    done(
        "response_format",
        "text, json_object, json_schema; regex with a field regex, grammar with a field grammar (Lark)",
    ),
    done("enable_thinking", "false: answer without thinking first"),
    done("thinking_budget", "most tokens of thinking; then it is closed"),
    done("reasoning_effort", "none, minimal, low, medium, high or xhigh, as far as the template knows it"),
    done("chat_template_kwargs", "variables for the chat template"),
    done("modalities", "only text"),
    harmless("store", "nothing is stored"),
    harmless("metadata", "nothing is stored"),
    harmless("user", "there is one user"),
    harmless("safety_identifier", "there is one user"),
    harmless("service_tier", "there is one tier"),
    harmless("prompt_cache_key", "prefixes are found by their content"),
    harmless("prompt_cache_retention", "prefixes are kept as long as there is room"),
    harmless("verbosity", "no template has a place for it"),
    harmless("prediction", "a hint for speed; drafts are found without it"),
    refused("functions", "use tools"),
    refused("function_call", "use tool_choice"),
    refused("audio", "this server writes text only"),
    refused("web_search_options", "this server does not search"),
];

/// Template variables that the server sets itself.
const RESERVED: [&str; 4] = ["messages", "tools", "add_generation_prompt", "raise_exception"];

/// Reads a request; `vocab` is the vocabulary's size.
///
/// # Errors
/// 400 names the field.
pub fn parse(body: Value, defaults: SamplingDefaults, vocab: usize) -> Result<Conversation, ApiError> {
    let mut fields = Fields::new("", body)?;
    let messages = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    let mut generate = sampling::read(&mut fields, defaults, vocab)?;
    generate.params.logprobs = logprobs(&mut fields)?;
    let tools = messages::tools(fields.list("tools")?.unwrap_or_default())?;
    let (tools, mut form) = tools.choose("tool_choice", tool_choice(&mut fields)?)?;
    form.answer = format::response_format(&mut fields)?;
    form.thinking_budget = fields.integer("thinking_budget", 0..=i64::from(u32::MAX))?.map(|n| n as usize);
    let (thinking, effort) = effort(&mut fields, "reasoning_effort")?;
    let chat = Chat {
        messages: messages::history(messages)?.into_messages(),
        tools,
        add_generation_prompt: true,
        enable_thinking: fields.boolean("enable_thinking")?.or(thinking),
        reasoning_effort: effort,
        kwargs: kwargs(&mut fields)?,
    };
    let one_call = fields.boolean("parallel_tool_calls")? == Some(false);
    let request = Conversation { generate, chat, one_call, form, max_tokens: max_tokens(&mut fields)? };
    modalities(&mut fields)?;
    fields.finish(&[FIELDS, sampling::FIELDS])?;
    Ok(request)
}

fn logprobs(fields: &mut Fields) -> Result<Option<u8>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as u8)),
        (false, Some(1..)) => {
            Err(ApiError::param("top_logprobs", "`top_logprobs` needs `logprobs` to be true")
                .with_code("invalid_value"))
        }
        (false, _) => Ok(None),
    }
}

fn tool_choice(fields: &mut Fields) -> Result<Choice, ApiError> {
    Choice::read(fields, "a function", &["function"], |choice| {
        let mut function = choice.object("function")?.ok_or_else(|| choice.missing("function"))?;
        let name = function.required_string("name")?;
        function.finish(&[])?;
        Ok(name)
    })
}

fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let range = 1..=i64::from(u32::MAX);
    let old = fields.integer("max_tokens", range.clone())?;
    let new = fields.integer("max_completion_tokens", range)?;
    match (old, new) {
        (Some(a), Some(b)) if a != b => Err(ApiError::param(
            "max_tokens",
            format!("`max_tokens` is {a} and `max_completion_tokens` is {b}; they mean the same, so send one"),
        )),
        (a, b) => Ok(b.or(a).map(|n| n as u32)),
    }
}

fn kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let Some(kwargs) = fields.object("chat_template_kwargs")? else { return Ok(Map::new()) };
    let path = kwargs.own_path().to_owned();
    let map = kwargs.into_map();
    match map.keys().find(|name| RESERVED.contains(&name.as_str())) {
        Some(name) => {
            let message = format!("`{path}.{name}` is set by the server");
            Err(ApiError::param(format!("{path}.{name}"), message).with_code("invalid_value"))
        }
        None => Ok(map),
    }
}

/// Whether to think at all, if that is said, and the effort in the words of the family's templates.
///
/// # Errors
/// 400 names the field.
pub fn effort(fields: &mut Fields, name: &str) -> Result<(Option<bool>, Option<String>), ApiError> {
    let path = fields.path(name);
    let effort = match fields.string(name)?.as_deref() {
        None => return Ok((None, None)),
        Some("none") => return Ok((Some(false), None)),
        Some("minimal" | "low") => "low",
        Some("medium") => "medium",
        Some("high" | "xhigh" | "max") => "xhigh",
        Some(other) => {
            let message = format!("`{path}` can't be `{other}`; it is none, minimal, low, medium, high, xhigh or max");
            return Err(ApiError::param(path, message).with_code("invalid_value"));
        }
    };
    Ok((None, Some(effort.to_owned())))
}

fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.list("modalities")? {
        Some(list) if list.iter().any(|item| item != "text") => {
            Err(ApiError::param("modalities", "this server writes text only").with_code("unsupported_parameter"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

    use serde_json::json;

    use super::*;

    fn parse_with(extra: Value) -> Result<Conversation, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse(body, SamplingDefaults::FAMILY, 100)
    }

    fn tool() -> Value {
        json!({"type": "function", "function": {"name": "f"}})
    }

    #[test]
    fn values_arrive() {
        let request = parse_with(json!({
            "max_completion_tokens": 7, "logprobs": true, "top_logprobs": 3, "tools": [tool()], "tool_choice": "auto",
            "parallel_tool_calls": false, "chat_template_kwargs": {"preserve_thinking": true}, "enable_thinking": false,
            "reasoning_effort": "high", "response_format": {"type": "text"}, "modalities": ["text"],
        }))
        .unwrap();
        assert_eq!((request.max_tokens, request.generate.params.logprobs, request.one_call), (Some(7), Some(3), true));
        assert_eq!(request.chat.tools, Some(vec![tool()]));
        assert_eq!(Value::Object(request.chat.kwargs), json!({"preserve_thinking": true}));
        let thinking = (request.chat.enable_thinking, request.chat.reasoning_effort.as_deref());
        assert_eq!(thinking, (Some(false), Some("xhigh")));
        let thinking = parse_with(json!({"reasoning_effort": "none"})).unwrap().chat.enable_thinking;
        assert_eq!(thinking, Some(false));
    }

    #[test]
    fn no_tools_with_choice_none() {
        assert!(parse_with(json!({"tools": [tool()], "tool_choice": "none"})).unwrap().chat.tools.is_none());
    }

    #[test]
    fn harmless_fields_pass() {
        for field in FIELDS.iter().filter(|field| field.support == crate::api::fields::Support::Harmless) {
            parse_with(json!({field.name: "x"})).unwrap();
        }
    }

    #[test]
    fn every_other_field_is_checked() {
        // No field takes such a value: each must be read, or refused by name.
        for field in FIELDS.iter().chain(sampling::FIELDS) {
            if field.support != crate::api::fields::Support::Harmless {
                let value = json!([{"no": "thing"}]);
                let error = parse_with(json!({field.name: value})).err();
                let param = error.as_ref().and_then(ApiError::param_name).unwrap_or_default();
                assert!(param.starts_with(field.name), "{}: {error:?}", field.name);
            }
        }
    }

    #[test]
    fn errors_name_the_field() {
        for (extra, param) in [
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": 1, "max_completion_tokens": 2}), "max_tokens"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}), "tool_choice"),
            (json!({"tools": [tool()], "tool_choice": {"type": "custom"}}), "tool_choice.type"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"response_format": {"type": "regex"}}), "response_format.regex"),
            (json!({"thinking_budget": -1}), "thinking_budget"),
            (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
            (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
            (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
            (json!({"modalities": ["text", "audio"]}), "modalities"),
            (json!({"functions": []}), "functions"),
            (json!({"grammar": "x"}), "grammar"),
        ] {
            let error = parse_with(extra.clone()).unwrap_err();
            assert_eq!(error.param_name(), Some(param), "{extra}: {}", error.message());
        }
        assert_eq!(parse(json!({}), SamplingDefaults::FAMILY, 9).unwrap_err().param_name(), Some("messages"));
        assert_eq!(parse(json!([]), SamplingDefaults::FAMILY, 9).unwrap_err().status(), 400);
    }
}
