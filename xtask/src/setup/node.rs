//! Packages for Node under `.tools/node`, from npm with pinned versions.

use crate::{env, sh};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;

/// The folder with the clients for Node that the tests use; `None` where there is no Node.
pub(crate) fn install() -> Result<Option<PathBuf>> {
    if env::find("node").is_none() || env::find("npm").is_none() {
        return Ok(None);
    }
    let from = env::root().join("tests/clients/node");
    let folder = env::tools().join("node");
    let list = "package-lock.json";
    let wanted =
        fs::read_to_string(from.join(list)).with_context(|| format!("can't read tests/clients/node/{list}"))?;
    // The folder is complete when this copy of the list, written last, is the list.
    let stamp = folder.join("installed.json");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(Some(folder));
    }
    println!("Fetching packages from npm into .tools/node ...");
    fs::create_dir_all(&folder)?;
    for name in ["package.json", list] {
        fs::copy(from.join(name), folder.join(name))
            .with_context(|| format!("can't copy tests/clients/node/{name}"))?;
    }
    sh::capture(sh::cmd("npm").args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&folder))?;
    fs::write(&stamp, wanted)?;
    Ok(Some(folder))
}
