//! One prompt's continuation as JSON.

use openjet_engine::text::Tokenizer;
use serde_json::{Value, json};

use crate::api::answer::{Answer, Token};
use crate::api::logprobs;
use crate::api::writer::Delta;

/// One prompt and its continuation on the way.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) answer: Answer,
    /// The prompt's text, to stand before the continuation.
    pub(super) echo: Option<String>,
    /// When token ids are wanted.
    pub(super) prompt_ids: Option<Vec<u32>>,
    pub(super) wants_logprobs: bool,
    /// Characters of the text so far, for `text_offset`.
    pub(super) offset: usize,
}

impl Choice {
    /// An entry of `choices`, for the whole text or for a piece of it.
    pub(super) fn entry(
        &mut self,
        index: usize,
        text: &str,
        tokens: &[Token],
        finish: Option<&str>,
        tokenizer: &Tokenizer,
    ) -> Value {
        let mut choice = json!({ "index": index, "text": text, "logprobs": null, "finish_reason": finish });
        if self.wants_logprobs && !tokens.is_empty() {
            choice["logprobs"] = logprobs::completion(tokens, tokenizer, &mut self.offset);
        }
        if let Some(ids) = &self.prompt_ids {
            choice["prompt_token_ids"] = json!(ids);
            choice["token_ids"] = tokens.iter().map(|token| token.id).collect();
        }
        choice
    }
}

/// All text of a piece.
pub(super) fn text(deltas: Vec<Delta>) -> String {
    deltas
        .into_iter()
        .map(|delta| match delta {
            Delta::Content(text) | Delta::Reasoning(text) => text,
            // Completions are not taken apart, so there are none.
            Delta::ToolCall { .. } | Delta::Arguments { .. } | Delta::Broken { .. } => String::new(),
        })
        .collect()
}
