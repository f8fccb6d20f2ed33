//! The programs for a machine with a GPU: built here, or found in a pack that was made elsewhere.

use crate::pack::Pack;
use crate::{env, setup, sh};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Cargo's profile for whatever is measured.
pub(crate) const RELEASE: &str = "release";

/// Where the programs are.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The tests of the CUDA backend, by name.
    pub(crate) tests: Vec<(String, PathBuf)>,
    /// The bench of the kernels.
    pub(crate) bench: PathBuf,
    /// `openjetctl`.
    pub(crate) ctl: PathBuf,
    /// What they were built from.
    pub(crate) commit: String,
}

impl Programs {
    /// Those of the pack that this program is part of, else built by cargo; `for_racecheck` as in [`build`].
    pub(crate) fn find(for_racecheck: bool) -> Result<Self> {
        match Pack::here()? {
            Some(pack) => pack.programs(),
            None => {
                setup::nvcc::install()?;
                let built = build(RELEASE, for_racecheck)?;
                let one = |name: &str| built.iter().find(|built| built.name == name).map(|built| built.file.clone());
                Ok(Self {
                    tests: built.iter().filter(|b| b.is_test).map(|b| (b.name.clone(), b.file.clone())).collect(),
                    bench: one(BENCH).context("cargo built no kernel bench")?,
                    ctl: one("openjetctl").context("cargo built no openjetctl")?,
                    commit: commit(),
                })
            }
        }
    }
}

/// Name of the kernel bench's program.
pub(crate) const BENCH: &str = "bench";

/// The commit of the checkout, with `-dirty` where files differ from it.
pub(crate) fn commit() -> String {
    let git = sh::capture(sh::cmd("git").args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]));
    git.map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// A program that cargo built.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) is_test: bool,
}

/// Builds all that a machine with a GPU may want: the tests of the CUDA backend, the bench of the kernels, and the
/// programs themselves. Two calls of cargo, since the first would build the device code for the CPU into the daemon.
/// With `for_racecheck` the device code says what compute-sanitizer's racecheck would else not follow (matmul_part.cuh).
pub(crate) fn build(profile: &str, for_racecheck: bool) -> Result<Vec<Built>> {
    let kernels = ["--package", "openjet-kernels", "--test", "gpu_*", "--example", BENCH];
    let programs = ["--package", "openjetd", "--package", "openjetctl", "--package", "xtask", "--bins"];
    let mut built = cargo(profile, for_racecheck, &kernels)?;
    built.extend(cargo(profile, for_racecheck, &programs)?);
    built.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(built)
}

fn cargo(profile: &str, for_racecheck: bool, what: &[&str]) -> Result<Vec<Built>> {
    let mut build = sh::cargo();
    if for_racecheck {
        build.env("OPENJET_RACECHECK", "1");
    }
    build.args(["build", "--locked", "--profile", profile, "--message-format", "json-render-diagnostics"]).args(what);
    let built = executables(&printed(&mut build)?);
    if built.is_empty() {
        bail!("`{}` names no program that it built", sh::line(&build));
    }
    Ok(built)
}

/// Runs a command that must succeed, with its complaints on the terminal; returns what it printed.
fn printed(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("can't start `{}`", sh::line(command)))?;
    if !output.status.success() {
        bail!("`{}` failed: {}", sh::line(command), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The programs in cargo's messages.
fn executables(messages: &str) -> Vec<Built> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter_map(|message| {
            let file = message["executable"].as_str()?;
            let target = &message["target"];
            let kind = target["kind"][0].as_str()?;
            (kind != "custom-build").then(|| {
                let name = target["name"].as_str().unwrap_or_default().to_owned();
                Built { name, file: file.into(), is_test: kind == "test" }
            })
        })
        .collect()
}

/// The environment of a program that reads files of the repository.
pub(crate) fn with_files(program: &PathBuf) -> Command {
    let mut command = sh::cmd(program);
    command.env(env::FILES, env::root());
    command
}

#[cfg(test)]
mod tests {
    use super::executables;

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"engine"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"gpu_model"},"executable":"/t/deps/gpu_model-1"}
{"reason":"compiler-artifact","target":{"kind":["example"],"name":"bench"},"executable":"/t/examples/bench"}
{"reason":"build-finished","success":true}"#;
        let found = executables(messages);
        let found: Vec<_> = found.iter().map(|b| (b.name.as_str(), b.file.to_str(), b.is_test)).collect();
        assert_eq!(
            found,
            [("gpu_model", Some("/t/deps/gpu_model-1"), true), ("bench", Some("/t/examples/bench"), false)]
        );
    }
}
