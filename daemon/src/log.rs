//! Logs: to standard error, or to the journal where that is what reads it.

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::journal::Journal;

/// What is logged now can be changed through this, once logging has started.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// The target of audit lines, which are logged whatever the filter says.
pub const AUDIT: &str = "audit";

/// Starts logging what `filter` lets through.
///
/// # Errors
/// When the filter can't be read, or logging has been started before.
pub fn start(filter: &str) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(parse(filter).map_err(|error| anyhow::anyhow!(error))?);
    let lines = match Journal::of_stderr() {
        Some(journal) => journal.boxed(),
        None => {
            let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_target(false);
            lines.with_ansi(stderr().is_terminal()).boxed()
        }
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    // Logging starts once, so nothing is there yet.
    let _first = FILTER.set(handle);
    Ok(())
}

/// What is logged now.
#[must_use]
pub fn current() -> String {
    let filter = FILTER.get().and_then(|handle| handle.with_current(ToString::to_string).ok());
    let shown = filter.unwrap_or_default();
    shown.split(',').filter(|part| !part.starts_with(AUDIT)).collect::<Vec<_>>().join(",")
}

/// Logs what `filter` lets through from now on.
///
/// # Errors
/// When the filter can't be read, or nothing is logged at all.
pub fn set(filter: &str) -> Result<(), String> {
    let filter = parse(filter)?;
    let handle = FILTER.get().ok_or("this process does not log")?;
    handle.reload(filter).map_err(|error| error.to_string())
}

fn parse(filter: &str) -> Result<EnvFilter, String> {
    let error = |error: &dyn std::fmt::Display| format!("the setting `log` is not a log filter: {filter}: {error}");
    let audit = format!("{AUDIT}=info").parse().map_err(|e| error(&e))?;
    Ok(EnvFilter::try_new(filter).map_err(|e| error(&e))?.add_directive(audit))
}

/// Says why the daemon ends, and is the exit code for it.
#[must_use]
pub fn fatal(error: &anyhow::Error) -> ExitCode {
    // Where standard error is closed there is nobody left to tell.
    let _closed = writeln!(stderr(), "openjetd: {error:#}");
    ExitCode::FAILURE
}
