//! Tools as every API declares them, in the form that chat templates read.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::hold::{Force, Form};
use crate::api::fields::{Fields, kind, wrong_type};
use crate::http::error::ApiError;

/// The tools of a request, in the client's order.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    list: Vec<Value>,
    names: HashSet<String>,
    strict: bool,
}

/// Whether the model is to call tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is not to know of them.
    Never,
    /// If it wants to.
    Auto,
    /// At least one.
    Any,
    /// The tool of this name.
    Named(String),
}

impl Choice {
    /// Reads `tool_choice` as `OpenAI`'s APIs have it: none, auto, required, or an object of one of the types `kinds` that
    /// `name` finds the tool's name in. `what` says in errors what such an object stands for.
    ///
    /// # Errors
    /// 400 for a choice that is none.
    pub fn read(
        fields: &mut Fields,
        what: &str,
        kinds: &[&str],
        name: impl FnOnce(&mut Fields) -> Result<String, ApiError>,
    ) -> Result<Self, ApiError> {
        match fields.take("tool_choice") {
            None => Ok(Self::Auto),
            Some(Value::String(choice)) => match choice.as_str() {
                "none" => Ok(Self::Never),
                "auto" => Ok(Self::Auto),
                "required" => Ok(Self::Any),
                other => {
                    let message = format!("`tool_choice` can't be `{other}`; it is none, auto, required or {what}");
                    Err(ApiError::param("tool_choice", message).with_code("invalid_value"))
                }
            },
            Some(choice @ Value::Object(_)) => {
                let mut choice = Fields::new("tool_choice", choice)?;
                let kind = choice.required_string("type")?;
                if !kinds.contains(&kind.as_str()) {
                    let message = format!("`tool_choice.type` can't be `{kind}`; it is {}", kinds.join(" or "));
                    return Err(ApiError::param("tool_choice.type", message).with_code("unsupported_parameter"));
                }
                let name = name(&mut choice)?;
                choice.finish(&[])?;
                Ok(Self::Named(name))
            }
            Some(other) => Err(wrong_type("tool_choice", "a string or an object", &other)),
        }
    }
}

/// What declares a function.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// For the model.
    pub description: Option<String>,
    /// JSON schema of the arguments.
    pub parameters: Option<Value>,
    /// Calls are to be held to the schema.
    pub strict: bool,
}

impl Function {
    /// Takes `name`, `description`, `strict` and the field `schema` out of `fields`.
    ///
    /// # Errors
    /// 400 names the field.
    pub fn read(fields: &mut Fields, schema: &str) -> Result<Self, ApiError> {
        let name = fields.required_string("name")?;
        let description = fields.string("description")?;
        let parameters = fields.take(schema);
        if let Some(other) = parameters.as_ref().filter(|parameters| !parameters.is_object()) {
            let path = fields.path(schema);
            let message = format!("`{path}` must be a JSON schema, not {}", kind(other));
            return Err(ApiError::param(path, message).with_code("invalid_type"));
        }
        let strict = fields.boolean("strict")?.unwrap_or(false);
        Ok(Self { name, description, parameters, strict })
    }
}

impl Tools {
    /// Adds a function, whose name stands at `path` in the request.
    ///
    /// # Errors
    /// 400 for a name that can't be used or is taken.
    pub fn add(&mut self, path: String, function: Function) -> Result<(), ApiError> {
        let Function { name, description, parameters, strict } = function;
        self.strict |= strict;
        let usable = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
        if name.is_empty() || name.len() > 256 || !name.chars().all(usable) {
            let message = format!("`{path}` must be letters, digits and _-.:/ only, up to 256 of them");
            return Err(ApiError::param(path, message).with_code("invalid_value"));
        }
        if !self.names.insert(name.clone()) {
            let message = format!("there are two tools named `{name}`");
            return Err(ApiError::param(path, message).with_code("invalid_value"));
        }
        let mut out = Map::new();
        out.insert("name".to_owned(), Value::String(name));
        if let Some(description) = description {
            out.insert("description".to_owned(), Value::String(description));
        }
        if let Some(parameters) = parameters {
            out.insert("parameters".to_owned(), parameters);
        }
        self.list.push(json!({ "type": "function", "function": out }));
        Ok(())
    }

    /// Whether there are no tools.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The tools that the model is told of, and what is asked of its calls. `path` is that of the choice.
    ///
    /// # Errors
    /// 400 for a call that is to be made of a tool that there is not.
    pub fn choose(self, path: &str, choice: Choice) -> Result<(Option<Vec<Value>>, Form), ApiError> {
        let force = match choice {
            Choice::Never => return Ok((None, Form::default())),
            Choice::Auto => Force::No,
            Choice::Any if self.is_empty() => {
                let message = format!("`{path}` asks for a call, but there are no tools");
                return Err(ApiError::param(path, message).with_code("invalid_value"));
            }
            Choice::Any => Force::Any,
            Choice::Named(name) if !self.names.contains(&name) => {
                let message = format!("`{path}` asks for a call of `{name}`, but there is no such tool");
                return Err(ApiError::param(path, message).with_code("invalid_value"));
            }
            Choice::Named(name) => Force::Named(name),
        };
        let form = Form { force, strict_calls: self.strict, ..Form::default() };
        Ok((Some(self.list).filter(|list| !list.is_empty()), form))
    }
}
