//! Chat messages: checked, and brought into the form that chat templates read.

use serde_json::{Map, Value, json};

use super::fields::{Field, Fields, done, harmless, kind, refused, wrong_type};
use crate::http::error::ApiError;

const TEXT_ONLY: &str = "this server takes text only";

const MESSAGE: &[Field] = &[
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

const PART: &[Field] = &[
    done("type", "text"),
    done("text", "the text"),
    harmless("cache_control", "prefixes are always kept"),
    harmless("annotations", "comes back with an assistant's message"),
];

const CALL: &[Field] = &[
    done("id", "the call's id"),
    done("type", "function"),
    done("function", "name and arguments"),
    harmless("index", "comes back from streams"),
    harmless("extra_content", "comes back from other servers"),
];

const FUNCTION: &[Field] = &[done("name", "the function's name"), done("arguments", "JSON of an object, in a string")];

/// The messages as a template reads them: `developer` is `system`, leading system messages are one, later ones stand where
/// they are as user turns (templates take a system message at the start only, and moving it there would change the text
/// before it), tool calls have their arguments as objects.
///
/// # Errors
/// 400 names the message and field.
pub fn normalise(messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::param("messages", "`messages` is empty; send at least one message"));
    }
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    for (i, message) in messages.into_iter().enumerate() {
        let message = one(format!("messages[{i}]"), message)?;
        if message["role"] != "system" {
            out.push(message);
            continue;
        }
        let text = message["content"].as_str().unwrap_or_default();
        match out.last_mut() {
            None => out.push(message),
            Some(last) if last["role"] == "system" => {
                let joined = format!("{}\n\n{text}", last["content"].as_str().unwrap_or_default());
                last["content"] = Value::String(joined);
            }
            Some(_) => out.push(json!({ "role": "user", "content": format!("<system>\n{text}\n</system>") })),
        }
    }
    Ok(out)
}

fn one(path: String, message: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::new(path, message)?;
    let role = fields.required_string("role")?;
    let mut out = Map::new();
    match role.as_str() {
        "system" | "developer" => {
            out.insert("role".to_owned(), json!("system"));
            out.insert("content".to_owned(), required_content(&mut fields)?);
        }
        "user" => {
            out.insert("role".to_owned(), json!("user"));
            out.insert("content".to_owned(), required_content(&mut fields)?);
        }
        "tool" => {
            out.insert("role".to_owned(), json!("tool"));
            out.insert("content".to_owned(), required_content(&mut fields)?);
            if let Some(id) = fields.string("tool_call_id")? {
                out.insert("tool_call_id".to_owned(), Value::String(id));
            }
        }
        "assistant" => assistant(&mut fields, &mut out)?,
        other => {
            let message = format!("`{other}` is no role; use system, developer, user, assistant or tool");
            return Err(ApiError::param(fields.path("role"), message).with_code("invalid_value"));
        }
    }
    fields.finish(&[MESSAGE])?;
    Ok(Value::Object(out))
}

fn assistant(fields: &mut Fields, out: &mut Map<String, Value>) -> Result<(), ApiError> {
    out.insert("role".to_owned(), json!("assistant"));
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
    out.insert("content".to_owned(), Value::String(content.unwrap_or_default()));
    if let Some(text) = reasoning {
        out.insert("reasoning_content".to_owned(), Value::String(text));
    }
    if !calls.is_empty() {
        let path = fields.path("tool_calls");
        let calls: Result<_, _> =
            calls.into_iter().enumerate().map(|(i, call)| tool_call(format!("{path}[{i}]"), call)).collect();
        out.insert("tool_calls".to_owned(), Value::Array(calls?));
    }
    Ok(())
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
    Ok(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }))
}

fn required_content(fields: &mut Fields) -> Result<Value, ApiError> {
    content(fields)?.map(Value::String).ok_or_else(|| fields.missing("content"))
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

const TOOL: &[Field] = &[
    done("type", "function"),
    done("function", "name, description, parameters"),
    harmless("cache_control", "prefixes are always kept"),
];

const TOOL_FUNCTION: &[Field] = &[
    done("name", "the function's name"),
    done("description", "for the model"),
    done("parameters", "JSON schema of the arguments"),
    harmless("strict", "calls are not held to their schema yet, strict or not"),
];

/// The tools as a template reads them: type, name, description and parameters, in the client's order.
///
/// # Errors
/// 400 names the tool and field.
pub fn tools(tools: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let mut names = std::collections::HashSet::new();
    let one = |(i, tool): (usize, Value)| {
        let mut fields = Fields::new(format!("tools[{i}]"), tool)?;
        let kind_of = fields.required_string("type")?;
        if kind_of != "function" {
            let message = format!("a tool's type is function, not `{kind_of}`");
            return Err(ApiError::param(fields.path("type"), message).with_code("unsupported_tool"));
        }
        let mut function = fields.object("function")?.ok_or_else(|| fields.missing("function"))?;
        let name_path = function.path("name");
        let name = function.required_string("name")?;
        let usable = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
        if name.is_empty() || name.len() > 256 || !name.chars().all(usable) {
            let message = format!("`{name_path}` must be letters, digits and _-.:/ only, up to 256 of them");
            return Err(ApiError::param(name_path, message).with_code("invalid_value"));
        }
        let mut out = Map::new();
        out.insert("name".to_owned(), Value::String(name.clone()));
        if let Some(description) = function.string("description")? {
            out.insert("description".to_owned(), Value::String(description));
        }
        if let Some(parameters) = function.take("parameters") {
            if !parameters.is_object() {
                let path = function.path("parameters");
                return Err(ApiError::param(
                    path.clone(),
                    format!("`{path}` must be a JSON schema, not {}", kind(&parameters)),
                ));
            }
            out.insert("parameters".to_owned(), parameters);
        }
        function.finish(&[TOOL_FUNCTION])?;
        fields.finish(&[TOOL])?;
        if !names.insert(name.clone()) {
            return Err(
                ApiError::param(name_path, format!("there are two tools named `{name}`")).with_code("invalid_value")
            );
        }
        Ok(json!({ "type": "function", "function": out }))
    };
    tools.into_iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

    use super::*;

    fn list(value: Value) -> Result<Vec<Value>, ApiError> {
        normalise(value.as_array().unwrap().clone())
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
        let parse = |value: Value| tools(value.as_array().unwrap().clone());
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
