//! `openjetctl top`: the daemon and its agents in a terminal, several times a second.

mod history;
mod lines;
mod view;
mod work;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, anyhow};
use openjet_proto::control::DaemonStatus;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::cli::TopArgs;
use crate::client::Client;
use crate::failure::Failure;
use history::History;
use view::{Look, View};
use work::Work;

/// Time between two looks at the daemon.
const PERIOD: Duration = Duration::from_millis(250);

pub(crate) fn run(client: &Client, args: &TopArgs, json: bool) -> Result<(), Failure> {
    let first: DaemonStatus = client.get("/v1/status")?;
    if !json && (args.once || !std::io::stdout().is_terminal()) {
        return Err(anyhow!("top needs a terminal; with --json it prints an object a line for programs").into());
    }
    let work = args.run.map(|agents| Work::start(agents as usize, &first.listen)).transpose()?;
    if json {
        return lines::print(client, first, args.once, work.as_ref());
    }
    let colours = !args.no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut terminal = ratatui::try_init().context("the terminal can't be used")?;
    let shown = show(client, first, &mut terminal, Look { colours }, work.as_ref());
    ratatui::restore();
    drop(work);
    shown
}

/// Shows until a key ends it, or the daemon is gone.
fn show(
    client: &Client,
    mut status: DaemonStatus,
    terminal: &mut ratatui::DefaultTerminal,
    look: Look,
    work: Option<&Work>,
) -> Result<(), Failure> {
    let mut history = History::default();
    loop {
        history.add(&status);
        let notes = work.map(Work::notes).unwrap_or_default();
        let view = View { status: &status, history: &history, notes: &notes, look };
        terminal.draw(|frame| view.draw(frame)).context("the terminal can't be written to")?;
        if event::poll(PERIOD)? && ends(&event::read()?) {
            return Ok(());
        }
        status = client.get("/v1/status")?;
    }
}

/// Whether a key means the end.
fn ends(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
