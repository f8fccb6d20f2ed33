//! Two results beside each other.

use std::io::Write;

use openjet_bench::{Spread, table};
use serde::Serialize;

use super::report::Report;
use crate::failure::Failure;
use crate::text;

/// One figure of both.
#[derive(Debug, Serialize)]
struct Line {
    what: String,
    a: Spread,
    b: Spread,
    /// Of the medians.
    ratio: f64,
    /// Whether the ranges have nothing in common.
    apart: bool,
}

pub(super) fn run(a: &Report, b: &Report, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let lines = lines(a, b);
    if json {
        return text::json(&lines, out);
    }
    writeln!(out, "A: {}, {}\nB: {}, {}\n", a.heading(), a.date, b.heading(), b.date)?;
    if lines.is_empty() {
        writeln!(out, "they have no figure in common")?;
        return Ok(());
    }
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            let note = if line.apart { "" } else { "ranges overlap" };
            let (a, b) = (format!("{:.2}", line.a), format!("{:.2}", line.b));
            [line.what.clone(), a, b, format!("{:.3}", line.ratio), note.to_owned()]
        })
        .collect();
    Ok(out.write_all(table(&["", "A", "B", "B / A", ""], &rows).as_bytes())?)
}

/// Every figure that both have.
fn lines(a: &Report, b: &Report) -> Vec<Line> {
    let theirs = figures(b);
    let both = figures(a).into_iter().filter_map(|(what, a)| {
        let b = theirs.iter().find(|figure| figure.0 == what)?.1;
        let apart = a.max < b.min || b.max < a.min;
        Some(Line { what, a, b, ratio: b.median / a.median.max(1e-9), apart })
    });
    both.collect()
}

/// Every figure of a result, by a name that says how it was measured.
fn figures(report: &Report) -> Vec<(String, Spread)> {
    let mut all = Vec::new();
    for d in &report.decode {
        let setting = format!("{} agents, {} tokens of context, {} drafts", d.agents, d.context, d.drafts);
        all.push((format!("{setting}: total tok/s"), d.total_tok_s));
        all.push((format!("{setting}: ms a step"), d.step_ms));
    }
    for p in &report.prompts {
        all.push((format!("a prompt of {}: tok/s", p.tokens), p.tok_s));
    }
    for f in &report.follow_ups {
        all.push((format!("{} follow-ups at {}: first token ms", f.agents, f.context), f.first_token_ms));
    }
    for b in &report.beside {
        let setting = format!("{} writing beside a prompt of {}", b.agents, b.prompt);
        all.push((format!("{setting}: share of the speed"), b.share));
        all.push((format!("{setting}: longest gap ms"), b.longest_gap_ms));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::report::{Prompt, Report};
    use super::*;

    #[test]
    fn figures_of_both_are_compared() {
        let with = |tokens, values: &[f64]| Report {
            prompts: vec![Prompt { tokens, tok_s: Spread::of(values), first_token_ms: Spread::default() }],
            ..Report::default()
        };
        let compared = lines(&with(512, &[90.0, 100.0, 110.0]), &with(512, &[120.0, 150.0, 160.0]));
        assert_eq!((compared.len(), compared[0].ratio, compared[0].apart), (1, 1.5, true));
        assert!(!lines(&with(512, &[90.0, 110.0]), &with(512, &[105.0, 120.0]))[0].apart);
        assert!(lines(&with(512, &[1.0]), &with(4096, &[1.0])).is_empty());
    }
}
