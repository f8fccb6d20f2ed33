//! A grammar for tool calls in the family's form, each value as the tool's JSON schema has it.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::text::{Conversion, conversion};

/// A tool whose calls can't be held to its schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallsError {
    /// The tool's place in the list.
    pub tool: usize,
    /// Why.
    pub message: String,
}

/// White space in JSON as templates write it.
fn plain_options() -> Value {
    json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ", "lenient": true })
}

/// Rules `call`, one call of one of `tools` (in the form that templates read), and `calls`, several of them. `begin` and
/// `end` are the tokens `<tool_call>` and `</tool_call>`.
///
/// # Errors
/// [`CallsError`] names the tool.
pub fn calls_grammar(tools: &[Value], begin: u32, end: u32) -> Result<String, CallsError> {
    let names: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
    let mut out = format!("calls: call (\"\\n\" call)*\ncall: {}\n", names.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let parameters = Parameters::of(function.get("parameters"), i)?;
        let open = literal(&format!("\n<function={name}>\n"));
        // A write to a string can't fail.
        let _ = writeln!(out, "call_{i}: <[{begin}]> {open} {}\"</function>\\n\" <[{end}]>", parameters.sequence);
        out.push_str(&parameters.rules);
    }
    Ok(out)
}

/// The rules for a tool's parameters.
#[derive(Default)]
struct Parameters {
    /// What stands in the rule of the call.
    sequence: String,
    rules: String,
}

impl Parameters {
    fn of(schema: Option<&Value>, tool: usize) -> Result<Self, CallsError> {
        let mut out = Self::default();
        let Some(schema) = schema else { return Ok(out) };
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let any = json!({});
        let undeclared = required.iter().filter(|name| !properties.contains_key(**name)).map(|name| (*name, &any));
        let all = properties.iter().map(|(name, schema)| (name.as_str(), schema)).chain(undeclared);
        for (i, (name, property)) in all.enumerate() {
            if name.is_empty() || name.contains(['<', '>', '\n']) {
                let message = format!("a parameter named {name:?} can't be written in a call");
                return Err(CallsError { tool, message });
            }
            let rule = format!("p_{tool}_{i}");
            let optional = if required.contains(&name) { "" } else { "?" };
            let _ = write!(out.sequence, "{rule}{optional} ");
            let open = literal(&format!("<parameter={name}>\n"));
            let _ = writeln!(out.rules, "{rule}: {open} v_{tool}_{i}");
            out.value(&format!("{tool}_{i}"), property, schema);
        }
        if properties.is_empty()
            && required.is_empty()
            && schema.get("additionalProperties") != Some(&Value::Bool(false))
        {
            let _ = write!(out.sequence, "p_{tool}* ");
            let _ = writeln!(out.rules, "p_{tool}: \"<parameter=\" /[^<>\\n]+/ \">\\n\" v_{tool}");
            out.value(&tool.to_string(), &any, schema);
        }
        Ok(out)
    }

    /// Rule `v_ID` for a value and the end of its parameter.
    fn value(&mut self, id: &str, schema: &Value, root: &Value) {
        const END: &str = r#""\n</parameter>\n""#;
        let json =
            |schema: &Value| format!("%json {}", with_options(&with_definitions(schema, root), &plain_options()));
        let text = |body: &str| format!("t_{id}[suffix={END}]: {body}\n");
        let rules = match conversion(schema, Some(root)) {
            Conversion::Text => match texts(schema) {
                Some(texts) => format!("v_{id}: ({}) {END}\n", texts.join(" | ")),
                None => format!("v_{id}: t_{id}\n{}", text(&text_body(schema))),
            },
            // What may be a string is one, unless it is written as a list or an object.
            Conversion::Json(types) if types.is_any() => format!("v_{id}: t_{id}\n{}", text("/(?s:.*)/")),
            Conversion::Json(types) if types.has_string() && types.has_container() => {
                let nested = json!({ "allOf": [schema, { "type": ["object", "array"] }] });
                let plain = text(r"/([^\[{\s](?s:.*))?/");
                format!("v_{id}: t_{id} | j_{id} {END}\n{plain}j_{id}: {}\n", json(&nested))
            }
            Conversion::Json(types) if types.has_string() => format!("v_{id}: t_{id}\n{}", text("/(?s:.*)/")),
            Conversion::Json(_) => format!("v_{id}: j_{id} {END}\nj_{id}: {}\n", json(schema)),
        };
        self.rules.push_str(&rules);
    }
}

/// The texts of an `enum` or `const`, as literals.
fn texts(schema: &Value) -> Option<Vec<String>> {
    let values = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), _) => values.clone(),
        (_, Some(value)) => vec![value.clone()],
        _ => return None,
    };
    values.iter().map(|value| value.as_str().map(literal)).collect()
}

/// A regular expression for a text by its `pattern`, or else by its length.
fn text_body(schema: &Value) -> String {
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
        // A pattern is searched for anywhere, unless it says otherwise.
        let start = if pattern.starts_with('^') { "" } else { "(?s:.*)" };
        let end = if pattern.ends_with('$') && !pattern.ends_with("\\$") { "" } else { "(?s:.*)" };
        let inner = pattern.strip_prefix('^').unwrap_or(pattern);
        let inner = if end.is_empty() { inner.strip_suffix('$').unwrap_or(inner) } else { inner };
        return format!("/{start}({}){end}/", escape_regex(inner));
    }
    let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
    match (bound("minLength"), bound("maxLength")) {
        (None, None) => "/(?s:.*)/".to_owned(),
        (min, max) => {
            let max = max.map_or_else(String::new, |max| max.to_string());
            format!("/(?s:.){{{},{max}}}/", min.unwrap_or(0))
        }
    }
}

/// A schema that brings the definitions of its root along, to which it may refer.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut out = schema.clone();
    if let Value::Object(map) = &mut out {
        for name in ["$defs", "definitions"] {
            if let (Some(definitions), false) = (root.get(name), map.contains_key(name)) {
                map.insert(name.to_owned(), definitions.clone());
            }
        }
    }
    out
}

/// A schema with options for the library that compiles it; they replace any that the schema brings.
pub(super) fn with_options(schema: &Value, options: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let mut map = map.clone();
            map.insert("x-guidance".to_owned(), options.clone());
            Value::Object(map)
        }
        other => other.clone(),
    }
}

/// A text as the grammar's string literal.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A regular expression for between slashes.
pub(super) fn escape_regex(regex: &str) -> String {
    let mut out = String::with_capacity(regex.len());
    let mut escaped = false;
    for c in regex.chars() {
        match c {
            '/' if !escaped => out.push_str("\\/"),
            '\n' => out.push_str(if escaped { "n" } else { "\\n" }),
            c => out.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    out
}
