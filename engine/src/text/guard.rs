//! Keeps control tokens that a user typed apart from those that a template writes.
//!
//! Every control token of the family holds a character that user-defined tokens don't: the bar of `<|im_end|>`. Before
//! rendering, each such character in a string of the request is replaced by a stand-in: a private-use character that
//! occurs nowhere in the request. Whatever the template does to its strings (trims, splits, joins, searches them), a
//! control token in the rendered text can then come from the template alone, and the request can't forge one: not in
//! pieces either. After matching, the stand-ins are turned back.

use std::borrow::Cow;
use std::collections::HashSet;

use minijinja::Value;
use serde_json::Value as Json;

/// The character that marks control tokens, and what it is replaced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    mark: char,
    stand_in: char,
}

impl Guard {
    /// A character that all of `control` contain and none of `user_defined`, if there is one. Letters, digits and white
    /// space don't qualify: templates look at them.
    pub(super) fn mark(control: &[&str], user_defined: &[&str]) -> Option<char> {
        let special = |c: &char| !c.is_alphanumeric() && !c.is_whitespace();
        let marks = |&c: &char| control.iter().all(|t| t.contains(c)) && !user_defined.iter().any(|t| t.contains(c));
        control.first()?.chars().filter(special).find(marks)
    }

    /// A guard for a request that holds `strings`.
    pub(super) fn new<'a>(mark: char, strings: impl Iterator<Item = &'a str>) -> Self {
        let private = '\u{100000}'..='\u{10fffd}';
        let used: HashSet<char> = strings.flat_map(str::chars).filter(|c| private.contains(c)).collect();
        // A request that holds all 65,534 of them would have to go without the last; none is that odd.
        let stand_in = private.clone().find(|c| !used.contains(c)).unwrap_or('\u{10fffd}');
        Self { mark, stand_in }
    }

    fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if text.contains(self.mark) {
            text.replace(self.mark, self.stand_in.encode_utf8(&mut [0; 4])).into()
        } else {
            text.into()
        }
    }

    /// The text as it is meant.
    pub(super) fn reveal<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if text.contains(self.stand_in) {
            text.replace(self.stand_in, self.mark.encode_utf8(&mut [0; 4])).into()
        } else {
            text.into()
        }
    }

    /// A value of the request for the template, with every string hidden, keys too.
    pub(super) fn value(&self, json: &Json) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(b) => Value::from(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(i), _, _) => Value::from(i),
                (_, Some(u), _) => Value::from(u),
                (_, _, f) => Value::from(f.unwrap_or(f64::NAN)),
            },
            Json::String(s) => Value::from(self.hide(s)),
            Json::Array(items) => Value::from(items.iter().map(|item| self.value(item)).collect::<Vec<_>>()),
            Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (Value::from(self.hide(k)), self.value(v)))),
        }
    }
}

/// All strings of a value, keys too.
pub(super) fn strings(json: &Json) -> Box<dyn Iterator<Item = &str> + '_> {
    match json {
        Json::String(s) => Box::new(std::iter::once(s.as_str())),
        Json::Array(items) => Box::new(items.iter().flat_map(strings)),
        Json::Object(map) => Box::new(map.iter().flat_map(|(k, v)| std::iter::once(k.as_str()).chain(strings(v)))),
        Json::Null | Json::Bool(_) | Json::Number(_) => Box::new(std::iter::empty()),
    }
}
