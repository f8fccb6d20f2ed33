//! Chromium, which the page's tests drive.

use super::apt;
use crate::env;
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Installs Chromium and its driver; returns the driver.
pub(crate) fn install() -> Result<PathBuf> {
    if env::find("chromium").is_none() || env::find("chromedriver").is_none() {
        apt::install(&["chromium", "chromium-driver"], "a test of the page")?;
    }
    env::find("chromedriver").context("the package chromium-driver is there, but not its program")
}
