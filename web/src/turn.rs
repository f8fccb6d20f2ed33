//! A turn of the conversation, as it is shown and as it is sent back.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Whoever types.
    User,
    /// The model.
    Assistant,
    /// The result of a call, typed by the user.
    Tool,
}

impl Role {
    /// As the API knows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON, perhaps not all of it yet.
    pub(crate) arguments: String,
}

/// One turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) role: Role,
    /// What was said.
    pub(crate) content: String,
    /// What was thought before it; it isn't sent back.
    pub(crate) thinking: String,
    /// What the model calls.
    pub(crate) calls: Vec<Call>,
    /// Whose result this is.
    pub(crate) answers: Option<Call>,
    /// What there is to say about it, for people.
    pub(crate) note: String,
}

impl Turn {
    /// A turn that is complete, or an answer that is to come.
    pub(crate) fn new(role: Role, content: String) -> Self {
        Self { role, content, thinking: String::new(), calls: Vec::new(), answers: None, note: String::new() }
    }
}

impl Serialize for Turn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", self.role.name())?;
        map.serialize_entry("content", &self.content)?;
        if let Some(call) = &self.answers {
            map.serialize_entry("tool_call_id", &call.id)?;
        }
        if !self.calls.is_empty() {
            let call = |call: &Call| json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}});
            map.serialize_entry("tool_calls", &self.calls.iter().map(call).collect::<Vec<_>>())?;
        }
        map.end()
    }
}

/// The first call of the last answer that has no result yet.
pub(crate) fn open_call(turns: &[Turn]) -> Option<Call> {
    let asked = turns.iter().rposition(|turn| turn.role == Role::Assistant)?;
    let answered = turns.len() - asked - 1;
    turns[asked].calls.get(answered).cloned()
}

/// Tools that the model may call when it is offered some: what a coding agent has.
pub(crate) fn tools() -> Value {
    let tool = |name: &str, description: &str, argument: &str| {
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": {
            "type": "object", "properties": {argument: {"type": "string"}}, "required": [argument],
        }}})
    };
    json!([
        tool("read_file", "Read a file and return its text.", "path"),
        tool("run_command", "Run a command in a shell and return what it prints.", "command"),
    ])
}
