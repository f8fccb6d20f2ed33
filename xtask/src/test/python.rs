//! Tests in Python: real clients, a real systemd and a real browser against the real daemon.

use super::{Log, Report, rust};
use crate::{deb, env, setup, sh};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// The official clients and others, for Python and Node.
pub(super) fn clients(log: &Log) -> Result<Report> {
    let node = setup::node::install()?.map(|folder| ("OPENJET_NODE", folder));
    let promtool = ("OPENJET_PROMTOOL", setup::promtool::install()?);
    pytest(log, "tests/clients", node.into_iter().chain([promtool]))
}

/// Coding agents that are programs of their own.
pub(super) fn agents(log: &Log) -> Result<Report> {
    let Some(node) = setup::node::agents()? else { return Ok(Report::Skipped("no Node on this machine".into())) };
    let aider = setup::python::aider()?;
    pytest(log, "tests/agents", [("OPENJET_AGENTS", node), ("OPENJET_AIDER", aider)])
}

/// The service in namespaces of its own.
pub(super) fn systemd(log: &Log) -> Result<Report> {
    if !env::is_root() {
        return Ok(Report::Skipped("not root: run it as root to test the service".into()));
    }
    if !Path::new("/proc/self/ns/cgroup").exists() || !has_cgroup2() {
        return Ok(Report::Skipped("no cgroup2 file system is mounted".into()));
    }
    setup::systemd::install()?;
    let package =
        |version: &str| deb::build(&deb::Args { profile: deb::Profile::Dev, version: version.to_owned(), lint: false });
    pytest(log, "tests/systemd", [("OPENJET_DEB", package("0.1")?), ("OPENJET_DEB_NEXT", package("0.2")?)])
}

/// The page in Chromium.
pub(super) fn browser(log: &Log) -> Result<Report> {
    if let Err(error) = setup::browser::install() {
        return Ok(Report::Skipped(format!("{error:#}")));
    }
    // Built already where the part `page` ran before.
    crate::web::lint_and_build()?;
    pytest(log, "tests/page", setup::node::install()?.map(|folder| ("OPENJET_NODE", folder)))
}

fn has_cgroup2() -> bool {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(2) == Some("cgroup2"))
}

fn pytest(log: &Log, folder: &str, variables: impl IntoIterator<Item = (&'static str, PathBuf)>) -> Result<Report> {
    let bin = setup::python::install()?;
    log.run(&mut deb::dev_build())?;
    let mut pytest = sh::cmd(bin.join("python"));
    pytest.args(["-m", "pytest", "-c", "tests/pytest.ini", "-p", "no:cacheprovider", "-v", folder]);
    pytest.envs(variables);
    pytest.env("PYTHONPYCACHEPREFIX", env::target().join("pycache"));
    pytest.env("OPENJETD", env::target().join("debug/openjetd"));
    pytest.env("OPENJETCTL", env::target().join("debug/openjetctl"));
    rust::counted(log, &mut pytest)
}
