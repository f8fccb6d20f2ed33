//! What a request used, in the forms that clients read.

use std::time::Duration;

use serde_json::{Value, json};

/// Counts and times of one request.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, not computed again.
    pub cached_tokens: usize,
    /// Tokens generated, the end token not counted.
    pub completion_tokens: usize,
    /// Of these, before the end of the thinking.
    pub reasoning_tokens: usize,
    /// Draft tokens verified and accepted.
    pub drafts: (usize, usize),
    /// From submission to an agent.
    pub queued: Duration,
    /// From an agent to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

impl Usage {
    /// `usage` of the `OpenAI` API, for all of a request's texts together.
    #[must_use]
    pub fn to_json(all: &[Self]) -> Value {
        let sum = |count: fn(&Self) -> usize| all.iter().map(count).sum::<usize>();
        let (prompt, completion) = (sum(|u| u.prompt_tokens), sum(|u| u.completion_tokens));
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": { "cached_tokens": sum(|u| u.cached_tokens) },
            "completion_tokens_details": { "reasoning_tokens": sum(|u| u.reasoning_tokens) },
        })
    }

    /// `timings` as llama-server names them, in milliseconds.
    #[must_use]
    pub fn timings(&self) -> Value {
        let computed = self.prompt_tokens - self.cached_tokens.min(self.prompt_tokens);
        let (prompt_ms, predicted_ms) = (self.prefill.as_secs_f64() * 1e3, self.decode.as_secs_f64() * 1e3);
        json!({
            "cache_n": self.cached_tokens,
            "prompt_n": computed,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": ratio(prompt_ms, computed as f64),
            "prompt_per_second": ratio(computed as f64 * 1e3, prompt_ms),
            "predicted_n": self.completion_tokens,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": ratio(predicted_ms, self.completion_tokens as f64),
            "predicted_per_second": self.tokens_per_second(),
            "draft_n": self.drafts.0,
            "draft_n_accepted": self.drafts.1,
        })
    }

    /// Tokens a second after the first token.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        ratio(self.completion_tokens.saturating_sub(1) as f64, self.decode.as_secs_f64())
    }
}

/// `a / b`, 0 where `b` is 0: JSON has no other numbers.
fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
