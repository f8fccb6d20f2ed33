//! What was measured, as JSON and as tables.

use openjet_bench::{Spread, table};
use serde::{Deserialize, Serialize};

/// A result. Members may be added.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Report {
    /// `serving`.
    pub(super) kind: String,
    pub(super) commit: Option<String>,
    pub(super) date: String,
    /// Version of the daemon.
    pub(super) daemon: Option<String>,
    pub(super) model: String,
    pub(super) model_bytes: u64,
    pub(super) model_hash: Option<String>,
    /// The card or processor.
    pub(super) backend: Option<String>,
    pub(super) driver: Option<String>,
    pub(super) temperature: f64,
    pub(super) runs: usize,
    /// Tokens that each agent writes.
    pub(super) tokens: usize,
    pub(super) decode: Vec<Decode>,
    pub(super) prompts: Vec<Prompt>,
    pub(super) follow_ups: Vec<FollowUp>,
    pub(super) beside: Vec<Beside>,
    /// Answers that were not the known text; none where no text was known.
    pub(super) wrong_texts: Option<usize>,
    pub(super) notes: Vec<String>,
}

/// Agents that write at the same time.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Decode {
    pub(super) agents: usize,
    /// Tokens of each prompt.
    pub(super) context: usize,
    /// The deepest draft that was allowed.
    pub(super) drafts: usize,
    /// Of all agents, while all of them write.
    pub(super) total_tok_s: Spread,
    /// Between the tokens of one agent.
    pub(super) step_ms: Spread,
    pub(super) tokens_per_step: Spread,
    /// Drafts verified and accepted, by their place, all runs together.
    pub(super) offered: Vec<u64>,
    pub(super) accepted: Vec<u64>,
}

/// A prompt that is read while nothing else is done.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Prompt {
    pub(super) tokens: usize,
    pub(super) tok_s: Spread,
    pub(super) first_token_ms: Spread,
}

/// The next request of conversations that were read before.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FollowUp {
    /// How many at the same time.
    pub(super) agents: usize,
    pub(super) context: usize,
    /// Tokens that are new in it, as asked; the daemon may read a few more again.
    pub(super) new_tokens: usize,
    pub(super) computed: Spread,
    pub(super) first_token_ms: Spread,
}

/// What becomes of writing agents while another's prompt is read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Beside {
    pub(super) agents: usize,
    pub(super) prompt: usize,
    pub(super) drafts: usize,
    /// One agent's, before.
    pub(super) alone_tok_s: Spread,
    /// One agent's, meanwhile.
    pub(super) meanwhile_tok_s: Spread,
    pub(super) share: Spread,
    pub(super) longest_gap_ms: Spread,
    /// Of the prompt, from its request.
    pub(super) first_token_ms: Spread,
}

impl Decode {
    /// Share of the drafts at each place that were accepted, of those that were verified.
    fn acceptance(&self) -> String {
        let shares = self.offered.iter().zip(&self.accepted).filter(|(offered, _)| **offered > 0);
        let shares: Vec<String> =
            shares.map(|(offered, accepted)| format!("{:.0}", 100.0 * *accepted as f64 / *offered as f64)).collect();
        shares.join(" ")
    }
}

impl Report {
    /// For a terminal.
    pub(super) fn describe(&self) -> String {
        let mut out = format!("{}\n\n", self.heading());
        let decode: Vec<_> = self
            .decode
            .iter()
            .map(|d| {
                [
                    d.agents.to_string(),
                    d.context.to_string(),
                    d.drafts.to_string(),
                    format!("{:.1}", d.total_tok_s),
                    format!("{:.2}", d.step_ms),
                    format!("{:.2}", d.tokens_per_step),
                    d.acceptance(),
                ]
            })
            .collect();
        let heading =
            ["agents", "context", "drafts", "total tok/s", "ms a step", "tokens a step", "% accepted by place"];
        out += &section(&heading, &decode);
        let prompts: Vec<_> = self
            .prompts
            .iter()
            .map(|p| [p.tokens.to_string(), format!("{:.0}", p.tok_s), format!("{:.1}", p.first_token_ms)])
            .collect();
        out += &section(&["prompt", "tok/s", "first token ms"], &prompts);
        let follow_ups: Vec<_> = self
            .follow_ups
            .iter()
            .map(|f| {
                [
                    f.agents.to_string(),
                    f.context.to_string(),
                    f.new_tokens.to_string(),
                    format!("{:.0}", f.computed),
                    format!("{:.1}", f.first_token_ms),
                ]
            })
            .collect();
        out += &section(&["follow-ups at once", "context", "new tokens", "read", "first token ms"], &follow_ups);
        let beside: Vec<_> = self
            .beside
            .iter()
            .map(|b| {
                [
                    b.agents.to_string(),
                    b.prompt.to_string(),
                    b.drafts.to_string(),
                    format!("{:.1}", b.alone_tok_s),
                    format!("{:.1}", b.meanwhile_tok_s),
                    format!("{:.0} %", b.share.map(|share| 100.0 * share)),
                    format!("{:.1}", b.longest_gap_ms),
                    format!("{:.0}", b.first_token_ms),
                ]
            })
            .collect();
        let heading = [
            "writing",
            "beside a prompt of",
            "drafts",
            "tok/s before",
            "meanwhile",
            "share",
            "longest gap ms",
            "prompt's first token ms",
        ];
        out += &section(&heading, &beside);
        if let Some(wrong) = self.wrong_texts {
            out += &format!("{wrong} answers were not the known text\n");
        }
        for note in &self.notes {
            out += &format!("note: {note}\n");
        }
        out
    }

    /// What was measured where, on a line.
    pub(super) fn heading(&self) -> String {
        let backend = self.backend.as_deref().unwrap_or("an unknown backend");
        let commit = self.commit.as_deref().map_or_else(String::new, |commit| format!(", commit {commit}"));
        let sampler =
            if self.temperature == 0.0 { "greedy".into() } else { format!("temperature {}", self.temperature) };
        let runs = if self.runs == 1 { "one run".into() } else { format!("median (range) of {} runs", self.runs) };
        format!("{} on {backend}{commit}; {sampler}, {} tokens an agent, {runs}", self.model, self.tokens)
    }
}

fn section<const N: usize>(heading: &[&str; N], rows: &[[String; N]]) -> String {
    if rows.is_empty() { String::new() } else { format!("{}\n", table(heading, rows)) }
}
