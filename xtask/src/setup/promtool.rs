//! Prometheus' own checker of metrics under `.tools/promtool`, out of Debian's package.

use crate::{env, sh};
use anyhow::{Result, ensure};
use std::fs;
use std::path::PathBuf;

/// The program; one that is installed already goes first.
pub(crate) fn install() -> Result<PathBuf> {
    if let Some(installed) = env::find("promtool") {
        return Ok(installed);
    }
    let folder = env::tools().join("promtool");
    let program = folder.join("usr/bin/promtool");
    if program.exists() {
        return Ok(program);
    }
    ensure!(env::find("apt-get").is_some(), "install promtool, which comes with Prometheus");
    println!("Fetching promtool from Debian into .tools/promtool ...");
    let unpacked = env::tools().join("promtool.new");
    fs::create_dir_all(&unpacked)?;
    if env::is_root() {
        sh::capture(sh::cmd("apt-get").args(["-q", "update"]))?;
    }
    sh::capture(sh::cmd("apt-get").current_dir(&unpacked).args(["download", "prometheus"]))?;
    for entry in fs::read_dir(&unpacked)?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            sh::capture(sh::cmd("dpkg-deb").arg("-x").arg(entry.path()).arg(&unpacked))?;
            fs::remove_file(entry.path())?;
        }
    }
    // The server itself is of no use here, and large.
    fs::remove_file(unpacked.join("usr/bin/prometheus"))?;
    fs::rename(&unpacked, &folder)?;
    Ok(program)
}
