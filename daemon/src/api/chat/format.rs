//! A whole chat answer as one object.

use openjet_engine::text::{OutputPart, Tokenizer};
use serde_json::{Map, Value, json};

use crate::api::answer::{End, Piece};
use crate::api::head::{Head, new_id};
use crate::api::logprobs;
use crate::api::usage::Usage;
use crate::api::writer::Delta;

/// An answer that is being collected.
#[derive(Debug, Default)]
pub(super) struct Collected {
    content: String,
    reasoning: String,
    /// Name and arguments; `None` for a call that turned out to be none.
    calls: Vec<Option<(String, String)>>,
    logprobs: Vec<Value>,
    prompt_ids: Option<Vec<u32>>,
    token_ids: Vec<u32>,
    end: Option<End>,
}

impl Collected {
    /// `prompt_ids` when token ids are to be sent.
    pub(super) fn new(prompt_ids: Option<Vec<u32>>) -> Self {
        Self { prompt_ids, ..Self::default() }
    }

    pub(super) fn add(&mut self, piece: Piece, tokenizer: &Tokenizer) {
        for delta in piece.deltas {
            match delta {
                Delta::Content(text) => self.content += &text,
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::ToolCall { name, .. } => self.calls.push(Some((name, String::new()))),
                Delta::Arguments { index, piece } => {
                    if let Some(Some((_, arguments))) = self.calls.get_mut(index) {
                        *arguments += &piece;
                    }
                }
                Delta::Broken { index } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        *call = None;
                    }
                }
            }
        }
        let content = piece.tokens.iter().filter(|token| token.part == OutputPart::Content);
        self.logprobs.extend(content.filter_map(|token| logprobs::chat(token, tokenizer)));
        self.token_ids.extend(piece.tokens.iter().map(|token| token.id));
        self.end = piece.end.or(self.end.take());
    }

    pub(super) fn into_json(self, head: &Head) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        let calls: Vec<_> = self.calls.iter().flatten().collect();
        let silent = self.content.is_empty() && !calls.is_empty();
        message.insert("content".to_owned(), if silent { Value::Null } else { json!(self.content) });
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(self.reasoning));
        }
        if !calls.is_empty() {
            let call = |(name, arguments): &(String, String)| {
                let function = json!({ "name": name, "arguments": arguments });
                json!({ "id": new_id("call"), "type": "function", "function": function })
            };
            message.insert("tool_calls".to_owned(), calls.into_iter().map(call).collect());
        }
        let usage = self.end.as_ref().map(|end| end.usage.clone()).unwrap_or_default();
        let mut choice = json!({
            "index": 0,
            "message": message,
            "logprobs": if self.logprobs.is_empty() { Value::Null } else { json!({ "content": self.logprobs }) },
            "finish_reason": self.end.map(|end| end.reason.name()),
        });
        let mut out = head.to_json("chat.completion");
        if let Some(ids) = self.prompt_ids {
            choice["token_ids"] = json!(self.token_ids);
            out["prompt_token_ids"] = json!(ids);
        }
        out["choices"] = json!([choice]);
        out["timings"] = usage.timings();
        out["usage"] = Usage::to_json(&[usage]);
        out
    }
}
