//! One request that is watched token by token.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;

/// What came of a request.
#[derive(Debug)]
pub(super) struct Answer {
    /// When it was sent.
    pub(super) sent: Instant,
    /// When tokens came, and how many: one entry a step.
    pub(super) steps: Vec<(Instant, usize)>,
    /// The tokens.
    pub(super) ids: Vec<u32>,
    /// The daemon's own times; none of a request that was broken off.
    pub(super) timings: Option<Timings>,
}

/// As the daemon tells them.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Timings {
    /// Prompt tokens that were computed.
    pub(super) prompt_n: usize,
    /// From a slot to the first token.
    pub(super) prompt_ms: f64,
}

impl Answer {
    /// Reads an answer until it ends or `stop` is ready.
    pub(super) async fn read(
        mut body: Incoming,
        sent: Instant,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<Self> {
        let mut answer = Self { sent, steps: Vec::new(), ids: Vec::new(), timings: None };
        let mut rest = Vec::new();
        tokio::pin!(stop);
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = &mut stop => return Ok(answer),
            };
            let Some(frame) = frame else { break };
            let at = Instant::now();
            rest.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                if let Some(data) = line.trim_ascii().strip_prefix(b"data: ").filter(|data| *data != b"[DONE]") {
                    answer.take(&serde_json::from_slice(data).context("an event of the stream is no JSON")?, at)?;
                }
            }
        }
        if answer.timings.is_none() {
            bail!("the daemon broke off an answer after {} tokens", answer.ids.len());
        }
        Ok(answer)
    }

    fn take(&mut self, event: &Value, at: Instant) -> anyhow::Result<()> {
        if let Some(message) = event["error"]["message"].as_str() {
            bail!("the daemon ended a request: {message}");
        }
        let ids = event["choices"][0]["token_ids"].as_array().map_or(&[][..], |ids| ids);
        if !ids.is_empty() {
            self.ids.extend(ids.iter().filter_map(|id| Some(id.as_u64()? as u32)));
            self.steps.push((at, ids.len()));
        }
        if !event["timings"].is_null() {
            self.timings = Some(Timings::deserialize(&event["timings"]).context("the answer's timings")?);
        }
        Ok(())
    }

    /// From sending it to the first token.
    pub(super) fn first_token(&self) -> Duration {
        self.steps.first().map_or(Duration::ZERO, |step| step.0 - self.sent)
    }

    /// Tokens that came after `from` and until `to`.
    pub(super) fn tokens_between(&self, from: Instant, to: Instant) -> usize {
        self.steps.iter().filter(|step| step.0 > from && step.0 <= to).map(|step| step.1).sum()
    }

    /// Times between steps that ended after `from` and until `to`.
    pub(super) fn gaps_between(&self, from: Instant, to: Instant) -> Vec<Duration> {
        let pairs = self.steps.windows(2).filter(|pair| pair[1].0 > from && pair[1].0 <= to);
        pairs.map(|pair| pair[1].0 - pair[0].0).collect()
    }
}
