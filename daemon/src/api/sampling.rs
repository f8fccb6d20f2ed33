//! The request fields that say how tokens are chosen, the same in every API.

use openjet_engine::sampling::SamplingParams;
use serde_json::Value;

use super::fields::{Field, Fields, done, integer, kind, refused, wrong_type};
use crate::http::error::ApiError;

/// Most stop strings in the `OpenAI` API.
const STOPS: usize = 4;

/// Longest stop string, in bytes.
const STOP_BYTES: usize = 1024;

/// Most alternatives with log probabilities.
pub const TOP_LOGPROBS: i64 = 20;

/// The fields of every endpoint that generates.
pub const FIELDS: &[Field] = &[
    done("model", "any name is taken and echoed, unless the setting strict_model is on"),
    done("stream", "server-sent events"),
    done("stream_options", "include_usage"),
    done("temperature", "0 to 2; 0 takes the most likely token"),
    done("top_p", "0 to 1"),
    done("top_k", "0 or -1 for all"),
    done("min_p", "0 to 1"),
    done("repetition_penalty", "0.01 to 10; 1 for none"),
    done("presence_penalty", "-2 to 2"),
    done("frequency_penalty", "-2 to 2"),
    done("logit_bias", "token id to -100 .. 100"),
    done("seed", "any whole number; without it one is drawn"),
    done("stop", "up to 4 strings"),
    done("n", "only 1"),
    done("ignore_eos", "go on past the model's end tokens"),
    done("draft", "deepest draft for this request; 0 for none"),
    done("return_token_ids", "adds prompt_token_ids and token_ids"),
    refused("best_of", "one text is made for each prompt"),
];

/// Sampling values for requests that don't give their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// Softmax temperature.
    pub temperature: f32,
    /// Most likely tokens that are kept; 0 for all.
    pub top_k: u32,
    /// Probability that is kept.
    pub top_p: f32,
}

impl SamplingDefaults {
    /// What the makers of the model family publish for it.
    pub const FAMILY: Self = Self { temperature: 1.0, top_k: 20, top_p: 0.95 };
}

/// What [`FIELDS`] say.
#[derive(Clone, Debug)]
pub struct Generate {
    /// The name that the client uses for the model.
    pub model: Option<String>,
    /// Send server-sent events.
    pub stream: bool,
    /// Send a last chunk with the usage.
    pub include_usage: bool,
    /// How tokens are chosen.
    pub params: SamplingParams,
    /// Strings that end the text.
    pub stops: Vec<String>,
    /// Go on past the model's end tokens.
    pub ignore_end: bool,
    /// Deepest draft.
    pub draft: Option<usize>,
    /// Send token ids.
    pub return_token_ids: bool,
}

impl Generate {
    /// What a request gets that says nothing.
    #[must_use]
    pub fn new(defaults: SamplingDefaults) -> Self {
        let params = SamplingParams {
            temperature: defaults.temperature,
            top_k: defaults.top_k,
            top_p: defaults.top_p,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: random_u64(),
            logprobs: None,
        };
        Self {
            model: None,
            stream: false,
            include_usage: false,
            params,
            stops: Vec::new(),
            ignore_end: false,
            draft: None,
            return_token_ids: false,
        }
    }
}

/// Takes [`FIELDS`] out of a request. `logprobs` is the API's own and stays unset.
///
/// # Errors
/// 400 names the field.
pub fn read(fields: &mut Fields, defaults: SamplingDefaults, vocab: usize) -> Result<Generate, ApiError> {
    let mut generate = Generate::new(defaults);
    generate.stream = fields.boolean("stream")?.unwrap_or(false);
    generate.include_usage = stream_options(fields, generate.stream)?;
    fields.integer("n", 1..=1)?;
    generate.model = fields.string("model")?;
    let params = &mut generate.params;
    core(fields, params)?;
    params.min_p = fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0) as f32;
    params.repetition_penalty = fields.number("repetition_penalty", 0.01..=10.0)?.unwrap_or(1.0) as f32;
    params.presence_penalty = fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32;
    params.frequency_penalty = fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32;
    params.logit_bias = logit_bias(fields, vocab)?;
    params.seed = seed(fields)?.unwrap_or(params.seed);
    generate.stops = stops(fields, "stop", STOPS)?;
    generate.ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
    generate.draft = fields.integer("draft", 0..=16)?.map(|k| k as usize);
    generate.return_token_ids = fields.boolean("return_token_ids")?.unwrap_or(false);
    Ok(generate)
}

/// Takes `temperature`, `top_p` and `top_k`, which every API has.
///
/// # Errors
/// 400 names the field.
pub fn core(fields: &mut Fields, params: &mut SamplingParams) -> Result<(), ApiError> {
    if let Some(temperature) = fields.number("temperature", 0.0..=2.0)? {
        params.temperature = temperature as f32;
    }
    if let Some(top_p) = fields.number("top_p", 0.0..=1.0)? {
        params.top_p = top_p as f32;
    }
    if let Some(top_k) = fields.integer("top_k", -1..=i64::from(i32::MAX))? {
        params.top_k = top_k.max(0) as u32;
    }
    Ok(())
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    const TABLE: &[Field] =
        &[super::fields::harmless("include_obfuscation", "padding against eavesdroppers, never sent")];
    let path = fields.path("stream_options");
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::param(path, "`stream_options` is for streams; set `stream` to true or leave it out"));
    }
    let include = options.boolean("include_usage")?.unwrap_or(false);
    options.finish(&[TABLE])?;
    Ok(include)
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    let seed = value.as_u64().or_else(|| integer(&value).map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| wrong_type(&fields.path("seed"), "a whole number of 64 bits", &value))
}

/// A number that nobody can guess.
#[must_use]
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    // The kernel's generator is always there after boot; a clock would do where it is not.
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_nanos() as u64),
    }
}

/// Takes the strings that end the text.
///
/// # Errors
/// 400 names the field.
pub fn stops(fields: &mut Fields, name: &str, most: usize) -> Result<Vec<String>, ApiError> {
    let path = fields.path(name);
    let items = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(item @ Value::String(_)) => vec![item],
        Some(other) => return Err(wrong_type(&path, "a string or a list of strings", &other)),
    };
    if items.len() > most {
        let message = format!("`{path}` has {} strings, but may have up to {most}", items.len());
        return Err(ApiError::param(path, message));
    }
    let one = |(i, item): (usize, Value)| {
        let path = format!("{path}[{i}]");
        match item {
            Value::String(text) if text.is_empty() => Err(ApiError::param(path, "a stop string can't be empty")),
            Value::String(text) if text.len() > STOP_BYTES => {
                Err(ApiError::param(path, format!("a stop string can't be longer than {STOP_BYTES} bytes")))
            }
            Value::String(text) => Ok(text),
            other => Err(wrong_type(&path, "a string", &other)),
        }
    };
    items.into_iter().enumerate().map(one).collect()
}

fn logit_bias(fields: &mut Fields, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(bias) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let path = bias.own_path().to_owned();
    let one = |(name, value): (String, Value)| {
        let path = format!("{path}.{name}");
        let token = name.parse::<u32>().ok().filter(|&token| (token as usize) < vocab).ok_or_else(|| {
            ApiError::param(path.clone(), format!("`{name}` is no token id; they are 0 to {}", vocab.saturating_sub(1)))
        })?;
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)).ok_or_else(|| {
            ApiError::param(path.clone(), format!("`{path}` must be a number from -100 to 100, not {}", kind(&value)))
        })?;
        Ok((token, bias as f32))
    };
    bias.into_map().into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn read_all(value: Value) -> Result<Generate, ApiError> {
        let mut fields = Fields::new("", value)?;
        let read = read(&mut fields, SamplingDefaults::FAMILY, 100)?;
        fields.finish(&[FIELDS])?;
        Ok(read)
    }

    #[test]
    fn values_arrive() {
        let read = read_all(json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "temperature": 0.5, "top_p": 0.9,
            "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": -1,
            "logit_bias": {"7": -100, "8": 2.5}, "seed": -1, "stop": "x", "n": 1, "ignore_eos": true, "draft": 2,
            "return_token_ids": true
        }))
        .unwrap();
        let expected = SamplingParams {
            temperature: 0.5,
            top_p: 0.9,
            top_k: 0,
            min_p: 0.1,
            repetition_penalty: 1.1,
            presence_penalty: 1.0,
            frequency_penalty: -1.0,
            logit_bias: vec![(7, -100.0), (8, 2.5)],
            seed: u64::MAX,
            logprobs: None,
        };
        assert_eq!(read.params, expected);
        assert_eq!((read.stops, read.draft, read.model), (vec!["x".to_owned()], Some(2), Some("m".to_owned())));
        assert!(read.stream && read.include_usage && read.ignore_end && read.return_token_ids);
    }

    #[test]
    fn defaults_are_the_familys_and_the_seed_is_drawn() {
        let (a, b) = (read_all(json!({})).unwrap().params, read_all(json!({"temperature": null})).unwrap().params);
        assert_eq!((a.temperature, a.top_k, a.top_p), (1.0, 20, 0.95));
        assert_ne!(a.seed, b.seed);
    }

    #[test]
    fn every_field_is_checked_and_named() {
        for (body, param) in [
            (json!({"model": 3}), "model"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"stream": true, "stream_options": {"other": 1}}), "stream_options.other"),
            (json!({"temperature": 2.1}), "temperature"),
            (json!({"temperature": "1"}), "temperature"),
            (json!({"top_p": -0.1}), "top_p"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"top_k": 1.5}), "top_k"),
            (json!({"min_p": 1.01}), "min_p"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
            (json!({"presence_penalty": 3}), "presence_penalty"),
            (json!({"frequency_penalty": -2.5}), "frequency_penalty"),
            (json!({"logit_bias": []}), "logit_bias"),
            (json!({"logit_bias": {"-1": 1}}), "logit_bias.-1"),
            (json!({"logit_bias": {"100": 1}}), "logit_bias.100"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"seed": "x"}), "seed"),
            (json!({"stop": 3}), "stop"),
            (json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
            (json!({"stop": ["a", ""]}), "stop[1]"),
            (json!({"n": 2}), "n"),
            (json!({"best_of": 2}), "best_of"),
            (json!({"ignore_eos": 1}), "ignore_eos"),
            (json!({"draft": 17}), "draft"),
            (json!({"return_token_ids": "x"}), "return_token_ids"),
            (json!({"temprature": 1}), "temprature"),
        ] {
            let error = read_all(body.clone()).unwrap_err();
            assert_eq!(error.param_name(), Some(param), "{body}: {}", error.message());
        }
    }
}
