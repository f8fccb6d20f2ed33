//! Logs: to standard error, in a form for the journal where that is what reads it.

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// Starts logging what `filter` lets through.
///
/// # Errors
/// When the filter can't be read, or logging has been started before.
pub fn start(filter: &str) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_new(filter).with_context(|| format!("the setting `log` is not a log filter: {filter}"))?;
    let base = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(stderr().is_terminal());
    // The journal writes the time itself.
    let started = if std::env::var_os("JOURNAL_STREAM").is_some() {
        base.with_target(false).without_time().try_init()
    } else {
        base.with_target(false).try_init()
    };
    started.map_err(|error| anyhow::anyhow!("{error}"))
}

/// Says why the daemon ends, and is the exit code for it.
#[must_use]
pub fn fatal(error: &anyhow::Error) -> ExitCode {
    // Where standard error is closed there is nobody left to tell.
    let _closed = writeln!(stderr(), "openjetd: {error:#}");
    ExitCode::FAILURE
}
