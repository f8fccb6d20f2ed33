//! What stands where on the screen.

use openjet_proto::control::DaemonStatus;
use openjet_proto::device::DeviceStatus;
use openjet_proto::{AgentState, AgentStatus, EngineStatus, Health};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::history::History;
use crate::text;

/// Heights of a curve's columns.
const CURVE: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How it looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Without them, weight and words alone tell things apart.
    pub(super) colours: bool,
}

/// All that is shown.
pub(super) struct View<'a> {
    pub(super) status: &'a DaemonStatus,
    pub(super) history: &'a History,
    /// Lines about the agents that `--run` has started.
    pub(super) notes: &'a [String],
    pub(super) look: Look,
}

impl View<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let head = self.head();
        let foot = self.foot();
        let agents = self.status.engine.as_ref().map(|engine| &engine.agents[..]).unwrap_or_default();
        let places = Layout::vertical([
            Constraint::Length(head.len() as u16),
            Constraint::Min(0),
            Constraint::Length(foot.len() as u16),
        ]);
        let [top, middle, bottom] = places.areas(frame.area());
        frame.render_widget(Paragraph::new(head), top);
        frame.render_widget(Paragraph::new(foot), bottom);
        // Every agent has its two lines; what is left over is for their texts.
        let each = (middle.height as usize / agents.len().max(1)).max(2) as u16;
        for (place, agent) in agents.iter().enumerate() {
            let y = middle.y + place as u16 * each;
            if y + 1 < middle.bottom() {
                let area = Rect { y, height: each.min(middle.bottom() - y), ..middle };
                self.agent(frame, area, agent);
            }
        }
    }

    fn head(&self) -> Vec<Line<'_>> {
        let status = self.status;
        let (health, colour) = match &status.health {
            Health::Loading { detail } => (format!("loading: {detail}"), Color::Yellow),
            Health::Ready => ("ready".to_owned(), Color::Green),
            Health::Draining => ("draining".to_owned(), Color::Yellow),
            Health::Unloaded { .. } => ("no model is loaded".to_owned(), Color::Yellow),
            Health::Failed { reason } => (format!("failed: {reason}"), Color::Red),
        };
        let model = status.model.as_ref().map_or("", |model| &model.name);
        let mut lines = vec![Line::from(vec![
            Span::styled("OpenJet ", self.bold()),
            Span::raw(format!("{model}  ")),
            Span::styled(health, self.colour(colour)),
            Span::raw(format!("  http://{}  up {}", status.listen, text::duration(status.uptime_s))),
        ])];
        lines.extend(status.change.iter().map(|change| Line::styled(change.clone(), self.colour(Color::Yellow))));
        let Some(engine) = &status.engine else { return lines };
        lines.push(Line::styled(engine.backend.clone(), self.faint()));
        lines.extend(status.device.iter().map(|device| Line::raw(describe(device))));
        lines.push(self.totals(engine));
        lines.push(self.room(engine));
        lines.push(Line::raw(""));
        lines
    }

    fn totals(&self, engine: &EngineStatus) -> Line<'_> {
        let speed: f64 = engine.agents.iter().map(|agent| agent.tokens_per_second_now).sum();
        let read = engine.prompt_tokens_computed + engine.prompt_tokens_cached;
        Line::from(vec![
            Span::styled(format!("{speed:7.1} tok/s "), self.bold()),
            Span::styled(curve(&self.history.of_all(16)), self.colour(Color::Cyan)),
            Span::raw(format!(
                "  {} written  {} read, {} cached",
                text::count(engine.tokens_generated),
                text::count(read),
                share(engine.prompt_tokens_cached, read)
            )),
        ])
    }

    fn room(&self, engine: &EngineStatus) -> Line<'_> {
        let used = engine.pages_total - engine.pages_free.min(engine.pages_total);
        Line::raw(format!(
            "{:7} requests  {} waiting  pages {used}/{}",
            self.status.requests, engine.queued, engine.pages_total
        ))
    }

    fn foot(&self) -> Vec<Line<'_>> {
        let mut lines: Vec<_> = self.notes.iter().map(|note| Line::raw(note.clone())).collect();
        lines.push(Line::styled("q ends this", self.faint()));
        lines
    }

    fn agent(&self, frame: &mut Frame<'_>, area: Rect, agent: &AgentStatus) {
        let (state, colour) = match agent.state {
            AgentState::Idle => ("idle", Color::DarkGray),
            AgentState::Sharing => ("waiting", Color::Yellow),
            AgentState::Prefill => ("reading", Color::Yellow),
            AgentState::Decode => ("writing", Color::Green),
        };
        let width = usize::from(area.width);
        let (offered, accepted): (u64, u64) = (agent.drafts_offered.iter().sum(), agent.drafts_accepted.iter().sum());
        let first = Line::from(vec![
            Span::styled(format!("{:>2} {state:<8}", agent.id), self.colour(colour).add_modifier(Modifier::BOLD)),
            Span::raw(format!("{:6.1} tok/s ", agent.tokens_per_second_now)),
            Span::styled(curve(&self.history.of(agent.id, (width / 8).min(24))), self.colour(Color::Cyan)),
        ]);
        let second = format!(
            "   context {}/{} {}  cached {}  drafts {}",
            text::count(agent.context_tokens as u64),
            text::count(agent.context_limit as u64),
            bar(agent.context_tokens, agent.context_limit, width / 8),
            share(agent.cached_tokens as u64, agent.prompt_tokens as u64),
            share(accepted, offered)
        );
        let first = match task(agent) {
            Some(task) => first + Span::raw(format!("  {task}")),
            None => first,
        };
        let lines = vec![first, Line::raw(second)];
        frame.render_widget(Paragraph::new(lines), Rect { height: area.height.min(2), ..area });
        if area.height <= 2 {
            return;
        }
        let room = Rect { y: area.y + 2, height: area.height - 2, x: area.x + 3, width: area.width.saturating_sub(3) };
        // One line stays free, to tell the agents apart.
        let room = Rect { height: if room.height > 1 { room.height - 1 } else { 1 }, ..room };
        let tail =
            end_of(agent.tail.as_deref().unwrap_or_default(), usize::from(room.width) * usize::from(room.height));
        frame.render_widget(Paragraph::new(tail).style(self.faint()).wrap(Wrap { trim: false }), room);
    }

    fn bold(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn faint(&self) -> Style {
        if self.look.colours { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    fn colour(&self, colour: Color) -> Style {
        if self.look.colours { Style::new().fg(colour) } else { Style::new() }
    }
}

/// What an agent works on, and how far its prompt is read.
fn task(agent: &AgentStatus) -> Option<String> {
    let reading = agent.state == AgentState::Prefill && agent.prompt_done < agent.prompt_tokens;
    let progress = reading.then(|| format!("{} of {} read", agent.prompt_done, agent.prompt_tokens));
    let task = agent.task.as_deref().or(agent.session.as_deref()).map(|task| plain(task, 200));
    let words: Vec<_> = progress.into_iter().chain(task).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn describe(device: &DeviceStatus) -> String {
    let mut words = vec![device.name.clone()];
    words.extend(device.load.map(|load| format!("{load}% busy")));
    let memory = device.memory_used.zip(device.memory_total);
    words.extend(memory.map(|(used, total)| format!("{} of {}", text::bytes(used), text::bytes(total))));
    words.extend(device.power.map(|watts| format!("{watts:.0} W")));
    words.extend(device.clock.map(|clock| format!("{clock} MHz")));
    words.extend(device.temperature.map(|degrees| format!("{degrees} °C")));
    words.join("  ")
}

fn share(part: u64, whole: u64) -> String {
    text::or_dash((part * 100).checked_div(whole).map(|percent| format!("{percent}%")))
}

/// A bar of `width` columns.
fn bar(part: usize, whole: usize, width: usize) -> String {
    let full = (part * width).div_ceil(whole.max(1)).min(width);
    format!("[{}{}]", "#".repeat(full), ".".repeat(width - full))
}

/// A curve of one line, as high as its highest value.
fn curve(values: &[u64]) -> String {
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let column = |&value: &u64| CURVE[(value * (CURVE.len() as u64 - 1)).div_ceil(most) as usize];
    values.iter().map(column).collect()
}

/// The end of a text that fills so many columns, on one line: what a model writes must not steer the terminal.
fn end_of(text: &str, columns: usize) -> String {
    let skip = text.chars().count().saturating_sub(columns);
    plain(&text.chars().skip(skip).collect::<String>(), columns)
}

fn plain(text: &str, most: usize) -> String {
    let printable = |c: char| if c.is_whitespace() { ' ' } else { c };
    text.chars().map(printable).filter(|c| !c.is_control()).take(most).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn status(agents: usize) -> DaemonStatus {
        let states = ["decode", "prefill", "idle", "decode"];
        let agent = |id: usize| {
            serde_json::json!({
                "id": id, "state": states[id % 4], "request": 7, "session": "s", "task": format!("task {id}"),
                "context_tokens": 12_000, "context_limit": 32_768, "prompt_done": 64, "prompt_tokens": 128, "cached_tokens": 32,
                "generated_tokens": 20, "tokens_per_second": 40.0,
                "tokens_per_second_now": if id == 0 { 41.26 } else { 0.0 }, "pages": 2, "pages_shared": 0, "drafts_offered": [10, 10],
                "drafts_accepted": [9, 6], "first_token_ms": 12.0, "queued_ms": 0.0,
                "tail": format!("def f{id}(a, b):\n    return a + b\u{1b}[31m"),
            })
        };
        serde_json::from_value(serde_json::json!({
            "version": "1", "pid": 1, "uptime_s": 61.0, "listen": "127.0.0.1:18080", "health": {"state": "ready"}, "requests": 4,
            "model": {"name": "a-model", "file": null, "bytes": 1, "context": 32_768, "vocab": 9, "draft_head": true,
                "parameters": 1, "blocks": 1, "attention_blocks": 1, "types": []},
            "memory": null,
            "device": {"name": "GPU", "memory_total": 2048, "memory_used": 1024, "bandwidth": null, "load": 87, "power": 300.0,
                "power_limit": null, "temperature": 60, "clock": 1980, "memory_clock": null},
            "engine": {
                "health": {"state": "ready"}, "backend": "a device", "queued": 3, "queue": [],
                "agents": (0..agents).map(agent).collect::<Vec<_>>(), "pages_total": 512, "pages_free": 500,
                "pool": [], "resting": 0, "steps": 9, "steps_per_second": 9.0, "tokens_generated": 1234, "prompt_tokens_computed": 30, "prompt_tokens_cached": 10, "requests_finished": 1,
                "requests_cancelled": 0
            }
        }))
        .unwrap()
    }

    fn screen(width: u16, height: u16, agents: usize, colours: bool) -> (Vec<String>, bool) {
        let (status, mut history) = (status(agents), History::default());
        (0..30).for_each(|_| history.add(&status));
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let view = View { status: &status, history: &history, notes: &["a note".into()], look: Look { colours } };
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines = buffer.content.chunks(width.into());
        let coloured = buffer.content.iter().any(|cell| cell.fg != Color::Reset);
        (lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>()).collect(), coloured)
    }

    #[test]
    fn four_agents_fit_on_the_smallest_terminal_with_the_ends_of_their_texts() {
        for (width, height) in [(80, 24), (160, 50)] {
            let (lines, _) = screen(width, height, 4, true);
            let text = lines.join("\n");
            for part in [
                "a-model",
                "ready",
                "87% busy",
                "1.0 KiB of 2.0 KiB  300 W  1980 MHz  60 °C",
                "41.3 tok/s",
                "3 waiting",
                "pages 12/512",
                "cached 25%",
                "drafts 75%",
                "a note",
                "q ends",
            ] {
                assert!(text.contains(part), "no {part:?} at {width} columns in\n{text}");
            }
            for id in 0..4 {
                assert!(text.contains(&format!(" {id} ")) && text.contains(&format!("task {id}")), "{text}");
                assert!(text.contains(&format!("def f{id}(a, b):     return a + b[31m")), "{text}");
            }
            assert!(
                text.contains("64 of 128 read") && text.contains("[####......]")
                    || text.contains("[########............]"),
                "{text}"
            );
        }
        // More than there is room for, and next to no room: nothing falls over.
        screen(80, 24, 40, true);
        screen(3, 2, 4, true);
    }

    #[test]
    fn without_colours_there_are_none() {
        assert!(screen(80, 24, 4, true).1);
        assert!(!screen(80, 24, 4, false).1);
    }
}
