//! The page compiles without a complaint and is small.

use super::counts::Counts;
use super::{Log, Report};
use crate::web;
use anyhow::{Result, ensure};

/// Most bytes that a browser may have to load, compressed.
const LIMIT: usize = 300_000;

pub(super) fn run(_log: &Log) -> Result<Report> {
    let size = web::compressed_size(&web::lint_and_build()?)?;
    ensure!(size < LIMIT, "the page has {size} bytes compressed, {LIMIT} are allowed");
    Ok(Report::Ran(Counts { passed: 3, ..Counts::default() }, format!("{} KB compressed", size.div_ceil(1000))))
}
