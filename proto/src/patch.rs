//! What has changed between two JSON values of the same kind, small where little has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A change of a JSON value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Patch {
    /// It is this now.
    #[serde(rename = "=")]
    Set(Value),
    /// Of an object, these members have changed.
    #[serde(rename = ".")]
    Members(BTreeMap<String, Patch>),
    /// Of an array, so many items have left at the front; of the others, those at these places have changed; and these were
    /// added at the end.
    #[serde(rename = "[")]
    Items(usize, BTreeMap<usize, Patch>, Vec<Value>),
}

impl Patch {
    /// What makes `new` of `old`; none where they are equal.
    #[must_use]
    pub fn between(old: &Value, new: &Value) -> Option<Self> {
        match (old, new) {
            _ if old == new => None,
            (Value::Object(old), Value::Object(new)) if old.len() == new.len() => {
                Self::members(old, new).map(Self::Members)
            }
            (Value::Array(old), Value::Array(new)) if !old.is_empty() && !new.is_empty() => Some(Self::items(old, new)),
            _ => None,
        }
        .or_else(|| (old != new).then(|| Self::Set(new.clone())))
    }

    /// The members that differ; none where the names do.
    fn members(old: &Map<String, Value>, new: &Map<String, Value>) -> Option<BTreeMap<String, Self>> {
        let mut changed = BTreeMap::new();
        for (name, new) in new {
            if let Some(change) = Self::between(old.get(name)?, new) {
                changed.insert(name.clone(), change);
            }
        }
        Some(changed)
    }

    fn items(old: &[Value], new: &[Value]) -> Self {
        // A list that moves on, such as a log, begins with an item that was further back before.
        let moved = old.iter().position(|item| *item == new[0]);
        let gone = moved.unwrap_or_default().max(old.len().saturating_sub(new.len()));
        let (kept, added) = new.split_at((old.len() - gone).min(new.len()));
        let changed = old[gone..].iter().zip(kept).enumerate();
        let changed = changed.filter_map(|(at, (old, new))| Some((at, Self::between(old, new)?))).collect();
        Self::Items(gone, changed, added.to_vec())
    }

    /// Makes the change to `value`, which is as it was when the change was found. What doesn't fit changes nothing.
    pub fn apply(self, value: &mut Value) {
        match (self, value) {
            (Self::Set(new), value) => *value = new,
            (Self::Members(members), Value::Object(object)) => {
                for (name, change) in members {
                    if let Some(member) = object.get_mut(&name) {
                        change.apply(member);
                    }
                }
            }
            (Self::Items(gone, changed, added), Value::Array(array)) => {
                array.drain(..gone.min(array.len()));
                for (at, change) in changed {
                    if let Some(item) = array.get_mut(at) {
                        change.apply(item);
                    }
                }
                array.extend(added);
            }
            (Self::Members(_) | Self::Items(..), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    /// Small values that differ in few places, or in all, from a seed.
    fn value(seed: &mut u64, depth: u32) -> Value {
        let mut below = |n: u64| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) % n
        };
        match below(if depth == 0 { 4 } else { 7 }) {
            0 => Value::Null,
            1 => json!(below(3)),
            2 => json!(below(2) == 0),
            3 => json!(format!("{}", below(4))),
            4 => (0..below(4)).map(|_| value(seed, depth - 1)).collect(),
            _ => (0..below(4)).map(|name| (name.to_string(), value(seed, depth - 1))).collect(),
        }
    }

    #[test]
    fn a_change_makes_the_new_value_of_the_old_one() {
        let mut seed = 1;
        let mut old = Value::Null;
        for _ in 0..20_000 {
            let new = value(&mut seed, 3);
            let mut patched = old.clone();
            if let Some(change) = Patch::between(&old, &new) {
                let text = serde_json::to_string(&change).unwrap();
                serde_json::from_str::<Patch>(&text).unwrap().apply(&mut patched);
            } else {
                assert_eq!(old, new);
            }
            assert_eq!(patched, new, "from {old}");
            old = new;
        }
    }

    #[test]
    fn little_is_said_of_little() {
        let change = |old, new| serde_json::to_value(Patch::between(&old, &new)).unwrap();
        let state = |tokens: u64| json!({"agents": [{"id": 0, "tokens": tokens}, {"id": 1, "tokens": 5}], "queue": []});
        assert_eq!(change(state(1), state(1)), Value::Null);
        let agents = json!({"[": [0, {"0": {".": {"tokens": {"=": 2}}}}, []]});
        assert_eq!(change(state(1), state(2)), json!({".": {"agents": agents}}));
        let log = |from: u64| (from..from + 3).map(|id| json!({"id": id})).collect::<Value>();
        assert_eq!(change(log(4), log(5)), json!({"[": [1, {}, [{"id": 7}]]}));
        assert_eq!(change(json!([1, 2, 3]), json!([1, 2])), json!({"[": [1, {"0": {"=": 1}, "1": {"=": 2}}, []]}));
        assert_eq!(change(json!([1]), json!([])), json!({"=": []}));
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        for change in [
            r#"{".": {"b": {"=": 1}}}"#,
            r#"{"[": [5, {"9": {"=": 1}}, []]}"#,
            r#"{".": {"a": {".": {"x": {"=": 1}}}}}"#,
        ] {
            let mut value = json!({"a": 1});
            serde_json::from_str::<Patch>(change).unwrap().apply(&mut value);
            assert_eq!(value, json!({"a": 1}));
        }
    }
}
