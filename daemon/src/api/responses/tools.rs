//! Tools of the Responses API: functions, and custom tools, which the model knows as functions of one text.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::custom::INPUT;
use crate::api::conversation::tools::{Choice, Function, Tools};
use crate::api::fields::{Field, Fields, done, harmless};
use crate::http::error::ApiError;

pub(in crate::api) const FUNCTION: &[Field] = &[
    done("name", "the function's name"),
    done("description", "for the model"),
    done("parameters", "JSON schema of the arguments"),
    done("strict", "calls are held to the schema while they are written"),
    harmless("defer_loading", "every tool is shown to the model at once"),
];

pub(in crate::api) const CUSTOM: &[Field] = &[
    done("name", "the tool's name"),
    done("description", "for the model"),
    done("format", "text, or a grammar that is shown to the model"),
    harmless("defer_loading", "every tool is shown to the model at once"),
];

/// The tools, and which of them take a text. Tools that other servers run are skipped: clients offer them unasked.
///
/// # Errors
/// 400 names the tool and field.
pub(super) fn read(tools: Vec<Value>) -> Result<(Tools, HashSet<String>), ApiError> {
    let (mut out, mut custom) = (Tools::default(), HashSet::new());
    for (i, tool) in tools.into_iter().enumerate() {
        let mut fields = Fields::new(format!("tools[{i}]"), tool)?;
        match fields.required_string("type")?.as_str() {
            "function" => {
                out.add(fields.path("name"), Function::read(&mut fields, "parameters")?)?;
                fields.finish(&[FUNCTION])?;
            }
            "custom" => {
                let function = custom_function(&mut fields)?;
                custom.insert(function.name.clone());
                out.add(fields.path("name"), function)?;
                fields.finish(&[CUSTOM])?;
            }
            _ => {}
        }
    }
    Ok((out, custom))
}

fn custom_function(fields: &mut Fields) -> Result<Function, ApiError> {
    let name = fields.required_string("name")?;
    let mut description = fields.string("description")?.unwrap_or_default();
    if let Some(mut format) = fields.object("format")? {
        match format.required_string("type")?.as_str() {
            "text" => {}
            "grammar" => {
                let syntax = format.required_string("syntax")?;
                let definition = format.required_string("definition")?;
                description += &format!("\n\nThe input follows this {syntax} grammar:\n{definition}");
            }
            other => {
                let message = format!("`{other}` is no format of a custom tool; it is text or grammar");
                return Err(ApiError::param(format.path("type"), message).with_code("invalid_value"));
            }
        }
        format.finish(&[])?;
    }
    let parameters = json!({ "type": "object", "properties": { INPUT: { "type": "string" } }, "required": [INPUT] });
    Ok(Function { name, description: Some(description), parameters: Some(parameters), strict: false })
}

/// Whether tools are to be called.
///
/// # Errors
/// 400 for a choice that is none.
pub(super) fn choice(fields: &mut Fields) -> Result<Choice, ApiError> {
    Choice::read(fields, "a tool", &["function", "custom"], |choice| choice.required_string("name"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn functions_and_custom_tools_are_taken_and_others_skipped() {
        let tools = json!([
            {"type": "function", "name": "f", "description": "d", "strict": true, "parameters": {"type": "object"}},
            {"type": "web_search", "external_web_access": false},
            {"type": "namespace", "name": "n", "tools": []},
            {"type": "custom", "name": "apply_patch", "description": "Edit.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        ]);
        let (tools, custom) = read(tools.as_array().unwrap().clone()).unwrap();
        let list = tools.choose("tool_choice", Choice::Auto).unwrap().0.unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list[0]["function"], json!({"name": "f", "description": "d", "parameters": {"type": "object"}}));
        assert_eq!(list[1]["function"]["name"], "apply_patch");
        assert!(list[1]["function"]["description"].as_str().unwrap().ends_with("lark grammar:\nstart: X"));
        assert_eq!(custom, HashSet::from(["apply_patch".to_owned()]));
    }
}
