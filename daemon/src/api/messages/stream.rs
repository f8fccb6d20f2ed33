//! An answer of the Messages API as server-sent events.

use bytes::Bytes;
use serde_json::{Value, json};

use super::format::{self, SIGNATURE};
use crate::api::answer::{Answer, End, Piece};
use crate::api::head::new_id_after;
use crate::api::writer::Delta;
use crate::http::error::{ApiError, Family};
use crate::http::sse::{EventSource, event};

/// The events of one answer.
#[derive(Debug)]
pub(super) struct MessageStream {
    answer: Answer,
    id: String,
    model: String,
    begun: bool,
    ended: bool,
    /// The block that is being sent.
    open: Option<Open>,
    /// Blocks begun.
    blocks: usize,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    /// The call of this number.
    Call(usize),
}

impl MessageStream {
    pub(super) fn new(answer: Answer, id: String, model: String) -> Self {
        Self { answer, id, model, begun: false, ended: false, open: None, blocks: 0 }
    }

    fn piece(&mut self, piece: Piece) -> String {
        let mut out = String::new();
        self.begin(&mut out);
        for delta in piece.deltas {
            self.delta(delta, &mut out);
        }
        if let Some(end) = piece.end {
            self.end(&end, &mut out);
        }
        out
    }

    fn begin(&mut self, out: &mut String) {
        if self.begun {
            return;
        }
        self.begun = true;
        let mut message = format::message(&self.id, &self.model, Vec::new(), None);
        message["usage"] = format::usage(self.answer.usage());
        *out += &event("message_start", &json!({ "type": "message_start", "message": message }));
    }

    fn delta(&mut self, delta: Delta, out: &mut String) {
        match delta {
            Delta::Reasoning(text) => {
                self.open(Open::Thinking, || json!({ "type": "thinking", "thinking": "", "signature": "" }), out);
                self.send(&json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Delta::Content(text) => {
                self.open(Open::Text, || json!({ "type": "text", "text": "" }), out);
                self.send(&json!({ "type": "text_delta", "text": text }), out);
            }
            Delta::ToolCall { index, name } => {
                let block = || json!({ "type": "tool_use", "id": new_id_after("toolu_"), "name": name, "input": {} });
                self.open(Open::Call(index), block, out);
            }
            Delta::Arguments { piece, .. } => {
                self.send(&json!({ "type": "input_json_delta", "partial_json": piece }), out);
            }
            // The client hears of it by the text that follows and the stop reason.
            Delta::Broken { .. } => self.close(out),
        }
    }

    /// Sees to it that a block of this kind is open.
    fn open(&mut self, kind: Open, block: impl FnOnce() -> Value, out: &mut String) {
        if self.open == Some(kind) {
            return;
        }
        self.close(out);
        let start = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block() });
        *out += &event("content_block_start", &start);
        self.blocks += 1;
        self.open = Some(kind);
    }

    fn send(&self, delta: &Value, out: &mut String) {
        let index = self.blocks.saturating_sub(1);
        let delta = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        *out += &event("content_block_delta", &delta);
    }

    fn close(&mut self, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        if open == Open::Thinking {
            self.send(&json!({ "type": "signature_delta", "signature": SIGNATURE }), out);
        }
        let stop = json!({ "type": "content_block_stop", "index": self.blocks.saturating_sub(1) });
        *out += &event("content_block_stop", &stop);
    }

    fn end(&mut self, end: &End, out: &mut String) {
        self.ended = true;
        self.close(out);
        let delta = json!({ "stop_reason": format::stop_reason(end), "stop_sequence": end.stop_string });
        let delta = json!({ "type": "message_delta", "delta": delta, "usage": format::usage(&end.usage) });
        *out += &event("message_delta", &delta);
        *out += &event("message_stop", &json!({ "type": "message_stop" }));
    }

    fn error(&mut self, error: &ApiError) -> String {
        self.ended = true;
        event("error", &error.to_json(Family::Anthropic))
    }
}

impl EventSource for MessageStream {
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

    fn ping(&self) -> Bytes {
        Bytes::from(event("ping", &json!({ "type": "ping" })))
    }
}
