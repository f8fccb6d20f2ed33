//! Rust's own tests.

use super::counts::Counts;
use super::{Log, Report};
use crate::{env, sh};
use anyhow::Result;

/// Unit and integration tests, by nextest where it is installed.
pub(super) fn tests(log: &Log) -> Result<Report> {
    let mut command = sh::cargo();
    if env::find("cargo-nextest").is_some() {
        command.args(["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]);
    } else {
        command.args(["test", "--workspace", "--locked", "--no-fail-fast", "--lib", "--bins", "--tests", "--quiet"]);
    }
    counted(log, &mut command)
}

/// The examples in documentation comments.
pub(super) fn doctests(log: &Log) -> Result<Report> {
    counted(log, sh::cargo().args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc", "--quiet"]))
}

/// Runs a command that prints how many tests passed.
pub(super) fn counted(log: &Log, command: &mut std::process::Command) -> Result<Report> {
    let good = log.try_run(command)?;
    let mut counts = Counts::read(&log.text());
    if !good && counts.failed == 0 {
        // It didn't compile, or the runner itself failed.
        counts.failed = 1;
    }
    Ok(Report::Ran(counts, String::new()))
}

/// The fuzz targets, as plain programs: running them needs a nightly compiler and time.
pub(super) fn fuzz(log: &Log) -> Result<Report> {
    let manifest = env::root().join("fuzz/Cargo.toml");
    if !manifest.exists() {
        return Ok(Report::Skipped("there is no folder fuzz".into()));
    }
    log.run(
        sh::cargo().args(["check", "--locked", "--target-dir"]).arg(env::target()).arg("--manifest-path").arg(manifest),
    )?;
    Ok(Report::passed())
}
