//! Python environments under `.tools`, filled from PyPI with pinned versions.

use super::apt;
use crate::{env, sh};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The environment with the clients that the tests use; returns its folder of programs.
pub(crate) fn install() -> Result<PathBuf> {
    let wanted =
        fs::read_to_string(env::root().join("tests/requirements.txt")).context("can't read tests/requirements.txt")?;
    listed("py", &wanted)
}

/// The environment with aider, whose dependencies are its own; returns its folder of programs.
pub(crate) fn aider() -> Result<PathBuf> {
    let list = "tests/agents/requirements.txt";
    let wanted = fs::read_to_string(env::root().join(list)).with_context(|| format!("can't read {list}"))?;
    listed("aider", &wanted)
}

/// As [`venv`], for requirements that name everything: nothing is looked up, and nothing compiled that is never used.
fn listed(name: &str, requirements: &str) -> Result<PathBuf> {
    filled(name, requirements, &["--no-deps", "--no-compile"])
}

/// A virtual environment `.tools/NAME` that holds exactly what `requirements` says, as pip reads it; returns its
/// folder of programs.
pub(crate) fn venv(name: &str, requirements: &str) -> Result<PathBuf> {
    filled(name, requirements, &[])
}

fn filled(name: &str, requirements: &str, options: &[&str]) -> Result<PathBuf> {
    let folder = env::tools().join(name);
    let bin = folder.join("bin");
    // The environment is complete when this copy of the list, written last, is the list.
    let stamp = folder.join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == requirements) && bin.join("python").exists() {
        return Ok(bin);
    }
    println!("Fetching {} packages from PyPI into .tools/{name} ...", requirements.lines().count());
    create(&folder)?;
    let list = folder.join("wanted.txt");
    fs::write(&list, requirements)?;
    let mut pip = sh::cmd(bin.join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(options);
    pip.arg("--requirement").arg(&list);
    sh::capture(&mut pip)?;
    fs::rename(&list, &stamp)?;
    Ok(bin)
}

/// Makes an empty virtual environment, installing Debian's module for that if need be.
fn create(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("can't replace {}", folder.display()))?;
    }
    fs::create_dir_all(env::tools())?;
    let make = || sh::capture(sh::cmd("python3").args(["-m", "venv"]).arg(folder));
    if make().is_err() {
        apt::install(&["python3", "python3-venv"], "a Python environment")?;
        make()?;
    }
    Ok(())
}
