//! Values of a tool call's parameters: text by nature, JSON by the tool's schema.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Json;

/// The types of each tool's parameters. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ToolSchemas {
    tools: Arc<HashMap<String, HashMap<String, Conversion>>>,
}

impl ToolSchemas {
    /// Reads the tools of a request, in the API's form: an array of objects with a `function` that has a `name` and
    /// `parameters`, a JSON schema. What is not understood leaves values as text.
    #[must_use]
    pub fn new(tools: &[Json]) -> Self {
        let read = |tool: &Json| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            let schema = function.get("parameters").or_else(|| function.get("input_schema"));
            let properties = schema.and_then(|s| s.get("properties")).and_then(Json::as_object);
            let conversions =
                properties.into_iter().flatten().map(|(key, value)| (key.clone(), conversion(value, schema)));
            Some((name, conversions.collect()))
        };
        Self { tools: Arc::new(tools.iter().filter_map(read).collect()) }
    }

    /// How the values of a parameter are read: as text where the tool or the parameter is unknown.
    pub(super) fn conversion(&self, tool: &str, parameter: &str) -> Conversion {
        self.tools.get(tool).and_then(|parameters| parameters.get(parameter)).copied().unwrap_or(Conversion::Text)
    }
}

/// How a value becomes JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conversion {
    /// A string, whatever it says.
    Text,
    /// JSON of one of these types; a string if it is none.
    Json(Types),
}

/// The JSON types that a schema allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Types {
    string: bool,
    number: bool,
    boolean: bool,
    null: bool,
    object: bool,
    array: bool,
}

impl Types {
    const ANY: Self = Self { string: true, number: true, boolean: true, null: true, object: true, array: true };

    /// Whether every value is allowed.
    pub(crate) fn is_any(self) -> bool {
        self == Self::ANY
    }

    /// Whether strings are allowed.
    pub(crate) fn has_string(self) -> bool {
        self.string
    }

    /// Whether objects or arrays are allowed.
    pub(crate) fn has_container(self) -> bool {
        self.object || self.array
    }

    fn or(self, other: Self) -> Self {
        Self {
            string: self.string || other.string,
            number: self.number || other.number,
            boolean: self.boolean || other.boolean,
            null: self.null || other.null,
            object: self.object || other.object,
            array: self.array || other.array,
        }
    }

    fn named(name: &str) -> Self {
        let mut types = Self::default();
        match name {
            "string" => types.string = true,
            "integer" | "number" => types.number = true,
            "boolean" => types.boolean = true,
            "null" => types.null = true,
            "object" => types.object = true,
            "array" => types.array = true,
            _ => return Self::ANY,
        }
        types
    }

    fn of(value: &Json) -> Self {
        Self::named(match value {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(_) => "number",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        })
    }

    fn allow(self, value: &Json) -> bool {
        self.or(Self::of(value)) == self
    }
}

/// How a value of this schema becomes JSON; `root` is the document that its references point into.
pub(crate) fn conversion(schema: &Json, root: Option<&Json>) -> Conversion {
    let types = types(schema, root, 0);
    let text = Types { string: true, ..Types::default() };
    if types == text { Conversion::Text } else { Conversion::Json(types) }
}

/// The types that a schema allows: by `type`, `enum`, `const`, alternatives, or a reference within the same document.
fn types(schema: &Json, root: Option<&Json>, depth: usize) -> Types {
    if depth > 8 {
        return Types::ANY;
    }
    let union =
        |schemas: &Vec<Json>, read: &dyn Fn(&Json) -> Types| schemas.iter().map(read).fold(Types::default(), Types::or);
    match schema.get("type") {
        Some(Json::String(name)) => return Types::named(name),
        Some(Json::Array(names)) => return union(names, &|name| name.as_str().map_or(Types::ANY, Types::named)),
        _ => {}
    }
    if let Some(Json::Array(values)) = schema.get("enum") {
        return union(values, &Types::of);
    }
    if let Some(value) = schema.get("const") {
        return Types::of(value);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Json::Array(schemas)) = schema.get(key) {
            return union(schemas, &|s| types(s, root, depth + 1));
        }
    }
    let reference = schema.get("$ref").and_then(Json::as_str).and_then(|r| r.strip_prefix('#'));
    match reference.and_then(|pointer| root?.pointer(pointer)) {
        Some(target) => types(target, root, depth + 1),
        None => Types::ANY,
    }
}

impl Conversion {
    /// The JSON text of a value.
    pub(super) fn apply(self, text: &str) -> String {
        let Self::Json(types) = self else { return Json::from(text).to_string() };
        let trimmed = text.trim();
        // Templates of the first version print these as Python does.
        let literal = match trimmed {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other => other,
        };
        match serde_json::from_str::<Json>(literal) {
            // What may be a string, and looks like a number or a word, is one.
            Ok(value) if types.allow(&value) && !(types.string && ambiguous(&value, types)) => literal.to_owned(),
            _ => Json::from(text).to_string(),
        }
    }
}

/// The value's text says little about its type, where strings are allowed but not everything is.
fn ambiguous(value: &Json, types: Types) -> bool {
    types != Types::ANY && matches!(value, Json::Bool(_) | Json::Number(_)) || value.is_string()
}

/// `text` escaped as within a JSON string, without quotes.
pub(super) fn quote_part(text: &str) -> String {
    let quoted = Json::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
