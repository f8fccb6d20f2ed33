//! A whole chat answer as one object.

use openjet_engine::text::{OutputPart, Tokenizer};
use serde_json::{Map, Value, json};

use crate::api::answer::{End, Piece};
use crate::api::conversation::blocks::{Block, Blocks};
use crate::api::head::{Head, new_id};
use crate::api::logprobs;
use crate::api::usage::Usage;

/// An answer that is being collected.
#[derive(Debug, Default)]
pub(super) struct Collected {
    blocks: Blocks,
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
        self.blocks.extend(piece.deltas);
        let content = piece.tokens.iter().filter(|token| token.part == OutputPart::Content);
        self.logprobs.extend(content.filter_map(|token| logprobs::chat(token, tokenizer)));
        self.token_ids.extend(piece.tokens.iter().map(|token| token.id));
        self.end = piece.end.or(self.end.take());
    }

    pub(super) fn into_json(self, head: &Head) -> Value {
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for block in self.blocks.into_vec() {
            match block {
                Block::Content(text) => content += &text,
                Block::Reasoning(text) => reasoning += &text,
                Block::Call { name, arguments } => {
                    let function = json!({ "name": name, "arguments": arguments });
                    calls.push(json!({ "id": new_id("call"), "type": "function", "function": function }));
                }
            }
        }
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        let silent = content.is_empty() && !calls.is_empty();
        message.insert("content".to_owned(), if silent { Value::Null } else { json!(content) });
        if !reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(calls));
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
