//! The device code, compiled for every architecture.

use super::counts::Counts;
use super::{Log, Report};
use crate::{env, setup, sh};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Compiles for every architecture; the build itself fails on spilled registers.
pub(super) fn compile(log: &Log) -> Result<Report> {
    setup::nvcc::install()?;
    let mut build = sh::cargo();
    build.args(["build", "--locked", "--package", "openjet-kernels", "--message-format", "json-render-diagnostics"]);
    log.run(&mut build)?;
    let out = out_dir(&log.text()).context("cargo names no build output of openjet-kernels")?;
    let report = std::fs::read_to_string(out.join("kernels.txt"))
        .with_context(|| format!("no report on the kernels in {}: was nvcc not found?", out.display()))?;
    let facts = parse(&report);
    ensure!(!facts.is_empty(), "the report on the kernels in {} is empty", out.display());
    let note = facts
        .iter()
        .map(|(arch, Facts { registers, spilled })| format!("{arch} {registers} registers, {spilled} bytes spilled"));
    let note = format!("{}; see {}", note.collect::<Vec<_>>().join("; "), show(&out));
    Ok(Report::Ran(Counts { passed: facts.len() as u64, ..Counts::default() }, note))
}

fn show(out: &Path) -> String {
    out.join("kernels.txt").strip_prefix(env::root()).unwrap_or(out).display().to_string()
}

/// Where cargo's messages say that the build script of openjet-kernels wrote to.
fn out_dir(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut scripts = messages.filter(|message| message["reason"] == "build-script-executed");
    let ours = scripts.find(|message| {
        message["package_id"].as_str().is_some_and(|id| id.contains("/kernels#") || id.contains("openjet-kernels"))
    })?;
    Some(PathBuf::from(ours["out_dir"].as_str()?))
}

/// What the compiler says of one architecture's code.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    registers: u64,
    spilled: u64,
}

/// Reads lines such as "sm_90a: 128 registers, ..." for a kernel and "sm_90a name: ..., 0 bytes spill stores, ..." for a
/// function; the most registers and the sum of what is spilled, by architecture.
fn parse(report: &str) -> BTreeMap<&str, Facts> {
    let mut all = BTreeMap::<&str, Facts>::new();
    for (name, said) in report.lines().filter_map(|line| line.split_once(": ")) {
        let arch = name.split(' ').next().unwrap_or_default();
        let number =
            |unit: &str| said.split(", ").find_map(|fact| fact.trim().strip_suffix(unit)?.trim().parse::<u64>().ok());
        if let Some(registers) = number("registers") {
            let facts = all.entry(arch).or_default();
            facts.registers = facts.registers.max(registers);
        }
        if let Some(spilled) = number("bytes spill stores") {
            all.entry(arch).or_default().spilled += spilled;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Facts, out_dir, parse};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    #[test]
    fn the_report_on_kernels_is_read() {
        let report = "sm_80 step: 8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
sm_80: 96 registers, used 1 barriers
sm_80: 128 registers
noise
sm_90a step: 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
sm_90a: 64 registers
";
        let expected =
            [("sm_80", Facts { registers: 128, spilled: 12 }), ("sm_90a", Facts { registers: 64, spilled: 0 })];
        assert_eq!(parse(report), BTreeMap::from(expected));
    }

    #[test]
    fn the_build_output_is_found() {
        let messages = r#"warning: something
{"reason":"build-script-executed","package_id":"path+file:///x/engine#0.1.0","out_dir":"/no"}
{"reason":"build-script-executed","package_id":"path+file:///x/kernels#openjet-kernels@0.1.0","out_dir":"/yes"}"#;
        assert_eq!(out_dir(messages), Some(PathBuf::from("/yes")));
        assert_eq!(out_dir(""), None);
    }
}
