//! Chat messages and tools of the `OpenAI` chat API.

use serde_json::{Value, json};

use crate::api::conversation::history::{self, AssistantTurn, History};
use crate::api::conversation::tools::{Function, Tools};
use crate::api::fields::{Field, Fields, done, harmless, refused, wrong_type};
use crate::http::error::ApiError;

const TEXT_ONLY: &str = "this server takes text only";

pub(in crate::api) const MESSAGE: &[Field] = &[
    done("role", "system, developer, user, assistant or tool"),
    done("content", "a string, or a list of text parts"),
    done("reasoning_content", "an assistant's thinking"),
    done("reasoning", "another name for reasoning_content"),
    done("tool_calls", "an assistant's calls"),
    done("tool_call_id", "the call that a tool message answers"),
    harmless("name", "templates have no place for it"),
    harmless("refusal", "comes back with an assistant's message"),
    harmless("annotations", "comes back with an assistant's message"),
    harmless("cache_control", "prefixes are always kept"),
    refused("audio", TEXT_ONLY),
    refused("function_call", "use tool_calls"),
];

pub(in crate::api) const PART: &[Field] = &[
    done("type", "text"),
    done("text", "the text"),
    harmless("cache_control", "prefixes are always kept"),
    harmless("annotations", "comes back with an assistant's message"),
];

pub(in crate::api) const CALL: &[Field] = &[
    done("id", "the call's id"),
    done("type", "function"),
    done("function", "name and arguments"),
    harmless("index", "comes back from streams"),
    harmless("extra_content", "comes back from other servers"),
];

pub(in crate::api) const FUNCTION: &[Field] =
    &[done("name", "the function's name"), done("arguments", "JSON of an object, in a string")];

/// The conversation so far.
///
/// # Errors
/// 400 names the message and field.
pub(super) fn history(messages: Vec<Value>) -> Result<History, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::param("messages", "`messages` is empty; send at least one message"));
    }
    let mut history = History::default();
    for (i, message) in messages.into_iter().enumerate() {
        one(format!("messages[{i}]"), message, &mut history)?;
    }
    Ok(history)
}

fn one(path: String, message: Value, history: &mut History) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, message)?;
    let role = fields.required_string("role")?;
    match role.as_str() {
        "system" | "developer" => history.system(&required_content(&mut fields)?),
        "user" => history.user(&required_content(&mut fields)?),
        "tool" => {
            let text = required_content(&mut fields)?;
            history.tool(fields.string("tool_call_id")?.as_deref(), &text);
        }
        "assistant" => history.assistant(assistant(&mut fields)?),
        other => {
            let message = format!("`{other}` is no role; use system, developer, user, assistant or tool");
            return Err(ApiError::param(fields.path("role"), message).with_code("invalid_value"));
        }
    }
    fields.finish(&[MESSAGE])
}

fn assistant(fields: &mut Fields) -> Result<AssistantTurn, ApiError> {
    let content = content(fields)?;
    let reasoning = match fields.string("reasoning_content")? {
        Some(text) => {
            fields.take("reasoning");
            Some(text)
        }
        None => fields.string("reasoning")?,
    };
    let calls = fields.list("tool_calls")?.unwrap_or_default();
    if content.is_none() && calls.is_empty() && reasoning.is_none() {
        return Err(fields.missing("content"));
    }
    let path = fields.path("tool_calls");
    let calls: Result<_, _> =
        calls.into_iter().enumerate().map(|(i, call)| tool_call(format!("{path}[{i}]"), call)).collect();
    Ok(AssistantTurn { reasoning, content: content.unwrap_or_default(), calls: calls? })
}

fn tool_call(path: String, call: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::new(path, call)?;
    let id = fields.string("id")?.unwrap_or_default();
    if let Some(kind) = fields.string("type")?.filter(|kind| kind != "function") {
        return Err(ApiError::param(fields.path("type"), format!("a tool call's type is function, not `{kind}`")));
    }
    let mut function = fields.object("function")?.ok_or_else(|| fields.missing("function"))?;
    let name = function.required_string("name")?;
    let path = function.path("arguments");
    let arguments = match function.take("arguments") {
        None => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => serde_json::from_str::<Value>(&text).map_err(|error| {
            ApiError::param(path.clone(), format!("`{path}` is not valid JSON: {error}")).with_code("invalid_json")
        })?,
        Some(other) => other,
    };
    if !arguments.is_object() {
        return Err(wrong_type(&path, "a JSON object", &arguments));
    }
    function.finish(&[FUNCTION])?;
    fields.finish(&[CALL])?;
    Ok(history::call(&id, &name, &arguments))
}

fn required_content(fields: &mut Fields) -> Result<String, ApiError> {
    content(fields)?.ok_or_else(|| fields.missing("content"))
}

/// A message's text; parts are joined without anything between them, as templates do.
fn content(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let path = fields.path("content");
    match fields.take("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let mut all = String::new();
            for (i, part) in parts.into_iter().enumerate() {
                all += &text_part(format!("{path}[{i}]"), part)?;
            }
            Ok(Some(all))
        }
        Some(other) => Err(wrong_type(&path, "a string or a list of parts", &other)),
    }
}

fn text_part(path: String, part: Value) -> Result<String, ApiError> {
    let mut fields = Fields::new(path, part)?;
    match fields.required_string("type")?.as_str() {
        "text" => {
            let text = fields.required_string("text")?;
            fields.finish(&[PART])?;
            Ok(text)
        }
        "image_url" | "input_image" | "image" | "video_url" | "video" | "input_audio" | "audio_url" | "file" => {
            Err(ApiError::param(fields.own_path(), TEXT_ONLY).with_code("unsupported_content"))
        }
        other => {
            let message = format!("`{other}` is no type of a content part; send text");
            Err(ApiError::param(fields.path("type"), message).with_code("invalid_value"))
        }
    }
}

pub(in crate::api) const TOOL: &[Field] = &[
    done("type", "function"),
    done("function", "name, description, parameters"),
    harmless("cache_control", "prefixes are always kept"),
];

pub(in crate::api) const TOOL_FUNCTION: &[Field] = &[
    done("name", "the function's name"),
    done("description", "for the model"),
    done("parameters", "JSON schema of the arguments"),
    done("strict", "calls are held to the schema while they are written"),
];

/// The tools.
///
/// # Errors
/// 400 names the tool and field.
pub(super) fn tools(tools: Vec<Value>) -> Result<Tools, ApiError> {
    let mut out = Tools::default();
    for (i, tool) in tools.into_iter().enumerate() {
        let mut fields = Fields::new(format!("tools[{i}]"), tool)?;
        let kind_of = fields.required_string("type")?;
        if kind_of != "function" {
            let message = format!("a tool's type is function, not `{kind_of}`");
            return Err(ApiError::param(fields.path("type"), message).with_code("unsupported_tool"));
        }
        let mut function = fields.object("function")?.ok_or_else(|| fields.missing("function"))?;
        out.add(function.path("name"), Function::read(&mut function, "parameters")?)?;
        function.finish(&[TOOL_FUNCTION])?;
        fields.finish(&[TOOL])?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

    use super::*;
    use crate::api::conversation::tools::Choice;

    fn list(value: Value) -> Result<Vec<Value>, ApiError> {
        history(value.as_array().unwrap().clone()).map(History::into_messages)
    }

    #[test]
    fn roles_and_parts() {
        let out = list(json!([
            {"role": "developer", "content": "a"},
            {"role": "system", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": [{"type": "text", "text": "c "}, {"type": "text", "text": "d"}], "name": "x"},
            {"role": "assistant", "content": null, "reasoning_content": "r", "refusal": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "out"},
        ]))
        .unwrap();
        let expected = json!([
            {"role": "system", "content": "a\n\nb"},
            {"role": "user", "content": "c d"},
            {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [2]}}}]},
            {"role": "tool", "content": "out", "tool_call_id": "1"},
        ]);
        assert_eq!(Value::Array(out).to_string(), expected.to_string());
    }

    /// llama.cpp issues 27367 and 20733: a system or developer message in the middle was an error.
    #[test]
    fn llama_cpp_27367_system_message_mid_conversation() {
        let before = list(json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])).unwrap();
        let after = list(json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
            {"role": "assistant", "content": "a"}, {"role": "developer", "content": "d"}, {"role": "user", "content": "v"}]))
        .unwrap();
        assert_eq!(after[..2], before[..], "what stands before it must not change");
        assert_eq!(after[3], json!({"role": "user", "content": "<system>\nd\n</system>"}));
    }

    /// llama.cpp issue 25510: malformed arguments in the history were an internal error for ever.
    #[test]
    fn llama_cpp_25510_malformed_arguments_are_named() {
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{bad"}});
        let error =
            list(json!([{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": [call]}])).unwrap_err();
        assert_eq!(error.param_name(), Some("messages[1].tool_calls[0].function.arguments"));
    }

    #[test]
    fn errors_name_their_place() {
        for (messages, param) in [
            (json!([]), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "wizard", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
                "messages[0].content[0]",
            ),
            (json!([{"role": "user", "content": [{"type": "poem"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
            (json!([{"role": "user", "content": "x", "mood": 1}]), "messages[0].mood"),
            (json!([{"role": "user", "content": "x", "tool_calls": [1]}]), "messages[0].tool_calls"),
            (json!([{"role": "assistant"}]), "messages[0].content"),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]),
                "messages[0].tool_calls[0].function.name",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}]),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (json!([{"role": "assistant", "content": "", "audio": {"id": 1}}]), "messages[0].audio"),
        ] {
            let error = list(messages.clone()).unwrap_err();
            assert_eq!(error.param_name(), Some(param), "{messages}: {}", error.message());
        }
    }

    #[test]
    fn tools_are_checked() {
        let parse = |value: Value| {
            tools(value.as_array().unwrap().clone()).map(|tools| tools.choose("", Choice::Auto).unwrap().0.unwrap())
        };
        let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
        let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": schema, "strict": true}});
        let out = parse(json!([tool])).unwrap();
        let expected = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}});
        assert_eq!(out[0].to_string(), expected.to_string());
        for (value, param) in [
            (json!([{"type": "web_search"}]), "tools[0].type"),
            (json!([{"type": "function"}]), "tools[0].function"),
            (json!([{"type": "function", "function": {}}]), "tools[0].function.name"),
            (json!([{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
            (json!([{"type": "function", "function": {"name": "f", "parameters": 3}}]), "tools[0].function.parameters"),
            (json!([tool, tool]), "tools[1].function.name"),
        ] {
            assert_eq!(parse(value.clone()).unwrap_err().param_name(), Some(param), "{value}");
        }
    }
}
