//! Answers of the Messages API as JSON.

use serde_json::{Value, json};

use crate::api::answer::{End, EndReason};
use crate::api::conversation::blocks::Block;
use crate::api::head::new_id_after;
use crate::api::usage::Usage;

/// What stands for a signature of the thinking: it is not signed, and what comes back is not checked.
pub(super) const SIGNATURE: &str = "unsigned";

/// A whole answer.
pub(super) fn message(id: &str, model: &str, blocks: Vec<Block>, end: Option<&End>) -> Value {
    let block = |block: Block| match block {
        Block::Reasoning(text) => json!({ "type": "thinking", "thinking": text, "signature": SIGNATURE }),
        Block::Content(text) => json!({ "type": "text", "text": text }),
        Block::Call { name, arguments } => {
            // The parser makes whole calls of valid JSON only.
            let input: Value = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
            json!({ "type": "tool_use", "id": new_id_after("toolu_"), "name": name, "input": input })
        }
    };
    let used = end.map(|end| end.usage.clone()).unwrap_or_default();
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks.into_iter().map(block).collect::<Vec<_>>(),
        "stop_reason": end.map(stop_reason),
        "stop_sequence": end.and_then(|end| end.stop_string.as_deref()),
        "usage": usage(&used),
    })
}

/// Why an answer ended.
pub(super) fn stop_reason(end: &End) -> &'static str {
    match end.reason {
        EndReason::Stop if end.stop_string.is_some() => "stop_sequence",
        EndReason::Stop => "end_turn",
        EndReason::Length => "max_tokens",
        EndReason::ToolCalls => "tool_use",
    }
}

/// `usage`: what was read from the cache does not count as input.
pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}
