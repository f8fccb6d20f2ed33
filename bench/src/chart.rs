//! Line charts as one SVG file that is readable on light and dark pages.

use std::fmt::Write;

/// How numbers lie along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By powers of two, from the smallest to the largest.
    Powers,
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is, for the legend.
    pub name: String,
    /// Points, ascending in x.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// What x is, with its unit.
    pub x: String,
    /// What y is, with its unit; y begins at zero.
    pub y: String,
    /// How x lies.
    pub scale: Scale,
    /// Its lines; those without points are left out.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 320.0;
/// Around the plotted area: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 40.0, 16.0, 48.0);
/// Lines of a legend are so far apart.
const LEGEND: f64 = 16.0;
/// One for each line of a chart, then again from the first; each stands out from white and from near-black.
const COLOURS: [&str; 8] = ["#2f7ed8", "#d9730d", "#2a9d62", "#c43d6b", "#8a63d2", "#8d8d00", "#1aa0a8", "#808890"];

const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 13px }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .back { fill: #ffffff }
  polyline { fill: none; stroke-width: 2; stroke-linejoin: round }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .grid { stroke: #3d444d }
    .back { fill: #0d1117 }
  }
";

/// Draws charts, two beside each other, with `caption` under them.
#[must_use]
pub fn svg(charts: &[Chart], caption: &str) -> String {
    let drawn: Vec<&Chart> =
        charts.iter().filter(|chart| chart.lines.iter().any(|line| !line.points.is_empty())).collect();
    let columns = drawn.len().clamp(1, 2);
    let legend = drawn.iter().map(|chart| chart.lines.len()).max().unwrap_or(0).div_ceil(2) as f64 * LEGEND;
    let cell = HEIGHT + legend;
    let (width, height) = (columns as f64 * WIDTH, drawn.len().div_ceil(columns) as f64 * cell + 28.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n"
    );
    for (i, chart) in drawn.iter().enumerate() {
        let (left, top) = ((i % columns) as f64 * WIDTH, (i / columns) as f64 * cell);
        let _ = writeln!(out, "<g transform=\"translate({left} {top})\">");
        draw(chart, &mut out);
        out.push_str("</g>\n");
    }
    let _ = writeln!(out, "<text x=\"16\" y=\"{}\">{}</text>\n</svg>", height - 10.0, escape(caption));
    out
}

fn draw(chart: &Chart, out: &mut String) {
    let (left, top, right, bottom) = MARGIN;
    let (inner_width, inner_height) = (WIDTH - left - right, HEIGHT - top - bottom);
    let points = || chart.lines.iter().flat_map(|line| line.points.iter().copied());
    let place = |x: f64| if chart.scale == Scale::Powers { x.max(f64::MIN_POSITIVE).log2() } else { x };
    let low = points().map(|p| place(p.0)).fold(f64::INFINITY, f64::min);
    let high = points().map(|p| place(p.0)).fold(f64::NEG_INFINITY, f64::max);
    let span = if high > low { high - low } else { 1.0 };
    let step = round_step(points().map(|p| p.1).fold(0.0, f64::max) / 5.0);
    let top_value = step * (points().map(|p| p.1).fold(0.0, f64::max) / step).ceil().max(1.0);
    let at = |x: f64, y: f64| {
        (left + (place(x) - low) / span * inner_width, top + inner_height - y / top_value * inner_height)
    };
    let _ = writeln!(out, "<text class=\"title\" x=\"{left}\" y=\"20\">{}</text>", escape(&chart.title));
    let mut value = 0.0;
    while value <= top_value * 1.001 {
        let y = at(0.0, value).1;
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            WIDTH - right
        );
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 4.0,
            short(value)
        );
        value += step;
    }
    let mut marks: Vec<f64> = points().map(|p| p.0).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let every = marks.len().div_ceil(10);
    for mark in marks.into_iter().step_by(every) {
        let (x, y) = at(mark, 0.0);
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", y + 18.0, short(mark));
    }
    let (middle_x, middle_y) = (left + inner_width / 2.0, top + inner_height / 2.0);
    let under = HEIGHT - bottom + 38.0;
    let _ = writeln!(out, "<text x=\"{middle_x}\" y=\"{under}\" text-anchor=\"middle\">{}</text>", escape(&chart.x));
    let _ = writeln!(
        out,
        "<text transform=\"translate(14 {middle_y}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escape(&chart.y)
    );
    for (i, line) in chart.lines.iter().filter(|line| !line.points.is_empty()).enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let places: Vec<(f64, f64)> = line.points.iter().map(|&(x, y)| at(x, y)).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(out, "<polyline stroke=\"{colour}\" points=\"{}\"/>", path.join(" "));
        for (x, y) in places {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let (x, y) = (left + (i % 2) as f64 * inner_width / 2.0, under + LEGEND * (1 + i / 2) as f64);
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>", y - 6.0);
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>", x + 18.0, escape(&line.name));
    }
}

/// The next of 1, 2, 5, 10, ... at or above a number.
fn round_step(at_least: f64) -> f64 {
    let power = 10f64.powf(at_least.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|&step| step >= at_least * 0.999).unwrap_or(power)
}

/// A number of an axis: thousands as `k` where they are whole, powers of two as 1K and so on.
fn short(value: f64) -> String {
    if value >= 1024.0 && (value / 1024.0).fract() == 0.0 {
        format!("{}K", value / 1024.0)
    } else if value >= 10_000.0 {
        format!("{}k", (value / 100.0).round() / 10.0)
    } else {
        format!("{}", (value * 1000.0).round() / 1000.0)
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_inside_and_names_are_escaped() {
        let line = Line { name: "a < b".into(), points: vec![(1024.0, 10.0), (4096.0, 37.0), (262_144.0, 20.0)] };
        let empty = Line { name: "nothing".into(), points: Vec::new() };
        let chart = Chart {
            title: "t".into(),
            x: "tokens".into(),
            y: "ms".into(),
            scale: Scale::Powers,
            lines: vec![empty, line],
        };
        let drawn = svg(&[chart], "a & b");
        assert!(drawn.contains("a &lt; b") && drawn.contains("a &amp; b") && !drawn.contains("nothing"));
        // Largest to the right; its value 37 of 40, the first above 37 in steps of 10.
        let points = drawn.split("points=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(points, Some("64.0,214.0 164.0,57.4 464.0,156.0"));
        assert!(drawn.contains(">256K<") && drawn.contains(">40<") && !drawn.contains(">50<"));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([0.3, 1.0, 7.4, 12.0, 180.0].map(round_step), [0.5, 1.0, 10.0, 20.0, 200.0]);
        assert_eq!([2048.0, 12_500.0, 0.25].map(short), ["2K", "12.5k", "0.25"]);
    }
}
