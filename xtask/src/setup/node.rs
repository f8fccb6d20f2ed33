//! Packages for Node under `.tools`, from npm with pinned versions.

use crate::{env, sh};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;

/// The folder with the clients for Node that the tests use; `None` where there is no Node.
pub(crate) fn install() -> Result<Option<PathBuf>> {
    packages("node", "tests/clients/node", "ci", &[])
}

/// The folder with the command-line agents for Node; `None` where there is no Node.
pub(crate) fn agents() -> Result<Option<PathBuf>> {
    // The list has the builds for one platform alone, which `ci` takes for a mistake. Two put their programs into place by
    // themselves.
    packages("agents", "tests/agents", "install", &["opencode-ai", "@anthropic-ai/claude-code"])
}

/// `.tools/NAME` with the packages that `list` names, put there by npm's command `how`; those of `own_scripts` may run theirs.
fn packages(name: &str, list: &str, how: &str, own_scripts: &[&str]) -> Result<Option<PathBuf>> {
    if env::find("node").is_none() || env::find("npm").is_none() {
        return Ok(None);
    }
    let from = env::root().join(list);
    let folder = env::tools().join(name);
    let lock = "package-lock.json";
    let wanted = fs::read_to_string(from.join(lock)).with_context(|| format!("can't read {list}/{lock}"))?;
    // The folder is complete when this copy of the list, written last, is the list.
    let stamp = folder.join("installed.json");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(Some(folder));
    }
    println!("Fetching packages from npm into .tools/{name} ...");
    fs::create_dir_all(&folder)?;
    for file in ["package.json", lock] {
        fs::copy(from.join(file), folder.join(file)).with_context(|| format!("can't copy {list}/{file}"))?;
    }
    sh::capture(sh::cmd("npm").args([how, "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&folder))?;
    if !own_scripts.is_empty() {
        sh::capture(sh::cmd("npm").arg("rebuild").args(own_scripts).current_dir(&folder))?;
    }
    fs::write(&stamp, wanted)?;
    Ok(Some(folder))
}
