//! System texts, messages and content blocks of the Messages API.

use serde_json::{Value, json};

use crate::api::conversation::history::{self, AssistantTurn, History};
use crate::api::fields::{Field, Fields, done, harmless, wrong_type};
use crate::http::error::ApiError;

/// What Claude Code puts before its system text: a number that changes with every request, which would keep every prompt
/// from being found again.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

pub(in crate::api) const MESSAGE: &[Field] =
    &[done("role", "user, assistant or system"), done("content", "a string, or a list of blocks")];

pub(in crate::api) const BLOCK: &[Field] = &[
    done("type", "the block's kind"),
    harmless("cache_control", "prefixes are always kept"),
    harmless("citations", "there are no documents"),
    harmless("signature", "thinking is not signed"),
    harmless("caller", "only the model calls"),
];

/// Reads `system`.
///
/// # Errors
/// 400 names the field.
pub(super) fn system(fields: &mut Fields, history: &mut History) -> Result<(), ApiError> {
    let path = fields.path("system");
    match fields.take("system") {
        None => {}
        Some(Value::String(text)) => history.system(without_billing_header(&text)),
        Some(Value::Array(blocks)) => {
            for (i, block) in blocks.into_iter().enumerate() {
                let text = text_block(format!("{path}[{i}]"), block)?;
                match without_billing_header(&text) {
                    "" => {}
                    text => history.system(text),
                }
            }
        }
        Some(other) => return Err(wrong_type(&path, "a string or a list of text blocks", &other)),
    }
    Ok(())
}

/// The text without a first line that is the billing header.
fn without_billing_header(text: &str) -> &str {
    if !text.starts_with(BILLING_HEADER) {
        return text;
    }
    text.split_once('\n').map_or("", |(_, rest)| rest.trim_start_matches('\n'))
}

/// Reads a message.
///
/// # Errors
/// 400 names the field.
pub(super) fn message(path: String, message: Value, history: &mut History) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, message)?;
    let role = fields.required_string("role")?;
    let path = fields.path("content");
    let blocks = match fields.take("content") {
        None => return Err(fields.missing("content")),
        Some(Value::String(text)) => vec![json!({ "type": "text", "text": text })],
        Some(Value::Array(blocks)) => blocks,
        Some(other) => return Err(wrong_type(&path, "a string or a list of blocks", &other)),
    };
    let blocks = blocks.into_iter().enumerate().map(|(i, block)| Fields::new(format!("{path}[{i}]"), block));
    match role.as_str() {
        "user" => user(blocks, history)?,
        "assistant" => history.assistant(assistant(blocks)?),
        "system" => {
            for block in blocks {
                let mut block = block?;
                block_kind(&mut block, &["text"])?;
                history.system(&block.required_string("text")?);
                block.finish(&[BLOCK])?;
            }
        }
        other => {
            let message = format!("`{other}` is no role; use user, assistant or system");
            return Err(ApiError::param(fields.path("role"), message).with_code("invalid_value"));
        }
    }
    fields.finish(&[MESSAGE])
}

/// A user's turn: results of tools stand for themselves, neighbouring texts are one.
fn user(blocks: impl Iterator<Item = Result<Fields, ApiError>>, history: &mut History) -> Result<(), ApiError> {
    let mut texts: Vec<String> = Vec::new();
    let mut empty = true;
    for block in blocks {
        let mut block = block?;
        empty = false;
        if block_kind(&mut block, &["text", "tool_result"])? == "text" {
            texts.push(block.required_string("text")?);
        } else {
            if !texts.is_empty() {
                history.user(&std::mem::take(&mut texts).join("\n\n"));
            }
            let id = block.required_string("tool_use_id")?;
            let text = result_text(&mut block)?;
            let text = if block.boolean("is_error")?.unwrap_or(false) { format!("Error: {text}") } else { text };
            history.tool(Some(&id), &text);
        }
        block.finish(&[BLOCK])?;
    }
    if empty || !texts.is_empty() {
        history.user(&texts.join("\n\n"));
    }
    Ok(())
}

fn assistant(blocks: impl Iterator<Item = Result<Fields, ApiError>>) -> Result<AssistantTurn, ApiError> {
    let mut turn = AssistantTurn::default();
    let mut texts = Vec::new();
    for block in blocks {
        let mut block = block?;
        match block_kind(&mut block, &["text", "thinking", "redacted_thinking", "tool_use"])?.as_str() {
            "text" => texts.push(block.required_string("text")?),
            "thinking" => {
                let text = block.required_string("thinking")?;
                let all = turn.reasoning.take().map_or_else(|| text.clone(), |before| format!("{before}\n\n{text}"));
                turn.reasoning = Some(all);
            }
            // Another server's, and sealed: there is nothing to read.
            "redacted_thinking" => drop(block.string("data")?),
            _ => {
                let (id, name) = (block.required_string("id")?, block.required_string("name")?);
                let input = block.take("input").unwrap_or_else(|| json!({}));
                if !input.is_object() {
                    return Err(wrong_type(&block.path("input"), "an object", &input));
                }
                turn.calls.push(history::call(&id, &name, &input));
            }
        }
        block.finish(&[BLOCK])?;
    }
    turn.content = texts.join("\n\n");
    Ok(turn)
}

/// The block's type, if it is one of `known`.
fn block_kind(block: &mut Fields, known: &[&str]) -> Result<String, ApiError> {
    let kind = block.required_string("type")?;
    match kind.as_str() {
        kind if known.contains(&kind) => {}
        "image" | "document" | "container_upload" => {
            let message = format!("this server takes text only, not a block of type {kind}");
            return Err(ApiError::param(block.own_path(), message).with_code("unsupported_content"));
        }
        _ => {
            let message = format!("a block of type `{kind}` can't stand here; it may be {}", known.join(", "));
            return Err(ApiError::param(block.path("type"), message).with_code("invalid_value"));
        }
    }
    Ok(kind)
}

fn result_text(block: &mut Fields) -> Result<String, ApiError> {
    let path = block.path("content");
    match block.take("content") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(blocks)) => {
            let texts: Result<Vec<_>, _> =
                blocks.into_iter().enumerate().map(|(i, block)| text_block(format!("{path}[{i}]"), block)).collect();
            Ok(texts?.join("\n"))
        }
        Some(other) => Err(wrong_type(&path, "a string or a list of blocks", &other)),
    }
}

fn text_block(path: String, block: Value) -> Result<String, ApiError> {
    let mut block = Fields::new(path, block)?;
    block_kind(&mut block, &["text"])?;
    let text = block.required_string("text")?;
    block.finish(&[BLOCK])?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

    use super::*;

    fn read(system_value: Value, messages: Value) -> Result<Value, ApiError> {
        let mut history = History::default();
        system(&mut Fields::new("", json!({ "system": system_value }))?, &mut history)?;
        for (i, one) in messages.as_array().unwrap().iter().enumerate() {
            message(format!("messages[{i}]"), one.clone(), &mut history)?;
        }
        Ok(Value::Array(history.into_messages()))
    }

    #[test]
    fn blocks_become_messages() {
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "c"}, {"type": "tool_use", "id": "1", "name": "f", "input": {"k": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
                {"type": "tool_result", "tool_use_id": "2", "content": "no", "is_error": true},
                {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "later"},
        ]);
        let expected = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a\n\nb"},
            {"role": "assistant", "content": "c", "reasoning_content": "t", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"k": 1}}}]},
            {"role": "tool", "content": "r", "tool_call_id": "1"},
            {"role": "tool", "content": "Error: no", "tool_call_id": "2"},
            {"role": "user", "content": "go on"},
            {"role": "user", "content": "<system>\nlater\n</system>"},
        ]);
        assert_eq!(read(json!("s"), messages).unwrap(), expected);
    }

    /// llama.cpp issue 19494: a number in the system text that changes with every request kept prompts from being found.
    #[test]
    fn llama_cpp_19494_the_billing_header_is_left_out() {
        let user = json!([{"role": "user", "content": "u"}]);
        let block = |text: &str| json!({"type": "text", "text": text});
        let header = "x-anthropic-billing-header: cc_version=2.1.7; cc_entrypoint=cli; cch=3f9a1;";
        let with = json!([block(header), block("You are an agent.")]);
        let without = json!([block("You are an agent.")]);
        assert_eq!(read(with, user.clone()).unwrap(), read(without.clone(), user.clone()).unwrap());
        let joined = json!(format!("{header}\n\nYou are an agent."));
        assert_eq!(read(joined, user.clone()).unwrap(), read(without, user).unwrap());
    }

    #[test]
    fn errors_name_their_place() {
        for (messages, param) in [
            (json!(["x"]), "messages[0]"),
            (json!([{"role": "tool", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]), "messages[0].content[0]"),
            (json!([{"role": "user", "content": [{"type": "thinking"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "user", "content": [{"type": "tool_result"}]}]), "messages[0].content[0].tool_use_id"),
            (
                json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content":
                [{"type": "image"}]}]}]),
                "messages[0].content[0].content[0]",
            ),
            (
                json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": []}]}]),
                "messages[0].content[0].input",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text", "text": "x", "mood": 1}]}]),
                "messages[0].content[0].mood",
            ),
        ] {
            let error = read(json!(null), messages.clone()).unwrap_err();
            assert_eq!(error.param_name(), Some(param), "{messages}: {}", error.message());
        }
    }
}
