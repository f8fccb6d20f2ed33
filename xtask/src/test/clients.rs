//! Real clients, installed from PyPI, against the real daemon on the shipped model.

use super::{Log, Report, rust};
use crate::{env, setup, sh};
use anyhow::Result;

pub(super) fn run(log: &Log) -> Result<Report> {
    let bin = setup::python::install()?;
    log.run(sh::cargo().args(["build", "--locked", "--package", "openjetd"]))?;
    let mut pytest = sh::cmd(bin.join("python"));
    pytest.args(["-B", "-m", "pytest", "-p", "no:cacheprovider", "-v", "tests/clients"]);
    pytest.env("OPENJETD", env::target().join("debug/openjetd"));
    rust::counted(log, &mut pytest)
}
