//! The curves as a picture.

use openjet_bench::Spread;
use openjet_bench::chart::{Chart, Line, Scale, svg};

use super::report::{Decode, Report};

/// Total speed and step time over agents and over drafts.
pub(super) fn draw(report: &Report) -> String {
    let short = report.decode.iter().map(|d| d.context).min().unwrap_or(0);
    let decode: Vec<&Decode> = report.decode.iter().filter(|d| d.context == short).collect();
    let by_agents = |title: &str, y: &str, value: fn(&Decode) -> Spread| Chart {
        title: title.into(),
        x: "agents".into(),
        y: y.into(),
        scale: Scale::Linear,
        lines: lines(&decode, |d| format!("drafts: {}", d.drafts), |d| d.agents, value),
    };
    let by_drafts = |title: &str, y: &str, value: fn(&Decode) -> Spread| Chart {
        title: title.into(),
        x: "deepest draft".into(),
        y: y.into(),
        scale: Scale::Linear,
        lines: lines(&decode, |d| format!("agents: {}", d.agents), |d| d.drafts, value),
    };
    let charts = [
        by_agents("All agents together", "tok/s", |d| d.total_tok_s),
        by_agents("A step", "ms", |d| d.step_ms),
        by_drafts("All agents together, by drafts", "tok/s", |d| d.total_tok_s),
        by_drafts("A step, by drafts", "ms", |d| d.step_ms),
    ];
    let day = report.date.split('T').next().unwrap_or_default();
    svg(&charts, &format!("{}; prompts of {short} tokens; {day}", report.heading()))
}

/// Lines by name, in the order in which they first come.
fn lines(
    decode: &[&Decode],
    name: impl Fn(&Decode) -> String,
    x: impl Fn(&Decode) -> usize,
    y: impl Fn(&Decode) -> Spread,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for d in decode {
        let (name, point) = (name(d), (x(d) as f64, y(d).median));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    lines
}
