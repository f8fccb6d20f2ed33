//! Reads a request of the Responses API.

use openjet_engine::text::Chat;
use serde_json::{Map, Value, json};

use super::store::ResponseStore;
use super::tools::Kinds;
use super::{input, tools};
use crate::api::chat::request::effort;
use crate::api::conversation::Conversation;
use crate::api::conversation::format::text_format;
use crate::api::conversation::history::History;
use crate::api::conversation::hold::AnswerForm;
use crate::api::fields::{Field, Fields, done, harmless, refused, wrong_type};
use crate::api::sampling::{self, Generate, SamplingDefaults};
use crate::http::error::ApiError;

const STATELESS: &str = "send the conversation in `input`, or go on from `previous_response_id`";

/// The fields of `/v1/responses`.
pub const FIELDS: &[Field] = &[
    done("model", "any name is taken and echoed, unless the setting strict_model is on"),
    done("input", "a string, or a list of messages, calls, outputs of calls, and reasoning"),
    done("instructions", "the system text"),
    done("previous_response_id", "goes on from an answer that is still kept"),
    done("store", "false: the answer is not kept for previous_response_id"),
    done("tools", "function and custom tools, and namespaces of them; tools of other kinds are skipped"),
    done("tool_choice", "none, auto, required, or a function or custom tool"),
    done("parallel_tool_calls", "false ends the answer after its first call"),
    done("max_output_tokens", "without it as many as the context holds"),
    done("reasoning", "effort: none, minimal, low, medium, high or xhigh, as far as the template knows it"),
    done(
        "text",
        "format: text, json_object, json_schema; regex with a field regex, grammar with a field grammar (Lark)",
    ),
    done("include", "reasoning.encrypted_content: the thinking in the form that goes on from request to request"),
    done("metadata", "comes back with the answer"),
    done("stream", "server-sent events"),
    done("temperature", "0 to 2; 0 takes the most likely token"),
    done("top_p", "0 to 1"),
    done("top_k", "0 or -1 for all"),
    done("truncation", "only disabled"),
    done("background", "only false"),
    harmless("stream_options", "padding against eavesdroppers is never sent"),
    harmless("client_metadata", "nothing is stored"),
    harmless("user", "there is one user"),
    harmless("safety_identifier", "there is one user"),
    harmless("service_tier", "there is one tier"),
    harmless("prompt_cache_key", "prefixes are found by their content"),
    harmless("prompt_cache_retention", "prefixes are kept as long as there is room"),
    harmless("max_tool_calls", "this server runs no tools of its own"),
    refused("conversation", STATELESS),
    refused("prompt", STATELESS),
    refused("top_logprobs", "use /v1/chat/completions for log probabilities"),
];

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What is to be answered.
    pub conversation: Conversation,
    /// What the answer says of the request.
    pub about: About,
}

/// What an answer says of its request, and what is kept of it.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Members of the response that repeat the request's.
    pub echo: Map<String, Value>,
    /// What the client knows of the tools.
    pub kinds: Kinds,
    /// The thinking goes back and forth.
    pub sealed_reasoning: bool,
    /// The conversation without the instructions, if it is to be kept.
    pub turns: Option<History>,
}

/// Reads a request.
///
/// # Errors
/// 400 names the field.
pub fn parse(body: Value, defaults: SamplingDefaults, store: &ResponseStore) -> Result<Asked, ApiError> {
    let mut fields = Fields::new("", body)?;
    let mut echo = echo(&fields);
    let mut generate = Generate::new(defaults);
    generate.model = fields.string("model")?;
    generate.stream = fields.boolean("stream")?.unwrap_or(false);
    sampling::core(&mut fields, &mut generate.params)?;
    echo.insert("temperature".to_owned(), decimal(generate.params.temperature));
    echo.insert("top_p".to_owned(), decimal(generate.params.top_p));
    let instructions = fields.string("instructions")?;
    let keep = fields.boolean("store")?.unwrap_or(true);
    let mut turns = previous(&mut fields, store)?;
    input::read(&mut fields, &mut turns)?;
    let mut history = History::default();
    if let Some(text) = &instructions {
        history.system(text);
    }
    history.append(turns.clone());
    if history.is_empty() {
        return Err(ApiError::param("input", "`input` is empty; send at least one item"));
    }
    let (tools, kinds) = tools::read(fields.list("tools")?.unwrap_or_default())?;
    let (tools, mut form) = tools.choose("tool_choice", tools::choice(&mut fields)?)?;
    let one_call = fields.boolean("parallel_tool_calls")? == Some(false);
    let max_tokens = fields.integer("max_output_tokens", 1..=i64::from(u32::MAX))?.map(|n| n as u32);
    let (thinking, effort) = reasoning(&mut fields)?;
    form.answer = text(&mut fields)?;
    let sealed_reasoning = include(&mut fields)?;
    metadata(&mut fields)?;
    only(&mut fields, "truncation", &json!("disabled"), "a conversation that is too long is refused, not cut")?;
    only(&mut fields, "background", &json!(false), "an answer is sent to whoever waits for it")?;
    fields.finish(&[FIELDS])?;
    let chat = Chat {
        messages: history.into_messages(),
        tools,
        add_generation_prompt: true,
        enable_thinking: thinking,
        reasoning_effort: effort,
        kwargs: Map::new(),
    };
    let about = About { echo, kinds, sealed_reasoning, turns: Some(turns).filter(|_| keep) };
    Ok(Asked { conversation: Conversation { generate, chat, one_call, form, max_tokens }, about })
}

/// The response's members that say what was asked, with the values that stand for those not given.
fn echo(fields: &Fields) -> Map<String, Value> {
    let or = |name: &str, other: Value| (name.to_owned(), fields.get(name).cloned().unwrap_or(other));
    Map::from_iter([
        or("instructions", Value::Null),
        or("max_output_tokens", Value::Null),
        or("metadata", json!({})),
        or("parallel_tool_calls", json!(true)),
        or("previous_response_id", Value::Null),
        or("reasoning", json!({ "effort": null, "summary": null })),
        or("store", json!(true)),
        or("text", json!({ "format": { "type": "text" } })),
        or("tool_choice", json!("auto")),
        or("tools", json!([])),
        or("truncation", json!("disabled")),
    ])
}

/// A number as a client writes it: 0.9, not the 0.8999999761581421 that its 32 bits stand for.
fn decimal(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or_else(|_| value.into()))
}

fn previous(fields: &mut Fields, store: &ResponseStore) -> Result<History, ApiError> {
    let Some(id) = fields.string("previous_response_id")? else { return Ok(History::default()) };
    store.get(&id).ok_or_else(|| {
        let message = format!(
            "there is no response `{id}`: only the latest are kept, in memory, and none that was made with `store` false; \
             send the whole conversation in `input`"
        );
        ApiError::param("previous_response_id", message).with_code("previous_response_not_found")
    })
}

fn reasoning(fields: &mut Fields) -> Result<(Option<bool>, Option<String>), ApiError> {
    const TABLE: &[Field] = &[
        harmless("summary", "thinking is sent as it is"),
        harmless("generate_summary", "thinking is sent as it is"),
        harmless("context", "what the client sends is read"),
    ];
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok((None, None)) };
    let effort = effort(&mut reasoning, "effort")?;
    reasoning.finish(&[TABLE])?;
    Ok(effort)
}

fn text(fields: &mut Fields) -> Result<Option<AnswerForm>, ApiError> {
    const TABLE: &[Field] = &[harmless("verbosity", "no template has a place for it")];
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let answer = text_format(&mut text)?;
    text.finish(&[TABLE])?;
    Ok(answer)
}

/// Whether the thinking is wanted in a form that is sent back.
fn include(fields: &mut Fields) -> Result<bool, ApiError> {
    let mut sealed = false;
    for (i, item) in fields.list("include")?.unwrap_or_default().iter().enumerate() {
        match item.as_str() {
            Some("reasoning.encrypted_content") => sealed = true,
            Some("message.output_text.logprobs") => {
                let message = "log probabilities are not sent here; use /v1/chat/completions";
                return Err(ApiError::param(format!("include[{i}]"), message).with_code("unsupported_parameter"));
            }
            // Of tools that this server does not have: there is nothing to include.
            Some(_) => {}
            None => return Err(wrong_type(&format!("include[{i}]"), "a string", item)),
        }
    }
    Ok(sealed)
}

fn metadata(fields: &mut Fields) -> Result<(), ApiError> {
    fields.object("metadata").map(drop)
}

/// A field that may say what happens anyway, and nothing else.
fn only(fields: &mut Fields, name: &str, value: &Value, why: &str) -> Result<(), ApiError> {
    match fields.take(name) {
        Some(other) if other != *value => {
            let message = format!("`{name}` can only be {value}: {why}");
            Err(ApiError::param(name, message).with_code("unsupported_parameter"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

    use super::*;
    use crate::api::fields::assert_read_or_refused;

    fn parse_with(extra: Value) -> Result<Asked, ApiError> {
        let mut body = json!({"input": "hi"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse(body, SamplingDefaults::FAMILY, &ResponseStore::default())
    }

    #[test]
    fn instructions_and_developer_are_one_system_message() {
        let developer =
            json!({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]});
        let asked = parse_with(json!({"instructions": "a", "input": [developer, {"role": "user", "content": "c"}]}));
        let expected = json!([{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "c"}]);
        assert_eq!(Value::Array(asked.unwrap().conversation.chat.messages), expected);
    }

    #[test]
    fn numbers_come_back_as_they_were_sent() {
        let echo = parse_with(json!({"temperature": 0.7, "top_p": 0.9})).unwrap().about.echo;
        assert_eq!((&echo["temperature"], &echo["top_p"]), (&json!(0.7), &json!(0.9)));
    }

    #[test]
    fn every_field_is_read_or_refused_by_name() {
        assert_read_or_refused(FIELDS, &json!([[{"no": "thing"}]]), parse_with);
    }

    #[test]
    fn errors_name_the_field() {
        for (extra, param) in [
            (json!({"input": []}), "input"),
            (json!({"input": null}), "input"),
            (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
            (json!({"text": {"format": {"type": "yaml"}}}), "text.format.type"),
            (json!({"truncation": "auto"}), "truncation"),
            (json!({"background": true}), "background"),
            (json!({"include": ["message.output_text.logprobs"]}), "include[0]"),
            (json!({"max_tokens": 3}), "max_tokens"),
        ] {
            let error = parse_with(extra.clone()).unwrap_err();
            assert_eq!(error.param_name(), Some(param), "{extra}: {}", error.message());
        }
    }
}
