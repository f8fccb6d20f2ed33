//! Builds a response from an answer's pieces: its items, and the events that tell of them.

use serde_json::{Map, Value, json};

use super::custom::InputDecoder;
use super::input::seal;
use super::request::About;
use super::store::ResponseStore;
use crate::api::answer::{EndReason, Piece};
use crate::api::conversation::history::{self, AssistantTurn};
use crate::api::head::{new_id_after, now};
use crate::api::usage::Usage;
use crate::api::writer::Delta;
use crate::http::error::{ApiError, Family};

/// A response on its way.
#[derive(Debug)]
pub(super) struct Builder {
    id: String,
    created: u64,
    model: String,
    about: About,
    status: &'static str,
    incomplete: Value,
    error: Value,
    usage: Value,
    /// Items that are whole.
    output: Vec<Value>,
    open: Option<Item>,
    /// Items begun.
    begun: usize,
    /// For the conversation that is kept.
    turn: AssistantTurn,
}

/// An item that is being written.
#[derive(Debug)]
struct Item {
    id: String,
    kind: Kind,
    text: String,
}

#[derive(Debug)]
enum Kind {
    Reasoning,
    Message,
    Function { name: String, call_id: String },
    Custom { name: String, call_id: String, input: InputDecoder },
}

impl Builder {
    pub(super) fn new(model: String, about: About) -> Self {
        Self {
            id: new_id_after("resp_"),
            created: now(),
            model,
            about,
            status: "in_progress",
            incomplete: Value::Null,
            error: Value::Null,
            usage: Value::Null,
            output: Vec::new(),
            open: None,
            begun: 0,
            turn: AssistantTurn::default(),
        }
    }

    /// Takes the next piece; returns the events that tell of it, without their numbers.
    pub(super) fn piece(&mut self, piece: Piece) -> Vec<Value> {
        let mut events = Vec::new();
        for delta in piece.deltas {
            self.delta(delta, &mut events);
        }
        if let Some(end) = piece.end {
            self.close(&mut events);
            self.usage = usage(&end.usage);
            if end.reason == EndReason::Length {
                self.status = "incomplete";
                self.incomplete = json!({ "reason": "max_output_tokens" });
                events.push(self.whole("response.incomplete"));
            } else {
                self.status = "completed";
                events.push(self.whole("response.completed"));
            }
        }
        events
    }

    /// The answer can't go on.
    pub(super) fn fail(&mut self, error: &ApiError) -> Value {
        self.status = "failed";
        let detail = &error.to_json(Family::OpenAi)["error"];
        self.error = json!({ "code": "server_error", "message": detail["message"] });
        self.whole("response.failed")
    }

    /// An event with the response as it is now.
    pub(super) fn whole(&self, kind: &str) -> Value {
        json!({ "type": kind, "response": self.response() })
    }

    /// The response as it is now.
    pub(super) fn response(&self) -> Value {
        let mut out = Map::new();
        out.insert("id".to_owned(), json!(self.id));
        out.insert("object".to_owned(), json!("response"));
        out.insert("created_at".to_owned(), json!(self.created));
        out.insert("status".to_owned(), json!(self.status));
        out.insert("background".to_owned(), json!(false));
        out.insert("error".to_owned(), self.error.clone());
        out.insert("incomplete_details".to_owned(), self.incomplete.clone());
        out.insert("model".to_owned(), json!(self.model));
        out.insert("output".to_owned(), json!(self.output));
        out.extend(self.about.echo.clone());
        out.insert("usage".to_owned(), self.usage.clone());
        Value::Object(out)
    }

    /// Keeps the conversation for `previous_response_id`, if the request allows.
    pub(super) fn keep(&mut self, store: &ResponseStore) {
        if let Some(mut history) = self.about.turns.take() {
            history.assistant(std::mem::take(&mut self.turn));
            store.put(self.id.clone(), history);
        }
    }

    fn delta(&mut self, delta: Delta, events: &mut Vec<Value>) {
        match delta {
            Delta::Reasoning(text) => {
                if !matches!(&self.open, Some(Item { kind: Kind::Reasoning, .. })) {
                    self.begin(Kind::Reasoning, "rs_", events);
                    let part = json!({ "type": "reasoning_text", "text": "" });
                    events.push(self.event("response.content_part.added", json!({ "content_index": 0, "part": part })));
                }
                self.add(text, "response.reasoning_text.delta", json!({ "content_index": 0 }), events);
            }
            Delta::Content(text) => {
                if !matches!(&self.open, Some(Item { kind: Kind::Message, .. })) {
                    self.begin(Kind::Message, "msg_", events);
                    let part = output_text("");
                    events.push(self.event("response.content_part.added", json!({ "content_index": 0, "part": part })));
                }
                let more = json!({ "content_index": 0, "logprobs": [] });
                self.add(text, "response.output_text.delta", more, events);
            }
            Delta::ToolCall { name, .. } => {
                let call_id = new_id_after("call_");
                if self.about.kinds.is_custom(&name) {
                    self.begin(Kind::Custom { name, call_id, input: InputDecoder::default() }, "ctc_", events);
                } else {
                    self.begin(Kind::Function { name, call_id }, "fc_", events);
                }
            }
            Delta::Arguments { piece, .. } => match self.open.as_mut().map(|item| &mut item.kind) {
                Some(Kind::Custom { input, .. }) => {
                    let text = input.push(&piece);
                    if !text.is_empty() {
                        self.add(text, "response.custom_tool_call_input.delta", json!({}), events);
                    }
                }
                _ => self.add(piece, "response.function_call_arguments.delta", json!({}), events),
            },
            // Its end is never told, so that nobody makes the call; its text follows.
            Delta::Broken { .. } => self.open = None,
        }
    }

    fn begin(&mut self, kind: Kind, prefix: &str, events: &mut Vec<Value>) {
        self.close(events);
        let item = Item { id: new_id_after(prefix), kind, text: String::new() };
        let added = item.to_json("in_progress", &self.about, false);
        events.push(json!({ "type": "response.output_item.added", "output_index": self.begun, "item": added }));
        self.begun += 1;
        self.open = Some(item);
    }

    fn add(&mut self, text: String, kind: &str, more: Value, events: &mut Vec<Value>) {
        let mut event = self.event(kind, more);
        if let Some(item) = &mut self.open {
            item.text.push_str(&text);
        }
        event["delta"] = Value::String(text);
        events.push(event);
    }

    /// The open item is whole.
    fn close(&mut self, events: &mut Vec<Value>) {
        let Some(item) = &self.open else { return };
        let (text, one) = (item.text.clone(), json!({ "content_index": 0 }));
        match &item.kind {
            Kind::Reasoning => {
                events.push(with(self.event("response.reasoning_text.done", one.clone()), "text", json!(text)));
                let part = json!({ "type": "reasoning_text", "text": text });
                events.push(with(self.event("response.content_part.done", one), "part", part));
            }
            Kind::Message => {
                let done = with(self.event("response.output_text.done", one.clone()), "text", json!(text));
                events.push(with(done, "logprobs", json!([])));
                events.push(with(self.event("response.content_part.done", one), "part", output_text(&text)));
            }
            Kind::Function { name, .. } => {
                let (name, _) = self.about.kinds.client_name(name);
                let done = self.event("response.function_call_arguments.done", json!({ "name": name }));
                events.push(with(done, "arguments", json!(text)));
            }
            Kind::Custom { .. } => {
                events.push(with(self.event("response.custom_tool_call_input.done", json!({})), "input", json!(text)));
            }
        }
        let Some(item) = self.open.take() else { return };
        let done = item.to_json("completed", &self.about, self.about.sealed_reasoning);
        let index = self.begun.saturating_sub(1);
        events.push(json!({ "type": "response.output_item.done", "output_index": index, "item": done }));
        self.output.push(done);
        self.remember(item);
    }

    fn remember(&mut self, item: Item) {
        match item.kind {
            Kind::Reasoning => self.turn.reasoning = Some(item.text),
            Kind::Message => self.turn.content.push_str(&item.text),
            Kind::Function { name, call_id } => {
                // The parser makes whole calls of valid JSON only.
                let arguments = serde_json::from_str(&item.text).unwrap_or_else(|_| json!({}));
                self.turn.calls.push(history::call(&call_id, &name, &arguments));
            }
            Kind::Custom { name, call_id, .. } => {
                self.turn.calls.push(history::call(&call_id, &name, &json!({ super::custom::INPUT: item.text })));
            }
        }
    }

    /// An event about the open item.
    fn event(&self, kind: &str, more: Value) -> Value {
        let id = self.open.as_ref().map(|item| item.id.as_str());
        let mut event = json!({ "type": kind, "item_id": id, "output_index": self.begun.saturating_sub(1) });
        if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
            event.extend(more);
        }
        event
    }
}

impl Item {
    fn to_json(&self, status: &str, about: &About, sealed: bool) -> Value {
        let Self { id, kind, text } = self;
        match kind {
            Kind::Reasoning => {
                let content: Vec<Value> = match text.as_str() {
                    "" => Vec::new(),
                    text => vec![json!({ "type": "reasoning_text", "text": text })],
                };
                let mut item = json!({ "id": id, "type": "reasoning", "summary": [], "content": content });
                if sealed {
                    item["encrypted_content"] = json!(seal(text));
                }
                item["status"] = json!(status);
                item
            }
            Kind::Message => {
                let content = if text.is_empty() { Vec::new() } else { vec![output_text(text)] };
                json!({ "id": id, "type": "message", "role": "assistant", "status": status, "content": content })
            }
            Kind::Function { name, call_id } => {
                let item = json!({ "id": id, "type": "function_call", "call_id": call_id });
                call(item, about.kinds.client_name(name), "arguments", text, status)
            }
            Kind::Custom { name, call_id, .. } => {
                let item = json!({ "id": id, "type": "custom_tool_call", "call_id": call_id });
                call(item, about.kinds.client_name(name), "input", text, status)
            }
        }
    }
}

/// A call's item with all its members.
fn call(mut item: Value, (name, space): (&str, Option<&str>), member: &str, text: &str, status: &str) -> Value {
    if let Some(space) = space {
        item["namespace"] = json!(space);
    }
    item["name"] = json!(name);
    item[member] = json!(text);
    item["status"] = json!(status);
    item
}

fn output_text(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn with(mut event: Value, name: &str, value: Value) -> Value {
    event[name] = value;
    event
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}
