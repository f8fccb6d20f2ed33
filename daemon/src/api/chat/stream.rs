//! A chat answer as server-sent events.

use std::sync::Arc;

use bytes::Bytes;
use openjet_engine::text::OutputPart;
use serde_json::{Value, json};

use crate::api::answer::{Answer, End, Piece};
use crate::api::head::{Head, new_id};
use crate::api::logprobs;
use crate::api::usage::Usage;
use crate::api::writer::Delta;
use crate::http::error::{ApiError, Family};
use crate::http::sse::{DONE, EventSource, data};
use crate::serving::Serving;

/// The events of one answer.
#[derive(Debug)]
pub(super) struct ChatStream {
    answer: Answer,
    head: Head,
    serving: Arc<Serving>,
    /// Sent with the first chunk when token ids are wanted.
    prompt_ids: Option<Vec<u32>>,
    token_ids: bool,
    include_usage: bool,
    begun: bool,
    ended: bool,
    /// Log probabilities and token ids that wait for a chunk with text.
    logprobs: Vec<Value>,
    ids: Vec<u32>,
}

impl ChatStream {
    pub(super) fn new(
        answer: Answer,
        head: Head,
        serving: Arc<Serving>,
        prompt_ids: Option<Vec<u32>>,
        include_usage: bool,
    ) -> Self {
        Self {
            answer,
            head,
            serving,
            token_ids: prompt_ids.is_some(),
            prompt_ids,
            include_usage,
            begun: false,
            ended: false,
            logprobs: Vec::new(),
            ids: Vec::new(),
        }
    }

    fn piece(&mut self, piece: Piece) -> String {
        let mut out = String::new();
        if piece.started {
            return out;
        }
        if !self.begun {
            self.begun = true;
            let mut first = self.chunk(&json!({ "role": "assistant", "content": "" }), None);
            if let Some(ids) = self.prompt_ids.take() {
                first["prompt_token_ids"] = json!(ids);
            }
            out += &data(&first);
        }
        let content = piece.tokens.iter().filter(|token| token.part == OutputPart::Content);
        self.logprobs.extend(content.filter_map(|token| logprobs::chat(token, &self.serving.tokenizer)));
        if self.token_ids {
            self.ids.extend(piece.tokens.iter().map(|token| token.id));
        }
        for delta in merge(piece.deltas) {
            let carries_content = matches!(delta, Delta::Content(_));
            // Of a call that turns out to be none the client hears by its text and the finish reason.
            let Some(delta) = delta_json(delta) else { continue };
            let mut chunk = self.chunk(&delta, None);
            self.attach(&mut chunk, carries_content);
            out += &data(&chunk);
        }
        if let Some(end) = piece.end {
            out += &self.end(&end);
        }
        out
    }

    fn end(&mut self, end: &End) -> String {
        self.ended = true;
        let mut last = self.chunk(&json!({}), Some(end.reason.name()));
        self.attach(&mut last, true);
        last["timings"] = end.usage.timings();
        let mut out = data(&last);
        if self.include_usage {
            let mut usage = self.head.to_json("chat.completion.chunk");
            usage["choices"] = json!([]);
            usage["usage"] = Usage::to_json(std::slice::from_ref(&end.usage));
            usage["timings"] = end.usage.timings();
            out += &data(&usage);
        }
        out + DONE
    }

    fn chunk(&self, delta: &Value, finish: Option<&str>) -> Value {
        let mut chunk = self.head.to_json("chat.completion.chunk");
        chunk["choices"] = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Puts what waits for a chunk into this one.
    fn attach(&mut self, chunk: &mut Value, logprobs: bool) {
        let choice = &mut chunk["choices"][0];
        if logprobs && !self.logprobs.is_empty() {
            choice["logprobs"] = json!({ "content": std::mem::take(&mut self.logprobs) });
        }
        if self.token_ids {
            choice["token_ids"] = json!(std::mem::take(&mut self.ids));
        }
    }

    fn error(&mut self, error: &ApiError) -> String {
        self.ended = true;
        data(&error.to_json(Family::OpenAi))
    }
}

impl EventSource for ChatStream {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            let events = match self.answer.next().await? {
                Ok(piece) => self.piece(piece),
                Err(error) => self.error(&error),
            };
            if !events.is_empty() {
                return Some(Bytes::from(events));
            }
        }
        None
    }
}

/// Neighbouring pieces of the same kind as one.
fn merge(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut out: Vec<Delta> = Vec::with_capacity(deltas.len());
    for delta in deltas {
        match (out.last_mut(), delta) {
            (Some(Delta::Content(all)), Delta::Content(text))
            | (Some(Delta::Reasoning(all)), Delta::Reasoning(text)) => {
                all.push_str(&text);
            }
            (Some(Delta::Arguments { index: a, piece: all }), Delta::Arguments { index: b, piece }) if *a == b => {
                all.push_str(&piece);
            }
            (_, delta) => out.push(delta),
        }
    }
    out
}

fn delta_json(delta: Delta) -> Option<Value> {
    Some(match delta {
        Delta::Content(text) => json!({ "content": text }),
        Delta::Reasoning(text) => json!({ "reasoning_content": text }),
        Delta::ToolCall { index, name } => {
            let function = json!({ "name": name, "arguments": "" });
            json!({ "tool_calls": [{ "index": index, "id": new_id("call"), "type": "function", "function": function }] })
        }
        Delta::Arguments { index, piece } => {
            json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] })
        }
        Delta::Broken { .. } => return None,
    })
}
