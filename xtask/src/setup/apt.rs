//! Debian packages: installed where that is allowed, else the command is named.

use crate::{env, sh};
use anyhow::{Context, Result, bail};

/// Installs Debian packages, or says what a person must type.
pub(crate) fn install(packages: &[&str], why: &str) -> Result<()> {
    let list = packages.join(" ");
    if env::find("apt-get").is_none() {
        bail!("{why} needs what Debian calls {list}: install it with this system's package manager");
    }
    if !env::is_root() {
        bail!("{why} needs {list}: run `sudo apt-get install --no-install-recommends {list}` and try again");
    }
    let apt = |args: &[&str]| {
        let mut command = sh::cmd("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]).args(args);
        sh::capture(&mut command)
    };
    let mut args = vec!["install", "--no-install-recommends"];
    args.extend(packages);
    // A fresh machine has no package lists yet, an old one stale ones.
    apt(&["update"]).with_context(|| format!("{why} needs {list}"))?;
    apt(&args).with_context(|| format!("{why} needs {list}"))?;
    Ok(())
}
