//! The messages of a conversation in the form that chat templates read, whatever API they came by.

use serde_json::{Map, Value, json};

/// Messages so far. Leading system texts are one message; later ones stand where they are as user turns (templates take a
/// system message at the start only, and moving it there would change the text before it).
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Value>);

/// What an assistant said in one turn.
#[derive(Clone, Debug, Default)]
pub struct AssistantTurn {
    /// Its thinking.
    pub reasoning: Option<String>,
    /// Its text.
    pub content: String,
    /// Its calls, as [`call`] makes them.
    pub calls: Vec<Value>,
}

/// A tool call as templates read it: `arguments` is the object itself.
#[must_use]
pub fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

impl History {
    /// Adds a system text.
    pub fn system(&mut self, text: &str) {
        match self.0.last_mut() {
            None => self.0.push(json!({ "role": "system", "content": text })),
            Some(last) if last["role"] == "system" => {
                let joined = format!("{}\n\n{text}", last["content"].as_str().unwrap_or_default());
                last["content"] = Value::String(joined);
            }
            Some(_) => self.0.push(json!({ "role": "user", "content": format!("<system>\n{text}\n</system>") })),
        }
    }

    /// Adds a user's turn.
    pub fn user(&mut self, text: &str) {
        self.0.push(json!({ "role": "user", "content": text }));
    }

    /// Adds a tool's result.
    pub fn tool(&mut self, call_id: Option<&str>, text: &str) {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("tool"));
        message.insert("content".to_owned(), json!(text));
        if let Some(id) = call_id {
            message.insert("tool_call_id".to_owned(), json!(id));
        }
        self.0.push(Value::Object(message));
    }

    /// Adds an assistant's turn.
    pub fn assistant(&mut self, turn: AssistantTurn) {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        message.insert("content".to_owned(), Value::String(turn.content));
        if let Some(text) = turn.reasoning {
            message.insert("reasoning_content".to_owned(), Value::String(text));
        }
        if !turn.calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(turn.calls));
        }
        self.0.push(Value::Object(message));
    }

    /// Adds all of another conversation.
    pub fn append(&mut self, other: Self) {
        for message in other.0 {
            match message["content"].as_str() {
                Some(text) if message["role"] == "system" => self.system(text),
                _ => self.0.push(message),
            }
        }
    }

    /// Bytes of it all as JSON.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|message| message.to_string().len()).sum()
    }

    /// Whether there are no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The role of the last message.
    #[must_use]
    pub fn last_role(&self) -> Option<&str> {
        self.0.last()?["role"].as_str()
    }

    /// The messages.
    #[must_use]
    pub fn into_messages(self) -> Vec<Value> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_texts_join_at_the_start_and_stay_in_place_later() {
        let mut history = History::default();
        history.system("a");
        history.system("b");
        history.user("c");
        history.system("d");
        let expected = json!([
            {"role": "system", "content": "a\n\nb"},
            {"role": "user", "content": "c"},
            {"role": "user", "content": "<system>\nd\n</system>"},
        ]);
        assert_eq!(Value::Array(history.into_messages()), expected);
    }
}
