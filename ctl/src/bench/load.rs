//! Requests of the bench: prompts that no cache knows unless they are meant to be known.

use std::time::Instant;

use serde_json::json;

use super::http::Server;
use super::stream::Answer;

/// Makes prompts of ordinary tokens, the same in every bench, no two alike in one.
#[derive(Debug)]
pub(super) struct Prompts {
    vocab: usize,
    state: u64,
}

/// Tokens at both ends of a vocabulary that are not ordinary: bytes and control tokens.
const ENDS: usize = 300;

impl Prompts {
    pub(super) fn new(vocab: usize) -> Self {
        Self { vocab, state: 1 }
    }

    pub(super) fn next(&mut self, tokens: usize) -> Vec<u32> {
        let ordinary = self.vocab.saturating_sub(2 * ENDS).max(1) as u64;
        let first = if self.vocab > 2 * ENDS { ENDS as u64 } else { 0 };
        (0..tokens)
            .map(|_| {
                self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (first + (self.state >> 33) % ordinary) as u32
            })
            .collect()
    }
}

/// What is asked of every answer.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) server: Server,
    pub(super) temperature: f64,
}

impl Asker {
    /// Continues a prompt by so many tokens, with drafts of at most `drafts`; breaks off when `stop` is ready.
    pub(super) async fn ask(
        &self,
        prompt: &[u32],
        tokens: usize,
        drafts: Option<usize>,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<Answer> {
        let mut body = json!({
            "model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": self.temperature, "seed": 1,
            "ignore_eos": true, "stream": true, "return_token_ids": true,
        });
        if let Some(drafts) = drafts {
            body["draft"] = drafts.into();
        }
        let sent = Instant::now();
        let body = self.server.post("/v1/completions", &body).await?;
        Answer::read(body, sent, stop).await
    }
}

#[cfg(test)]
mod tests {
    use super::Prompts;

    #[test]
    fn prompts_are_ordinary_and_differ() {
        let mut prompts = Prompts::new(8192);
        let (a, b) = (prompts.next(100), prompts.next(100));
        assert!(a.iter().chain(&b).all(|&token| (300..7892).contains(&token)));
        assert!(a[..8] != b[..8] && a == Prompts::new(8192).next(100));
    }
}
