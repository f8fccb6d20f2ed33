//! The device code: compiled for every architecture, and run where there is a GPU.

use super::counts::Counts;
use super::{Log, Report, rust};
use crate::{env, setup, sh};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
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
    let kernels = parse(&report);
    ensure!(!kernels.is_empty(), "the report on the kernels in {} is empty", out.display());
    let archs: BTreeSet<&str> = kernels.iter().map(|kernel| kernel.arch).collect();
    let most = kernels.iter().map(|kernel| kernel.registers).max().unwrap_or_default();
    let spilled: u64 = kernels.iter().map(|kernel| kernel.spilled).sum();
    let archs = archs.into_iter().collect::<Vec<_>>().join(" ");
    let note = format!("{archs}; {most} registers at most, {spilled} bytes spilled; see {}", show(&out));
    Ok(Report::Ran(Counts { passed: kernels.len() as u64, ..Counts::default() }, note))
}

fn show(out: &Path) -> String {
    out.join("kernels.txt").strip_prefix(env::root()).unwrap_or(out).display().to_string()
}

/// The tests of the CUDA backend on this machine's GPU.
pub(super) fn gpu(log: &Log) -> Result<Report> {
    if !env::has_gpu() {
        return Ok(Report::Skipped("no NVIDIA GPU here".into()));
    }
    setup::nvcc::install()?;
    let mut test = sh::cargo();
    test.args(["test", "--release", "--locked", "--no-fail-fast", "--package", "openjet-kernels", "--tests"]);
    rust::counted(log, &mut test)
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

/// A kernel as compiled for one architecture.
#[derive(Debug, PartialEq, Eq)]
struct Kernel<'a> {
    arch: &'a str,
    registers: u64,
    spilled: u64,
}

/// Reads lines such as "name sm_90a: 64 registers, 0 spill bytes".
fn parse(report: &str) -> Vec<Kernel<'_>> {
    report.lines().filter_map(kernel).collect()
}

fn kernel(line: &str) -> Option<Kernel<'_>> {
    let (name, facts) = line.split_once(": ")?;
    let mut facts = facts.split(", ");
    let mut number = |unit: &str| facts.next()?.strip_suffix(unit)?.trim().parse().ok();
    Some(Kernel { arch: name.rsplit(' ').next()?, registers: number("registers")?, spilled: number("spill bytes")? })
}

#[cfg(test)]
mod tests {
    use super::{Kernel, out_dir, parse};
    use std::path::PathBuf;

    #[test]
    fn the_report_on_kernels_is_read() {
        let report =
            "step_kernel sm_90a: 128 registers, 0 spill bytes\nnoise\nother sm_80: 7 registers, 12 spill bytes\n";
        let expected = [
            Kernel { arch: "sm_90a", registers: 128, spilled: 0 },
            Kernel { arch: "sm_80", registers: 7, spilled: 12 },
        ];
        assert_eq!(parse(report), expected);
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
