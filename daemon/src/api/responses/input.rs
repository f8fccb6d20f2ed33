//! The items of `input`.

use serde_json::{Value, json};

use super::custom::INPUT;
use super::tools::model_name;
use crate::api::conversation::history::{self, AssistantTurn, History};
use crate::api::fields::{Field, Fields, done, harmless, wrong_type};
use crate::http::error::ApiError;

/// What stands before thinking that this server gave out as `encrypted_content`. It is not encrypted: it only makes the way
/// back and forth, since clients keep nothing else of it.
const SEAL: &str = "openjet:";

pub(in crate::api) const ITEM: &[Field] = &[
    done("type", "the item's kind"),
    done("role", "of a message: system, developer, user or assistant"),
    done("content", "of a message or of reasoning: a string, or a list of text parts"),
    done("call_id", "of a call and its output"),
    done("name", "the tool's name"),
    done("namespace", "the namespace that the tool is in"),
    done("arguments", "of a function_call: JSON of an object, in a string"),
    done("input", "of a custom_tool_call: a string"),
    done("output", "of a call's output: a string, or a list of text parts"),
    done("summary", "of reasoning: a list of text parts"),
    done("encrypted_content", "of reasoning: the thinking as this server sent it"),
    harmless("id", "comes back with items of an answer"),
    harmless("status", "comes back with items of an answer"),
    harmless("phase", "comes back with items of an answer"),
];

pub(in crate::api) const PART: &[Field] = &[
    done("type", "input_text or output_text"),
    harmless("annotations", "comes back with an answer"),
    harmless("logprobs", "comes back with an answer"),
    harmless("prompt_cache_breakpoint", "prefixes are found by their content"),
];

/// Items of tools that other servers run. They say nothing that the model could use here.
const SKIPPED: &[&str] = &[
    "web_search_call",
    "file_search_call",
    "image_generation_call",
    "code_interpreter_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
    "compaction",
];

/// Thinking in the form that makes the way back and forth.
pub(super) fn seal(text: &str) -> String {
    format!("{SEAL}{text}")
}

/// Reads `input` into `history`.
///
/// # Errors
/// 400 names the item and field.
pub(super) fn read(fields: &mut Fields, history: &mut History) -> Result<(), ApiError> {
    let path = fields.path("input");
    let items = match fields.take("input") {
        None => return Err(fields.missing("input")),
        Some(Value::String(text)) => {
            history.user(&text);
            return Ok(());
        }
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type(&path, "a string or a list of items", &other)),
    };
    let mut turns = Turns { history, assistant: None };
    for (i, item) in items.into_iter().enumerate() {
        turns.item(Fields::new(format!("{path}[{i}]"), item)?)?;
    }
    turns.flush();
    Ok(())
}

/// Puts an assistant's items together to turns.
struct Turns<'a> {
    history: &'a mut History,
    assistant: Option<AssistantTurn>,
}

impl Turns<'_> {
    fn flush(&mut self) {
        if let Some(turn) = self.assistant.take() {
            self.history.assistant(turn);
        }
    }

    fn turn(&mut self) -> &mut AssistantTurn {
        self.assistant.get_or_insert_default()
    }

    fn item(&mut self, mut item: Fields) -> Result<(), ApiError> {
        let kind = item.string("type")?.unwrap_or_else(|| "message".to_owned());
        match kind.as_str() {
            "message" => self.message(&mut item)?,
            "function_call" => {
                let (id, name) = (item.required_string("call_id")?, model_name(&mut item)?);
                let arguments = arguments(&mut item)?;
                self.turn().calls.push(history::call(&id, &name, &arguments));
            }
            "custom_tool_call" => {
                let (id, name) = (item.required_string("call_id")?, model_name(&mut item)?);
                let input = item.required_string("input")?;
                self.turn().calls.push(history::call(&id, &name, &json!({ INPUT: input })));
            }
            "function_call_output" | "custom_tool_call_output" => {
                item.string("name")?;
                item.string("namespace")?;
                let id = item.required_string("call_id")?;
                let text = texts(&mut item, "output")?;
                self.flush();
                self.history.tool(Some(&id), &text);
            }
            "reasoning" => self.reasoning(&mut item)?,
            "item_reference" => {
                let message = "items can't be named: send them, or go on from `previous_response_id`";
                return Err(ApiError::param(item.own_path(), message).with_code("unsupported_content"));
            }
            kind if SKIPPED.contains(&kind) => return Ok(()),
            other => {
                let message = format!("an item of type `{other}` is not known here");
                return Err(ApiError::param(item.path("type"), message).with_code("invalid_value"));
            }
        }
        item.finish(&[ITEM])
    }

    fn message(&mut self, item: &mut Fields) -> Result<(), ApiError> {
        let role = item.required_string("role")?;
        let text = texts(item, "content")?;
        if role == "assistant" {
            let turn = self.turn();
            if !turn.content.is_empty() {
                turn.content.push_str("\n\n");
            }
            turn.content.push_str(&text);
            return Ok(());
        }
        self.flush();
        match role.as_str() {
            "system" | "developer" => self.history.system(&text),
            "user" => self.history.user(&text),
            other => {
                let message = format!("`{other}` is no role; use system, developer, user or assistant");
                return Err(ApiError::param(item.path("role"), message).with_code("invalid_value"));
            }
        }
        Ok(())
    }

    /// Thinking comes back as it was, sealed, or in a summary of another server's.
    fn reasoning(&mut self, item: &mut Fields) -> Result<(), ApiError> {
        let content = if item.has("content") { texts(item, "content")? } else { String::new() };
        let summary = if item.has("summary") { texts(item, "summary")? } else { String::new() };
        let sealed = item.string("encrypted_content")?;
        let sealed = sealed.as_deref().and_then(|text| text.strip_prefix(SEAL)).unwrap_or_default();
        let text = [content.as_str(), sealed, &summary].into_iter().find(|text| !text.is_empty()).map(str::to_owned);
        if let Some(text) = text {
            // Thinking begins a turn.
            if self.assistant.as_ref().is_some_and(|turn| !turn.content.is_empty() || !turn.calls.is_empty()) {
                self.flush();
            }
            let turn = self.turn();
            turn.reasoning = Some(turn.reasoning.take().map_or_else(|| text.clone(), |all| format!("{all}\n\n{text}")));
        }
        Ok(())
    }
}

fn arguments(item: &mut Fields) -> Result<Value, ApiError> {
    let path = item.path("arguments");
    let text = item.required_string("arguments")?;
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let arguments: Value = serde_json::from_str(&text).map_err(|error| {
        ApiError::param(path.clone(), format!("`{path}` is not valid JSON: {error}")).with_code("invalid_json")
    })?;
    if arguments.is_object() { Ok(arguments) } else { Err(wrong_type(&path, "a JSON object", &arguments)) }
}

/// A string, or the texts of a list of parts.
fn texts(item: &mut Fields, name: &str) -> Result<String, ApiError> {
    let path = item.path(name);
    let parts = match item.take(name) {
        None => return Err(item.missing(name)),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(wrong_type(&path, "a string or a list of parts", &other)),
    };
    let mut all = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        let mut part = Fields::new(format!("{path}[{i}]"), part)?;
        match part.required_string("type")?.as_str() {
            "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
                all += &part.required_string("text")?;
            }
            "refusal" => all += &part.required_string("refusal")?,
            "input_image" | "input_file" | "input_audio" => {
                let message = "this server takes text only";
                return Err(ApiError::param(part.own_path(), message).with_code("unsupported_content"));
            }
            other => {
                let message = format!("`{other}` is no type of a content part; send input_text");
                return Err(ApiError::param(part.path("type"), message).with_code("invalid_value"));
            }
        }
        part.finish(&[PART])?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

    use super::*;

    fn messages(input: Value) -> Result<Value, ApiError> {
        let mut history = History::default();
        read(&mut Fields::new("", json!({ "input": input }))?, &mut history)?;
        Ok(Value::Array(history.into_messages()))
    }

    #[test]
    fn items_become_turns() {
        let input = json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": null},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content":
                [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc", "call_id": "1", "name": "f", "arguments": "{\"k\": 1}", "status": "completed"},
            {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "raw", "namespace": "n"},
            {"type": "web_search_call", "id": "w", "action": {"type": "search"}},
            {"type": "function_call_output", "call_id": "1", "output": "r"},
            {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "s"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "openjet:u"},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ]);
        let call = |id: &str, name: &str, arguments: Value| history::call(id, name, &arguments);
        let expected = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls":
                [call("1", "f", json!({"k": 1})), call("2", "n__g", json!({"input": "raw"}))]},
            {"role": "tool", "content": "r", "tool_call_id": "1"},
            {"role": "tool", "content": "s", "tool_call_id": "2"},
            {"role": "assistant", "content": "c", "reasoning_content": "u"},
            {"role": "user", "content": "d"},
        ]);
        assert_eq!(messages(input).unwrap(), expected);
    }

    #[test]
    fn errors_name_their_place() {
        for (input, param) in [
            (json!(3), "input"),
            (json!(["x"]), "input[0]"),
            (json!([{"type": "poem"}]), "input[0].type"),
            (json!([{"role": "wizard", "content": "x"}]), "input[0].role"),
            (json!([{"role": "user"}]), "input[0].content"),
            (json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]), "input[0].content[0]"),
            (
                json!([{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{bad"}]),
                "input[0].arguments",
            ),
            (json!([{"type": "function_call", "call_id": "1", "name": "f", "arguments": "[]"}]), "input[0].arguments"),
            (json!([{"type": "function_call_output", "output": "x"}]), "input[0].call_id"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0]"),
            (json!([{"role": "user", "content": "x", "mood": 1}]), "input[0].mood"),
        ] {
            let error = messages(input.clone()).unwrap_err();
            assert_eq!(error.param_name(), Some(param), "{input}: {}", error.message());
        }
    }
}
