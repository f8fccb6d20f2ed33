//! Tools of the Responses API: functions, custom tools, which the model knows as functions of one text, and namespaces of
//! both, whose name the model knows as the beginning of theirs.

use std::collections::{HashMap, HashSet};

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

pub(in crate::api) const NAMESPACE: &[Field] = &[
    done("name", "what the names of its tools begin with for the model"),
    done("tools", "function and custom tools; tools of other kinds are skipped"),
    harmless("description", "the tools have their own"),
];

/// What the client knows of tools besides what the model does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    custom: HashSet<String>,
    /// The namespace and the name within it, by the model's name.
    namespaces: HashMap<String, (String, String)>,
}

impl Kinds {
    /// Whether the tool that the model knows as `name` takes a text.
    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.custom.contains(name)
    }

    /// The client's name of the tool that the model knows as `name`, and its namespace.
    pub(super) fn client_name<'a>(&'a self, name: &'a str) -> (&'a str, Option<&'a str>) {
        self.namespaces.get(name).map_or((name, None), |(space, name)| (name, Some(space)))
    }
}

/// Takes `name` and `namespace`; returns the name that the model knows.
///
/// # Errors
/// 400 names the field.
pub(super) fn model_name(fields: &mut Fields) -> Result<String, ApiError> {
    let name = fields.required_string("name")?;
    Ok(fields.string("namespace")?.map_or_else(|| name.clone(), |space| within(&space, &name)))
}

fn within(space: &str, name: &str) -> String {
    format!("{space}__{name}")
}

/// The tools, and what the client knows of them. Tools that other servers run are skipped: clients offer them unasked.
///
/// # Errors
/// 400 names the tool and field.
pub(super) fn read(tools: Vec<Value>) -> Result<(Tools, Kinds), ApiError> {
    let (mut out, mut kinds) = (Tools::default(), Kinds::default());
    for (i, tool) in tools.into_iter().enumerate() {
        one(Fields::new(format!("tools[{i}]"), tool)?, None, &mut out, &mut kinds)?;
    }
    Ok((out, kinds))
}

/// Reads one tool, or the tools of one namespace.
fn one(mut fields: Fields, space: Option<&str>, out: &mut Tools, kinds: &mut Kinds) -> Result<(), ApiError> {
    let kind = fields.required_string("type")?;
    let (mut function, table) = match (kind.as_str(), space) {
        ("function", _) => (Function::read(&mut fields, "parameters")?, FUNCTION),
        ("custom", _) => (custom_function(&mut fields)?, CUSTOM),
        ("namespace", None) => {
            let space = fields.required_string("name")?;
            let path = fields.path("tools");
            for (i, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
                one(Fields::new(format!("{path}[{i}]"), tool)?, Some(&space), out, kinds)?;
            }
            return fields.finish(&[NAMESPACE]);
        }
        _ => return Ok(()),
    };
    if let Some(space) = space {
        let name = within(space, &function.name);
        kinds.namespaces.insert(name.clone(), (space.to_owned(), std::mem::replace(&mut function.name, name)));
    }
    if kind == "custom" {
        kinds.custom.insert(function.name.clone());
    }
    out.add(fields.path("name"), function)?;
    fields.finish(&[table])
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
    Choice::read(fields, "a tool", &["function", "custom"], model_name)
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
            {"type": "namespace", "name": "mcp", "description": "d", "tools": [
                {"type": "function", "name": "f"}, {"type": "tool_search"}, {"type": "namespace", "name": "x"}]},
            {"type": "custom", "name": "apply_patch", "description": "Edit.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        ]);
        let (tools, kinds) = read(tools.as_array().unwrap().clone()).unwrap();
        let list = tools.choose("tool_choice", Choice::Auto).unwrap().0.unwrap();
        assert_eq!(list.len(), 3);
        assert_eq!(list[0]["function"], json!({"name": "f", "description": "d", "parameters": {"type": "object"}}));
        assert_eq!(list[1]["function"], json!({"name": "mcp__f"}));
        assert_eq!(list[2]["function"]["name"], "apply_patch");
        assert!(list[2]["function"]["description"].as_str().unwrap().ends_with("lark grammar:\nstart: X"));
        assert_eq!(["f", "mcp__f", "apply_patch"].map(|name| kinds.is_custom(name)), [false, false, true]);
        assert_eq!(kinds.client_name("mcp__f"), ("f", Some("mcp")));
        assert_eq!(kinds.client_name("f"), ("f", None));
    }
}
