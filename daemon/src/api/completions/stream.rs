//! Continuations as server-sent events, those of several prompts as they come.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::select_all;
use serde_json::{Value, json};

use super::format::{Choice, text};
use crate::api::answer::Piece;
use crate::api::head::Head;
use crate::api::usage::Usage;
use crate::http::error::{ApiError, Family};
use crate::http::sse::{DONE, EventSource, data};
use crate::serving::Serving;

/// The events of one request.
#[derive(Debug)]
pub(super) struct CompletionStream {
    choices: Vec<Choice>,
    /// Of the choices that have ended.
    usages: Vec<Usage>,
    head: Head,
    serving: Arc<Serving>,
    include_usage: bool,
    ended: bool,
}

impl CompletionStream {
    pub(super) fn new(choices: Vec<Choice>, head: Head, serving: Arc<Serving>, include_usage: bool) -> Self {
        Self { choices, usages: Vec::new(), head, serving, include_usage, ended: false }
    }

    fn piece(&mut self, index: usize, piece: Piece) -> String {
        let choice = &mut self.choices[index];
        let text = choice.echo.take().unwrap_or_default() + &text(piece.deltas);
        let finish = piece.end.as_ref().map(|end| end.reason.name());
        if text.is_empty() && piece.tokens.is_empty() && finish.is_none() {
            return String::new();
        }
        let entry = choice.entry(index, &text, &piece.tokens, finish, &self.serving.tokenizer);
        // Once is enough.
        choice.prompt_ids = choice.prompt_ids.take().map(|_| Vec::new());
        let mut chunk = self.chunk(&[entry]);
        if let Some(end) = piece.end {
            chunk["timings"] = end.usage.timings();
            self.usages.push(end.usage);
        }
        let mut out = data(&chunk);
        if self.usages.len() == self.choices.len() {
            self.ended = true;
            if self.include_usage {
                let mut last = self.chunk(&[]);
                last["usage"] = Usage::to_json(&self.usages);
                out += &data(&last);
            }
            out += DONE;
        }
        out
    }

    fn chunk(&self, choices: &[Value]) -> Value {
        let mut chunk = self.head.to_json("text_completion");
        chunk["choices"] = json!(choices);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The next piece of any choice.
    async fn any(&mut self) -> Option<(usize, Result<Piece, ApiError>)> {
        let nexts = self.choices.iter_mut().enumerate().filter(|(_, choice)| !choice.answer.is_over());
        let nexts: Vec<_> = nexts.map(|(i, choice)| Box::pin(async move { (i, choice.answer.next().await) })).collect();
        if nexts.is_empty() {
            return None;
        }
        let ((index, piece), ..) = select_all(nexts).await;
        piece.map(|piece| (index, piece))
    }
}

impl EventSource for CompletionStream {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            let events = match self.any().await? {
                (index, Ok(piece)) => self.piece(index, piece),
                (_, Err(error)) => {
                    self.ended = true;
                    data(&error.to_json(Family::OpenAi))
                }
            };
            if !events.is_empty() {
                return Some(Bytes::from(events));
            }
        }
        None
    }
}
