//! Reads a request of the Messages API.

use openjet_engine::text::Chat;
use serde_json::{Map, Value};

use super::content;
use crate::api::chat;
use crate::api::conversation::Conversation;
use crate::api::conversation::format::schema_of;
use crate::api::conversation::history::History;
use crate::api::conversation::hold::AnswerForm;
use crate::api::conversation::tools::{Choice, Function, Tools};
use crate::api::fields::{Field, Fields, done, harmless, refused};
use crate::api::sampling::{self, Generate, SamplingDefaults};
use crate::http::error::ApiError;

/// The fields of `/v1/messages`.
pub const FIELDS: &[Field] = &[
    done("model", "any name is taken and echoed, unless the setting strict_model is on"),
    done("messages", "roles user, assistant and system; text, thinking, tool_use and tool_result blocks"),
    done("max_tokens", "most tokens of the answer, thinking included"),
    done("system", "a string, or a list of text blocks"),
    done("tools", "tools of the client, with name, description and input_schema"),
    done("tool_choice", "auto, none, any or tool; disable_parallel_tool_use ends the answer after its first call"),
    done("thinking", "enabled with budget_tokens, adaptive or disabled; disabled without it"),
    done(
        "output_config",
        "effort: low, medium, high, xhigh or max, as far as the template knows it; format: json_schema",
    ),
    done("stream", "server-sent events"),
    done("stop_sequences", "up to 16 strings"),
    done("temperature", "0 to 2; 0 takes the most likely token"),
    done("top_p", "0 to 1"),
    done("top_k", "0 for all"),
    harmless("metadata", "nothing is stored"),
    harmless("cache_control", "prefixes are always kept"),
    harmless("context_management", "the conversation is read as it is sent"),
    harmless("service_tier", "there is one tier"),
    harmless("inference_geo", "there is one place"),
    harmless("speed", "there is one speed"),
    refused("container", "this server runs no code"),
    refused("mcp_servers", "this server calls no others; let the client do it"),
];

pub(in crate::api) const TOOL: &[Field] = &[
    done("type", "custom"),
    done("name", "the tool's name"),
    done("description", "for the model"),
    done("input_schema", "JSON schema of the input"),
    harmless("cache_control", "prefixes are always kept"),
    done("strict", "calls are held to the schema while they are written"),
    harmless("eager_input_streaming", "inputs are always streamed"),
    harmless("defer_loading", "every tool is shown to the model at once"),
    harmless("input_examples", "templates have no place for them"),
    harmless("allowed_callers", "only the model calls"),
];

/// Most stop sequences.
const STOPS: usize = 16;

/// Reads a request.
///
/// # Errors
/// 400 names the field.
pub fn parse(body: Value, defaults: SamplingDefaults) -> Result<Conversation, ApiError> {
    let mut fields = Fields::new("", body)?;
    let max_tokens = fields.integer("max_tokens", 1..=i64::from(u32::MAX))?.map(|n| n as u32);
    if max_tokens.is_none() {
        return Err(fields.missing("max_tokens"));
    }
    let (conversation, history_ends) = read(&mut fields, defaults, max_tokens)?;
    fields.finish(&[FIELDS])?;
    if history_ends == Some("assistant") {
        let message = "`messages` must end with a user's turn: an answer that begins with given words is not supported";
        return Err(ApiError::param("messages", message).with_code("unsupported_parameter"));
    }
    Ok(conversation)
}

/// Reads a request whose tokens are to be counted: `max_tokens` may be absent, and the last turn may be anybody's.
///
/// # Errors
/// 400 names the field.
pub fn parse_for_count(body: Value, defaults: SamplingDefaults) -> Result<Conversation, ApiError> {
    let mut fields = Fields::new("", body)?;
    fields.take("max_tokens");
    let (conversation, _) = read(&mut fields, defaults, None)?;
    fields.finish(&[FIELDS])?;
    Ok(conversation)
}

/// The conversation, and whose turn its last one is.
fn read(
    fields: &mut Fields,
    defaults: SamplingDefaults,
    max_tokens: Option<u32>,
) -> Result<(Conversation, Option<&'static str>), ApiError> {
    let mut history = History::default();
    content::system(fields, &mut history)?;
    let messages = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if messages.is_empty() {
        return Err(ApiError::param("messages", "`messages` is empty; send at least one message"));
    }
    for (i, message) in messages.into_iter().enumerate() {
        content::message(format!("messages[{i}]"), message, &mut history)?;
    }
    let ends = history.last_role().filter(|role| *role == "assistant").map(|_| "assistant");
    let tools = tools(fields)?;
    let (choice, one_call) = tool_choice(fields)?;
    let (tools, mut form) = tools.choose("tool_choice", choice)?;
    let (thinking, budget) = thinking(fields)?;
    form.thinking_budget = budget;
    let (effort, answer) = output_config(fields)?;
    form.answer = answer;
    let chat = Chat {
        messages: history.into_messages(),
        tools,
        add_generation_prompt: true,
        enable_thinking: Some(thinking),
        reasoning_effort: effort,
        kwargs: Map::new(),
    };
    Ok((Conversation { generate: generate(fields, defaults)?, chat, one_call, form, max_tokens }, ends))
}

fn generate(fields: &mut Fields, defaults: SamplingDefaults) -> Result<Generate, ApiError> {
    let mut generate = Generate::new(defaults);
    generate.model = fields.string("model")?;
    generate.stream = fields.boolean("stream")?.unwrap_or(false);
    sampling::core(fields, &mut generate.params)?;
    generate.stops = sampling::stops(fields, "stop_sequences", STOPS)?;
    Ok(generate)
}

fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let mut out = Tools::default();
    for (i, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut fields = Fields::new(format!("tools[{i}]"), tool)?;
        if let Some(kind) = fields.string("type")?.filter(|kind| kind != "custom") {
            let message = format!("a tool's type is custom: this server has no tool `{kind}` of its own");
            return Err(ApiError::param(fields.path("type"), message).with_code("unsupported_tool"));
        }
        out.add(fields.path("name"), Function::read(&mut fields, "input_schema")?)?;
        fields.finish(&[TOOL])?;
    }
    Ok(out)
}

/// Whether tools are to be called, and whether the model may make one call only.
fn tool_choice(fields: &mut Fields) -> Result<(Choice, bool), ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok((Choice::Auto, false)) };
    let path = choice.path("type");
    let one = choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    let wanted = match choice.required_string("type")?.as_str() {
        "auto" => Choice::Auto,
        "none" => Choice::Never,
        "any" => Choice::Any,
        "tool" => Choice::Named(choice.required_string("name")?),
        other => {
            let message = format!("`{path}` can't be `{other}`; it is auto, none, any or tool");
            return Err(ApiError::param(path, message).with_code("invalid_value"));
        }
    };
    choice.finish(&[])?;
    Ok((wanted, one))
}

/// Whether to think, and most tokens of it.
fn thinking(fields: &mut Fields) -> Result<(bool, Option<usize>), ApiError> {
    const TABLE: &[Field] = &[harmless("display", "thinking is sent as it is")];
    let Some(mut thinking) = fields.object("thinking")? else { return Ok((false, None)) };
    let path = thinking.path("type");
    let budget = thinking.integer("budget_tokens", 0..=i64::from(u32::MAX))?.map(|n| n as usize);
    let on = match thinking.required_string("type")?.as_str() {
        "enabled" | "adaptive" => true,
        "disabled" => false,
        other => {
            let message = format!("`{path}` can't be `{other}`; it is enabled, adaptive or disabled");
            return Err(ApiError::param(path, message).with_code("invalid_value"));
        }
    };
    thinking.finish(&[TABLE])?;
    Ok((on, budget))
}

/// How much to think, in the words of templates, and what the text must be.
fn output_config(fields: &mut Fields) -> Result<(Option<String>, Option<AnswerForm>), ApiError> {
    let Some(mut config) = fields.object("output_config")? else { return Ok((None, None)) };
    let (_, effort) = chat::request::effort(&mut config, "effort")?;
    let mut answer = None;
    if let Some(mut format) = config.object("format")? {
        let path = format.path("type");
        let kind = format.required_string("type")?;
        if kind != "json_schema" {
            let message = format!("`{path}` can't be `{kind}`; it is json_schema");
            return Err(ApiError::param(path, message).with_code("invalid_value"));
        }
        answer = Some(schema_of(&mut format)?);
        format.finish(&[])?;
    }
    config.finish(&[])?;
    Ok((effort, answer))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

    use serde_json::json;

    use super::*;
    use crate::api::fields::assert_read_or_refused;

    fn parse_with(extra: Value) -> Result<Conversation, ApiError> {
        let mut body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse(body, SamplingDefaults::FAMILY)
    }

    fn tool() -> Value {
        json!({"name": "f", "description": "d", "input_schema": {"type": "object"}})
    }

    #[test]
    fn values_arrive() {
        let asked = parse_with(json!({
            "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}],
            "tools": [tool()], "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "max"},
            "stop_sequences": ["x"], "temperature": 0.5, "top_p": 0.9, "top_k": 7, "metadata": {"user_id": "u"},
        }))
        .unwrap();
        let parameters = json!({"type": "object"});
        let function = json!({"name": "f", "description": "d", "parameters": parameters});
        assert_eq!(asked.chat.tools, Some(vec![json!({"type": "function", "function": function})]));
        assert_eq!(asked.chat.messages[0], json!({"role": "system", "content": "a\n\nb"}));
        let thinking = (asked.chat.enable_thinking, asked.chat.reasoning_effort.as_deref());
        assert_eq!(thinking, (Some(true), Some("xhigh")));
        assert_eq!((asked.max_tokens, asked.one_call), (Some(9), true));
        assert_eq!(asked.generate.stops, ["x"]);
        let params = asked.generate.params;
        assert_eq!((params.temperature, params.top_p, params.top_k), (0.5, 0.9, 7));
    }

    #[test]
    fn it_does_not_think_unless_asked() {
        assert_eq!(parse_with(json!({})).unwrap().chat.enable_thinking, Some(false));
    }

    #[test]
    fn every_field_is_read_or_refused_by_name() {
        assert_read_or_refused(FIELDS, &json!([{"no": "thing"}]), parse_with);
    }

    #[test]
    fn errors_name_the_field() {
        for (extra, param) in [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"messages": []}), "messages"),
            (
                json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so"}]}),
                "messages",
            ),
            (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type"),
            (json!({"tools": [{"name": "f", "input_schema": 3}]}), "tools[0].input_schema"),
            (json!({"tools": [tool(), tool()]}), "tools[1].name"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
            (json!({"tools": [tool()], "tool_choice": {"type": "most"}}), "tool_choice.type"),
            (json!({"thinking": {"type": "deep"}}), "thinking.type"),
            (json!({"output_config": {"effort": "huge"}}), "output_config.effort"),
            (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
            (json!({"tools": [tool()], "tool_choice": {"type": "tool", "name": "g"}}), "tool_choice"),
            (json!({"stop_sequences": [""]}), "stop_sequences[0]"),
            (json!({"mcp_servers": [1]}), "mcp_servers"),
            (json!({"max_completion_tokens": 3}), "max_completion_tokens"),
        ] {
            let error = parse_with(extra.clone()).unwrap_err();
            assert_eq!(error.param_name(), Some(param), "{extra}: {}", error.message());
        }
    }
}
