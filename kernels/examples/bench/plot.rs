//! The curves as a picture.

use openjet_bench::chart::{Chart, Line, Scale, svg};

use crate::report::{Report, StepTime};

/// Charts of what was measured.
pub(crate) fn draw(report: &Report) -> String {
    let limits = report.limits.as_ref();
    let caption = format!(
        "{}, commit {}, {}{}",
        report.card.description,
        report.commit,
        report.date.split('T').next().unwrap_or_default(),
        limits.map_or_else(String::new, |limits| format!(
            "; reads {:.0} GB/s, multiplies {:.0} TFLOP/s",
            limits.read_gb_s,
            limits.tflops()
        ))
    );
    svg(&[matmuls(report), attention(report), agents(report), agent_steps(report), contexts(report)], &caption)
}

/// Lines by name, in the order in which they first come.
fn lines(points: impl Iterator<Item = (String, f64, f64)>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (name, x, y) in points {
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((x, y)),
            None => lines.push(Line { name, points: vec![(x, y)] }),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    lines
}

fn matmuls(report: &Report) -> Chart {
    let common = ["Q4_K gate and up", "Q4_K down", "Q6_K down", "Q6_K head", "Q8_0 DeltaNet in"];
    let ops = report.ops.iter().filter(|op| op.group == "matmul" && common.contains(&op.what.as_str()));
    let points = ops.filter_map(|op| Some((op.what.clone(), op.rows as f64, op.gb_s?.median)));
    Chart {
        title: "Matmuls of a decode step".into(),
        x: "rows".into(),
        y: "GB/s of weights".into(),
        scale: Scale::Powers,
        lines: lines(points),
    }
}

fn attention(report: &Report) -> Chart {
    let ops = report.ops.iter().filter(|op| op.group == "attention" && op.what.starts_with("Q8_0 decode"));
    let points = ops.filter_map(|op| {
        let name = format!("agents: {}, rows of each: {}", op.agents?, op.rows);
        Some((name, op.context? as f64, op.gb_s?.median))
    });
    Chart {
        title: "Attention of one layer, q8_0 cells".into(),
        x: "tokens of context".into(),
        y: "GB/s of cells".into(),
        scale: Scale::Powers,
        lines: lines(points),
    }
}

fn short(report: &Report) -> impl Iterator<Item = &StepTime> {
    report.steps.iter().filter(|step| step.context == 1024)
}

fn agents(report: &Report) -> Chart {
    let points = short(report).map(|s| (format!("drafts: {}", s.drafts), s.agents as f64, s.total_tok_s));
    Chart {
        title: "All agents together, 1,024 tokens of context".into(),
        x: "agents".into(),
        y: "tok/s".into(),
        scale: Scale::Linear,
        lines: lines(points),
    }
}

fn agent_steps(report: &Report) -> Chart {
    let points = short(report).map(|s| (format!("drafts: {}", s.drafts), s.agents as f64, s.ms.median));
    Chart {
        title: "A step, 1,024 tokens of context".into(),
        x: "agents".into(),
        y: "ms".into(),
        scale: Scale::Linear,
        lines: lines(points),
    }
}

fn contexts(report: &Report) -> Chart {
    let steps = report.steps.iter().filter(|s| s.drafts == 0 || s.drafts == 2);
    let steps =
        steps.filter(|s| report.steps.iter().any(|o| o.context > 1024 && (o.agents, o.drafts) == (s.agents, s.drafts)));
    let points = steps.map(|s| (format!("agents: {}, drafts: {}", s.agents, s.drafts), s.context as f64, s.ms.median));
    Chart {
        title: "A step at long contexts".into(),
        x: "tokens of context of each agent".into(),
        y: "ms".into(),
        scale: Scale::Powers,
        lines: lines(points),
    }
}
