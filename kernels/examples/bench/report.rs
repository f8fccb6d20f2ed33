//! What was measured, as JSON and as tables.

use openjet_bench::{Spread, table};
use serde::Serialize;

use crate::probe::Limits;

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) kind: &'static str,
    pub(crate) commit: String,
    pub(crate) version: &'static str,
    pub(crate) date: String,
    pub(crate) card: Card,
    pub(crate) limits: Option<Limits>,
    /// Microseconds of a program that does nothing.
    pub(crate) launch_us: f64,
    pub(crate) ops: Vec<Measured>,
    pub(crate) model: Option<ModelFacts>,
    pub(crate) steps: Vec<StepTime>,
    pub(crate) prompts: Vec<PromptTime>,
}

/// The card and its driver.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Card {
    pub(crate) description: String,
    pub(crate) uuid: Option<String>,
    pub(crate) driver: Option<String>,
}

/// The model of whole steps.
#[derive(Debug, Serialize)]
pub(crate) struct ModelFacts {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) load_s: f64,
}

/// An op, or a few that belong together.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) group: &'static str,
    pub(crate) what: String,
    pub(crate) rows: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agents: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<usize>,
    pub(crate) us: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gb_s: Option<Spread>,
    /// Of the card's measured read bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tflops: Option<Spread>,
    /// Of what its tensor units were measured to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tensor_share: Option<f64>,
}

/// Steps of one setting.
#[derive(Debug, Serialize)]
pub(crate) struct StepTime {
    pub(crate) agents: usize,
    pub(crate) context: usize,
    pub(crate) drafts: usize,
    pub(crate) ms: Spread,
    pub(crate) tokens_per_step_and_agent: f64,
    pub(crate) total_tok_s: f64,
}

/// Passes of a prompt.
#[derive(Debug, Serialize)]
pub(crate) struct PromptTime {
    /// Tokens before the pass.
    pub(crate) context: usize,
    pub(crate) rows: usize,
    pub(crate) ms: Spread,
    pub(crate) tok_s: f64,
}

impl Measured {
    pub(crate) fn new(group: &'static str, what: impl Into<String>, rows: usize, us: Spread) -> Self {
        Self {
            group,
            what: what.into(),
            rows,
            agents: None,
            context: None,
            us,
            gb_s: None,
            share: None,
            tflops: None,
            tensor_share: None,
        }
    }

    /// For so many agents at so many tokens.
    pub(crate) fn at(mut self, agents: usize, context: Option<usize>) -> Self {
        (self.agents, self.context) = (Some(agents), context);
        self
    }

    /// The bytes that it has to move.
    pub(crate) fn bytes(mut self, bytes: f64, limits: Option<&Limits>) -> Self {
        let rate = self.us.map(|us| bytes / us / 1e3);
        self.gb_s = Some(rate);
        self.share = limits.map(|limits| rate.median / limits.read_gb_s);
        self
    }

    /// The floating-point operations that it has to do.
    pub(crate) fn flops(mut self, flops: f64, limits: Option<&Limits>) -> Self {
        let rate = self.us.map(|us| flops / us / 1e6);
        self.tflops = Some(rate);
        self.tensor_share = limits.map(|limits| rate.median / limits.tflops());
        self
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share))
}

/// The line above those of ops.
pub(crate) fn heading() -> String {
    line(["", "rows", "agents", "context", "us", "GB/s", "of read", "TFLOP/s", "of tensor"].map(str::to_owned))
}

/// A line for an op.
pub(crate) fn op(op: &Measured) -> String {
    let number = |n: Option<usize>| n.map_or_else(String::new, |n| n.to_string());
    let rate = |spread: Option<Spread>| spread.map_or_else(String::new, |spread| format!("{:.1}", spread.median));
    line([
        format!("{}: {}", op.group, op.what),
        op.rows.to_string(),
        number(op.agents),
        number(op.context),
        format!("{:.1}", op.us),
        rate(op.gb_s),
        percent(op.share),
        rate(op.tflops),
        percent(op.tensor_share),
    ])
}

/// Columns as wide as they may get, since lines come one by one.
fn line([what, rows, agents, context, us, gb, share, tflops, tensor]: [String; 9]) -> String {
    format!("{what:<42} {rows:>4} {agents:>6} {context:>7} {us:>22} {gb:>8} {share:>7} {tflops:>8} {tensor:>9}")
}

/// A table of steps.
pub(crate) fn steps(all: &[StepTime]) -> String {
    let rows: Vec<[String; 6]> = all
        .iter()
        .map(|step| {
            [
                step.agents.to_string(),
                step.context.to_string(),
                step.drafts.to_string(),
                format!("{:.2}", step.ms),
                format!("{:.2}", step.tokens_per_step_and_agent),
                format!("{:.0}", step.total_tok_s),
            ]
        })
        .collect();
    table(&["agents", "context", "drafts", "ms a step", "tokens a step and agent", "total tok/s"], &rows)
}

/// A table of a prompt's passes.
pub(crate) fn prompts(all: &[PromptTime]) -> String {
    let rows: Vec<[String; 4]> = all
        .iter()
        .map(|pass| {
            [pass.context.to_string(), pass.rows.to_string(), format!("{:.1}", pass.ms), format!("{:.0}", pass.tok_s)]
        })
        .collect();
    table(&["context", "rows", "ms a pass", "tok/s"], &rows)
}
