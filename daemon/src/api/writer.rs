//! From tokens to what a client sees: whole characters, thinking apart from content, tool calls, stop strings.

use std::sync::Arc;

use openjet_engine::text::{Detokenizer, OutputEvent, OutputParser, OutputPart, Tokenizer};

use crate::api::stop::StopMatcher;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Thinking.
    Reasoning(String),
    /// The answer proper.
    Content(String),
    /// A tool call begins.
    ToolCall {
        /// Its place among the answer's calls.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments, which together are the JSON of an object.
    Arguments {
        /// The call.
        index: usize,
        /// The piece.
        piece: String,
    },
    /// A call that began is none: its arguments will never be whole. What was written of it follows as content.
    Broken {
        /// The call.
        index: usize,
    },
}

/// Turns one answer's tokens into [`Delta`]s.
#[derive(Debug)]
pub struct Writer {
    detokenizer: Detokenizer,
    /// Takes chat answers apart; without it all is content.
    parser: Option<OutputParser>,
    stops: StopMatcher,
    /// End the answer after its first tool call.
    one_call: bool,
    /// Calls that are whole.
    calls: usize,
    stopped: bool,
    stop_string: Option<String>,
}

impl Writer {
    /// A writer for an answer that ends at `stops`.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, parser: Option<OutputParser>, stops: Vec<String>, one_call: bool) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer, false),
            parser,
            stops: StopMatcher::new(stops),
            one_call,
            calls: 0,
            stopped: false,
            stop_string: None,
        }
    }

    /// Takes the next token.
    pub fn push(&mut self, token: u32) -> Vec<Delta> {
        match self.detokenizer.push(token) {
            Some(text) if !self.stopped => self.text(&text),
            _ => Vec::new(),
        }
    }

    /// There are no more tokens: what was held back comes out.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        if self.stopped {
            return out;
        }
        if let Some(text) = self.detokenizer.finish() {
            out.extend(self.text(&text));
        }
        if let Some(parser) = &mut self.parser {
            let events = parser.finish();
            self.events(events, &mut out);
        }
        let rest = self.stops.finish();
        if !rest.is_empty() && !self.stopped {
            out.push(Delta::Content(rest));
        }
        out
    }

    /// A stop string was found, or the one call that was asked for is whole: nothing more is wanted.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// The stop string that was found.
    #[must_use]
    pub fn stop_string(&self) -> Option<&str> {
        self.stop_string.as_deref()
    }

    /// Tool calls that are whole.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// The part of the answer that the next token belongs to, as far as is known.
    #[must_use]
    pub fn part(&self) -> OutputPart {
        self.parser.as_ref().map_or(OutputPart::Content, OutputParser::part)
    }

    fn text(&mut self, text: &str) -> Vec<Delta> {
        let mut out = Vec::new();
        match &mut self.parser {
            Some(parser) => {
                let events = parser.push(text);
                self.events(events, &mut out);
            }
            None => self.content(text, &mut out),
        }
        out
    }

    fn events(&mut self, events: Vec<OutputEvent>, out: &mut Vec<Delta>) {
        for event in events {
            if self.stopped {
                return;
            }
            match event {
                OutputEvent::Reasoning(text) => out.push(Delta::Reasoning(text)),
                OutputEvent::Content(text) => self.content(&text, out),
                OutputEvent::ToolCallStart { index, name } => out.push(Delta::ToolCall { index, name }),
                OutputEvent::ToolCallArguments { index, fragment } => {
                    out.push(Delta::Arguments { index, piece: fragment });
                }
                OutputEvent::ToolCallBroken { index } => out.push(Delta::Broken { index }),
                OutputEvent::ToolCallEnd { .. } => {
                    self.calls += 1;
                    self.stopped |= self.one_call;
                }
            }
        }
    }

    fn content(&mut self, text: &str, out: &mut Vec<Delta>) {
        let passed = self.stops.push(text);
        if !passed.text.is_empty() {
            out.push(Delta::Content(passed.text));
        }
        self.stopped |= passed.stopped.is_some();
        self.stop_string = passed.stopped;
    }
}
