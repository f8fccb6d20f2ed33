//! From tokens to what a client sees: whole characters, stop strings.

use std::sync::Arc;

use openjet_engine::text::{Detokenizer, Tokenizer};

use crate::api::stop::StopMatcher;

/// Turns one answer's tokens into text.
#[derive(Debug)]
pub struct Writer {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    stopped: bool,
}

impl Writer {
    /// A writer for an answer that ends at `stops`.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>) -> Self {
        Self { detokenizer: Detokenizer::new(tokenizer, false), stops: StopMatcher::new(stops), stopped: false }
    }

    /// Takes the next token.
    pub fn push(&mut self, token: u32) -> String {
        match self.detokenizer.push(token) {
            Some(text) if !self.stopped => self.text(&text),
            _ => String::new(),
        }
    }

    /// There are no more tokens: what was held back comes out.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let mut out = self.detokenizer.finish().map_or_else(String::new, |text| self.text(&text));
        if !self.stopped {
            out += &self.stops.finish();
        }
        out
    }

    /// A stop string was found: nothing more is wanted.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    fn text(&mut self, text: &str) -> String {
        let passed = self.stops.push(text);
        self.stopped |= passed.stopped;
        passed.text
    }
}
