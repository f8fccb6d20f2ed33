//! A response as server-sent events.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::builder::Builder;
use crate::api::answer::Answer;
use crate::app::App;
use crate::http::sse::{EventSource, event};

/// The events of one response.
#[derive(Debug)]
pub(super) struct ResponseStream {
    answer: Answer,
    builder: Builder,
    app: Arc<App>,
    /// Events sent.
    sent: usize,
    ended: bool,
}

impl ResponseStream {
    pub(super) fn new(answer: Answer, builder: Builder, app: Arc<App>) -> Self {
        Self { answer, builder, app, sent: 0, ended: false }
    }

    fn write(&mut self, events: Vec<Value>) -> Bytes {
        let mut out = String::new();
        for mut one in events {
            one["sequence_number"] = json!(self.sent);
            self.sent += 1;
            out += &event(one["type"].as_str().unwrap_or_default(), &one);
        }
        Bytes::from(out)
    }
}

impl EventSource for ResponseStream {
    async fn next(&mut self) -> Option<Bytes> {
        if self.sent == 0 {
            let first = ["response.created", "response.in_progress"].map(|kind| self.builder.whole(kind));
            return Some(self.write(first.into()));
        }
        while !self.ended {
            let events = match self.answer.next().await? {
                Ok(piece) => {
                    self.ended = piece.end.is_some();
                    let events = self.builder.piece(piece);
                    if self.ended {
                        self.builder.keep(&self.app.responses);
                    }
                    events
                }
                Err(error) => {
                    self.ended = true;
                    vec![self.builder.fail(&error)]
                }
            };
            if !events.is_empty() {
                return Some(self.write(events));
            }
        }
        None
    }
}
