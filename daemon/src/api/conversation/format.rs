//! The forms of an answer's text that requests ask for.

use openjet_engine::constraint::Answer;
use serde_json::{Value, json};

use super::hold::AnswerForm;
use crate::api::fields::{Field, Fields, done, harmless, kind};
use crate::http::error::ApiError;

/// The fields of a form with a JSON schema.
pub const SCHEMA: &[Field] = &[
    done("schema", "the JSON schema"),
    done("strict", "false: what the schema says and this server can't hold to is left out"),
    harmless("name", "the model is not told of it"),
    harmless("description", "the model is not told of it"),
];

/// Reads `response_format`: text, `json_object`, `json_schema`, and of our own `regex` and `grammar`.
///
/// # Errors
/// 400 names the field.
pub fn response_format(fields: &mut Fields) -> Result<Option<AnswerForm>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let own = format.own_path().to_owned();
    let answer = match format.required_string("type")?.as_str() {
        "json_schema" => {
            let mut schema = format.object("json_schema")?.ok_or_else(|| format.missing("json_schema"))?;
            let read = schema_of(&mut schema)?;
            schema.finish(&[SCHEMA])?;
            Some(read)
        }
        other => simple(other, &mut format)?.map(|answer| (answer, own)),
    };
    format.finish(&[])?;
    Ok(answer)
}

/// Reads `text.format` of the Responses API, where the schema stands beside its type.
///
/// # Errors
/// 400 names the field.
pub fn text_format(text: &mut Fields) -> Result<Option<AnswerForm>, ApiError> {
    let Some(mut format) = text.object("format")? else { return Ok(None) };
    let own = format.own_path().to_owned();
    let answer = match format.required_string("type")?.as_str() {
        "json_schema" => Some(schema_of(&mut format)?),
        other => simple(other, &mut format)?.map(|answer| (answer, own)),
    };
    format.finish(&[SCHEMA])?;
    Ok(answer)
}

/// Takes `schema` and `strict`; returns the form and the path of the schema.
///
/// # Errors
/// 400 names the field.
pub fn schema_of(fields: &mut Fields) -> Result<AnswerForm, ApiError> {
    let path = fields.path("schema");
    let lenient = fields.boolean("strict")? == Some(false);
    match fields.take("schema") {
        None => Err(fields.missing("schema")),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok((Answer::Json { schema, lenient }, path)),
        Some(other) => {
            let message = format!("`{path}` must be a JSON schema, not {}", kind(&other));
            Err(ApiError::param(path, message).with_code("invalid_type"))
        }
    }
}

fn simple(kind: &str, format: &mut Fields) -> Result<Option<Answer>, ApiError> {
    Ok(match kind {
        "text" => None,
        "json_object" => Some(Answer::Json { schema: json!({ "type": "object" }), lenient: false }),
        "regex" => Some(Answer::Regex(format.required_string("regex")?)),
        "grammar" => Some(Answer::Lark(format.required_string("grammar")?)),
        other => {
            let path = format.path("type");
            let message =
                format!("`{other}` is no form of an answer; it is text, json_object, json_schema, regex or grammar");
            return Err(ApiError::param(path, message).with_code("invalid_value"));
        }
    })
}
