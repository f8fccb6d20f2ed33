//! Reads the fields of a JSON object one by one, so that every field of a request is known: done, harmless or refused.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::config::nearest;
use crate::http::error::ApiError;

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It does what the API says.
    Done,
    /// It is taken and changes nothing, because nothing here depends on it.
    Harmless,
    /// It is answered with 400 unless it is null.
    Refused,
}

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub support: Support,
    /// What it does, or why it is harmless or refused, for the documentation and for errors.
    pub note: &'static str,
}

/// A field that does what it says.
#[must_use]
pub const fn done(name: &'static str, note: &'static str) -> Field {
    Field { name, support: Support::Done, note }
}

/// A field that changes nothing.
#[must_use]
pub const fn harmless(name: &'static str, note: &'static str) -> Field {
    Field { name, support: Support::Harmless, note }
}

/// A field that is refused.
#[must_use]
pub const fn refused(name: &'static str, note: &'static str) -> Field {
    Field { name, support: Support::Refused, note }
}

/// An object that is being read. Null is taken as absent everywhere.
#[derive(Debug)]
pub struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Starts on `value`, which stands at `path` ("" for the body itself).
    ///
    /// # Errors
    /// 400 when it is not an object.
    pub fn new(path: impl Into<String>, value: Value) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            other if path.is_empty() => {
                Err(ApiError::bad_request(format!("the body must be a JSON object, not {}", kind(&other))))
            }
            other => Err(wrong_type(&path, "an object", &other)),
        }
    }

    /// The path of field `name`.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The object's own path.
    #[must_use]
    pub fn own_path(&self) -> &str {
        &self.path
    }

    /// Whether a value other than null is there.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A value of any type, left where it is.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Takes a value of any type.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a string.
    ///
    /// # Errors
    /// 400 when it is something else.
    pub fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.path(name), "a string", &other)),
        }
    }

    /// Takes a string that must be there.
    ///
    /// # Errors
    /// 400 when it is absent or something else.
    pub fn required_string(&mut self, name: &str) -> Result<String, ApiError> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    /// Takes `true` or `false`.
    ///
    /// # Errors
    /// 400 when it is something else.
    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.path(name), "true or false", &other)),
        }
    }

    /// Takes a whole number within `range`.
    ///
    /// # Errors
    /// 400 when it is something else.
    pub fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let path = self.path(name);
        let number = integer(&value).ok_or_else(|| wrong_type(&path, "a whole number", &value))?;
        in_range(&path, number, &range).map(Some)
    }

    /// Takes a number within `range`.
    ///
    /// # Errors
    /// 400 when it is something else.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let path = self.path(name);
        let number = value.as_f64().ok_or_else(|| wrong_type(&path, "a number", &value))?;
        in_range(&path, number, &range).map(Some)
    }

    /// Takes a list.
    ///
    /// # Errors
    /// 400 when it is something else.
    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong_type(&self.path(name), "a list", &other)),
        }
    }

    /// Takes an object.
    ///
    /// # Errors
    /// 400 when it is something else.
    pub fn object(&mut self, name: &str) -> Result<Option<Self>, ApiError> {
        let path = self.path(name);
        self.take(name).map(|value| Self::new(path, value)).transpose()
    }

    /// All that is left, as it is.
    #[must_use]
    pub fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// The error for a field that must be there.
    #[must_use]
    pub fn missing(&self, name: &str) -> ApiError {
        let path = self.path(name);
        ApiError::param(path.clone(), format!("`{path}` is missing")).with_code("missing_required_parameter")
    }

    /// Checks what was not taken against the table of all fields.
    ///
    /// # Errors
    /// 400 for a refused or unknown field, by name.
    pub fn finish(self, tables: &[&[Field]]) -> Result<(), ApiError> {
        for (name, value) in &self.map {
            let known = tables.iter().copied().flatten().find(|field| field.name == name);
            let path = self.path(name);
            let message = match known {
                Some(field) if value.is_null() || field.support == Support::Harmless => continue,
                Some(field) => format!("`{path}` is not supported: {}", field.note),
                None => {
                    let near = nearest(name, tables.iter().copied().flatten().map(|field| field.name));
                    let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                    format!("`{path}` is not a field that this server knows{hint}")
                }
            };
            let code = if known.is_some() { "unsupported_parameter" } else { "unknown_parameter" };
            return Err(ApiError::param(path, message).with_code(code));
        }
        Ok(())
    }
}

/// A whole number, also when it is written as `3.0`.
#[must_use]
pub fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() < 9.0e15).then_some(number as i64)
    })
}

/// The error for a value of the wrong type.
#[must_use]
pub fn wrong_type(path: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::param(path, format!("`{path}` must be {expected}, not {}", kind(found))).with_code("invalid_type")
}

/// What a value is, for people.
#[must_use]
pub fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn in_range<T: PartialOrd + Display>(path: &str, value: T, range: &RangeInclusive<T>) -> Result<T, ApiError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let wanted = if range.start() == range.end() { String::new() } else { format!("{} to ", range.start()) };
    let message = format!("`{path}` is {value}, but must be {wanted}{}", range.end());
    Err(ApiError::param(path, message).with_code("invalid_value"))
}

/// For tests of tables of fields: every field, given `wrong`, is harmless or ends in an error that names it.
#[cfg(test)]
#[allow(clippy::panic)]
pub(super) fn assert_read_or_refused<T: std::fmt::Debug>(
    fields: &[Field],
    wrong: &Value,
    parse: impl Fn(Value) -> Result<T, ApiError>,
) {
    for field in fields {
        match (field.support, parse(serde_json::json!({ field.name: wrong }))) {
            (Support::Harmless, outcome) => assert!(outcome.is_ok(), "{}", field.name),
            (_, Ok(parsed)) => panic!("{}: {parsed:?}", field.name),
            (_, Err(error)) => {
                assert!(error.param_name().unwrap_or_default().starts_with(field.name), "{}: {error:?}", field.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::new("", value).unwrap()
    }

    #[test]
    fn types_and_ranges_are_checked_with_the_path() {
        let mut inner = fields(json!({"a": {"b": "x", "c": 3.0, "d": 1.5, "e": 9}})).object("a").unwrap().unwrap();
        let error = inner.integer("b", 0..=5).unwrap_err();
        assert_eq!(error.param_name(), Some("a.b"));
        assert_eq!(inner.integer("c", 0..=5).unwrap(), Some(3));
        assert_eq!(
            inner.integer("d", 0..=5).unwrap_err().message(),
            "`a.d` must be a whole number, not the number 1.5"
        );
        assert_eq!(inner.number("e", 0.0..=5.0).unwrap_err().message(), "`a.e` is 9, but must be 0 to 5");
        assert_eq!(inner.number("f", 0.0..=5.0).unwrap(), None);
    }

    #[test]
    fn what_is_left_is_judged_by_the_table() {
        const TABLE: &[Field] = &[done("model", ""), harmless("user", ""), refused("audio", "text only")];
        fields(json!({"user": 1, "audio": null, "model": null})).finish(&[TABLE]).unwrap();
        let error = fields(json!({"audio": {}})).finish(&[TABLE]).unwrap_err();
        assert_eq!((error.param_name(), error.message()), (Some("audio"), "`audio` is not supported: text only"));
        let error = fields(json!({"modle": null})).finish(&[TABLE]).unwrap_err();
        assert!(error.message().ends_with("did you mean `model`?"), "{}", error.message());
    }
}
