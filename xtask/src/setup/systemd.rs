//! systemd's own program, which the service's tests start in namespaces of their own.

use super::apt;
use anyhow::{Result, ensure};
use std::path::PathBuf;

/// Installs systemd; returns the program.
pub(crate) fn install() -> Result<PathBuf> {
    let program = PathBuf::from("/lib/systemd/systemd");
    if !program.exists() {
        apt::install(&["systemd"], "a test of the service")?;
    }
    ensure!(program.exists(), "the package systemd is there, but not {}", program.display());
    Ok(program)
}
