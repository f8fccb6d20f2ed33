//! Reads a completion request.

use serde_json::Value;

use crate::api::conversation::format;
use crate::api::conversation::hold::AnswerForm;
use crate::api::fields::{Field, Fields, done, harmless, integer, wrong_type};
use crate::api::sampling::{self, Generate, SamplingDefaults};
use crate::http::error::ApiError;

/// The fields of `/v1/completions` besides [`sampling::FIELDS`].
pub const FIELDS: &[Field] = &[
    done("prompt", "a string, a list of strings, a list of token ids, or a list of such lists"),
    done("suffix", "what comes after the gap that is to be filled"),
    done("max_tokens", "16 without it"),
    done("echo", "the prompt's text first"),
    done("logprobs", "0 to 20 alternatives"),
    done("response_format", "the form of the text, as in /v1/chat/completions"),
    harmless("user", "there is one user"),
];

/// Most prompts in one request.
const PROMPTS: usize = 64;

/// Tokens of an answer to a request that says nothing, as the `OpenAI` API has it.
const DEFAULT_TOKENS: u32 = 16;

/// Most alternatives with log probabilities.
const LOGPROBS: i64 = 20;

/// A completion request.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// What all endpoints share.
    pub generate: Generate,
    /// One answer each.
    pub prompts: Vec<Prompt>,
    /// Fill in before this.
    pub suffix: Option<String>,
    /// Most tokens of each answer.
    pub max_tokens: u32,
    /// The prompt's text first.
    pub echo: bool,
    /// What the text must be.
    pub form: Option<AnswerForm>,
}

/// What is to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text, in which the spelling of a control token is that token.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// Reads a request; `vocab` is the vocabulary's size.
///
/// # Errors
/// 400 names the field.
pub fn parse(body: Value, defaults: SamplingDefaults, vocab: usize) -> Result<CompletionRequest, ApiError> {
    let mut fields = Fields::new("", body)?;
    let prompts = prompts(fields.take("prompt").ok_or_else(|| fields.missing("prompt"))?, vocab)?;
    let mut generate = sampling::read(&mut fields, defaults, vocab)?;
    generate.params.logprobs = fields.integer("logprobs", 0..=LOGPROBS)?.map(|n| n as u8);
    let form = format::response_format(&mut fields)?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let suffix = fields.string("suffix")?;
    if echo && generate.params.logprobs.is_some() {
        let message = "log probabilities of the prompt are not computed, so `echo` and `logprobs` don't go together";
        return Err(ApiError::param("echo", message).with_code("unsupported_parameter"));
    }
    if suffix.is_some() && echo {
        return Err(ApiError::param("echo", "`echo` and `suffix` don't go together").with_code("unsupported_parameter"));
    }
    if suffix.is_some() && prompts.iter().any(|prompt| matches!(prompt, Prompt::Tokens(_))) {
        return Err(ApiError::param("suffix", "`suffix` needs a prompt of text, not of token ids"));
    }
    let max_tokens = fields.integer("max_tokens", 1..=i64::from(u32::MAX))?.map_or(DEFAULT_TOKENS, |n| n as u32);
    fields.finish(&[FIELDS, sampling::FIELDS])?;
    Ok(CompletionRequest { generate, prompts, suffix, max_tokens, echo, form })
}

fn prompts(value: Value, vocab: usize) -> Result<Vec<Prompt>, ApiError> {
    let items = match value {
        Value::String(text) => return Ok(vec![text_prompt("prompt".to_owned(), text)?]),
        Value::Array(items) => items,
        other => return Err(wrong_type("prompt", "a string or a list", &other)),
    };
    match items.first() {
        None => Err(ApiError::param("prompt", "`prompt` is an empty list; send at least one prompt or token")),
        Some(Value::Number(_)) => Ok(vec![token_prompt("prompt", &items, vocab)?]),
        Some(_) if items.len() > PROMPTS => Err(ApiError::param(
            "prompt",
            format!("`prompt` has {} prompts, but may have up to {PROMPTS}", items.len()),
        )),
        Some(_) => {
            let one = |(i, item): (usize, Value)| {
                let path = format!("prompt[{i}]");
                match item {
                    Value::String(text) => text_prompt(path, text),
                    Value::Array(ids) => token_prompt(&path, &ids, vocab),
                    other => Err(wrong_type(&path, "a string or a list of token ids", &other)),
                }
            };
            items.into_iter().enumerate().map(one).collect()
        }
    }
}

fn text_prompt(path: String, text: String) -> Result<Prompt, ApiError> {
    if text.is_empty() {
        let message = format!("`{path}` is empty; there must be at least one token to go on from");
        return Err(ApiError::param(path, message));
    }
    Ok(Prompt::Text(text))
}

fn token_prompt(path: &str, ids: &[Value], vocab: usize) -> Result<Prompt, ApiError> {
    if ids.is_empty() {
        return Err(ApiError::param(
            path,
            format!("`{path}` is empty; there must be at least one token to go on from"),
        ));
    }
    let one = |(i, id): (usize, &Value)| {
        let found = integer(id).and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocab);
        found.ok_or_else(|| {
            let path = format!("{path}[{i}]");
            ApiError::param(
                path.clone(),
                format!("`{path}` must be a token id, 0 to {}, not {id}", vocab.saturating_sub(1)),
            )
            .with_code("invalid_value")
        })
    };
    Ok(Prompt::Tokens(ids.iter().enumerate().map(one).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn parse_all(body: Value) -> Result<CompletionRequest, ApiError> {
        parse(body, SamplingDefaults::FAMILY, 100)
    }

    #[test]
    fn prompts_of_every_form() {
        let text = |t: &str| Prompt::Text(t.to_owned());
        for (prompt, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2, 3]), vec![Prompt::Tokens(vec![1, 2, 3])]),
            (json!([[1, 2], [3]]), vec![Prompt::Tokens(vec![1, 2]), Prompt::Tokens(vec![3])]),
        ] {
            assert_eq!(parse_all(json!({"prompt": prompt})).unwrap().prompts, expected);
        }
    }

    #[test]
    fn values_arrive() {
        let body = json!({"prompt": "a", "suffix": "b", "max_tokens": 3, "logprobs": 2, "user": "u"});
        let request = parse_all(body).unwrap();
        assert_eq!((request.suffix.as_deref(), request.max_tokens, request.echo), (Some("b"), 3, false));
        assert_eq!(request.generate.params.logprobs, Some(2));
        assert_eq!(parse_all(json!({"prompt": "a"})).unwrap().max_tokens, 16);
    }

    /// llama.cpp issue 12178 and others: token -1 and the like ended the process.
    #[test]
    fn llama_cpp_12178_errors_name_the_field() {
        let many: Vec<_> = (0..65).map(|i| i.to_string()).collect();
        for (body, param) in [
            (json!({}), "prompt"),
            (json!({"prompt": ""}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": {"text": "a"}}), "prompt"),
            (json!({"prompt": [-1]}), "prompt[0]"),
            (json!({"prompt": [1, 100]}), "prompt[1]"),
            (json!({"prompt": [1, 1.5]}), "prompt[1]"),
            (json!({"prompt": [1, "a"]}), "prompt[1]"),
            (json!({"prompt": [4_294_967_296_u64]}), "prompt[0]"),
            (json!({"prompt": ["a", 1]}), "prompt[1]"),
            (json!({"prompt": [[1], []]}), "prompt[1]"),
            (json!({"prompt": ["a", ""]}), "prompt[1]"),
            (json!({"prompt": many}), "prompt"),
            (json!({"prompt": "a", "max_tokens": -1}), "max_tokens"),
            (json!({"prompt": "a", "logprobs": 21}), "logprobs"),
            (json!({"prompt": "a", "logprobs": 1, "echo": true}), "echo"),
            (json!({"prompt": "a", "suffix": "b", "echo": true}), "echo"),
            (json!({"prompt": [1], "suffix": "b"}), "suffix"),
            (json!({"prompt": "a", "grammar": "%llguidance"}), "grammar"),
            (json!({"prompt": "a", "messages": []}), "messages"),
            (json!({"prompt": "a", "response_format": {"type": "yaml"}}), "response_format.type"),
        ] {
            let error = parse_all(body.clone()).unwrap_err();
            assert_eq!(error.param_name(), Some(param), "{body}: {}", error.message());
        }
    }
}
