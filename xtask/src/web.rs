//! `cargo xtask web`: the page, compiled for wasm32 and made ready for a browser.

use crate::{env, setup, sh};
use anyhow::{Context, Result};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds the page into `web/dist`; returns that folder.
pub(crate) fn build() -> Result<PathBuf> {
    make(cargo()?)
}

/// The same, but what clippy complains about is an error. One compilation serves both: `cargo clippy` would go through all
/// dependencies once more.
pub(crate) fn lint_and_build() -> Result<PathBuf> {
    let mut cargo = cargo()?;
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    make(cargo)
}

fn make(mut cargo: Command) -> Result<PathBuf> {
    let web = env::root().join("web");
    let built = env::target().join("web");
    sh::capture(&mut cargo)?;

    let fresh = built.join("dist");
    if fresh.exists() {
        fs::remove_dir_all(&fresh)?;
    }
    let wasm = built.join("wasm32-unknown-unknown/release/openjet-page.wasm");
    let mut bindgen = sh::cargo();
    bindgen.args(["run", "--quiet", "--locked", "--package", "xtask-bindgen", "--"]).arg(&wasm).arg(&fresh);
    sh::capture(&mut bindgen)?;
    for entry in fs::read_dir(web.join("static")).context("can't read web/static")?.flatten() {
        fs::copy(entry.path(), fresh.join(entry.file_name()))?;
    }
    let dist = web.join("dist");
    replace(&fresh, &dist).with_context(|| format!("can't put the page into {}", dist.display()))?;
    Ok(dist)
}

/// The command that compiles the page's code.
fn cargo() -> Result<Command> {
    let mut cargo = sh::cargo();
    setup::wasm::install()?.apply(&mut cargo);
    cargo.env("CARGO_TARGET_DIR", env::target().join("web")).current_dir(env::root().join("web"));
    cargo.args(["build", "--release", "--locked", "--target", "wasm32-unknown-unknown"]);
    Ok(cargo)
}

/// Makes `to` hold the files of `from`. What is the same already keeps its times, or the daemon would be built anew.
fn replace(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(to)?.flatten() {
        if !from.join(entry.file_name()).exists() && entry.file_name() != ".gitignore" {
            fs::remove_file(entry.path())?;
        }
    }
    for entry in fs::read_dir(from)?.flatten() {
        let content = fs::read(entry.path())?;
        let place = to.join(entry.file_name());
        if fs::read(&place).ok().as_ref() != Some(&content) {
            fs::write(place, content)?;
        }
    }
    Ok(())
}

/// Bytes of all files in `folder`, each compressed with gzip.
pub(crate) fn compressed_size(folder: &Path) -> Result<usize> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)?.flatten().filter(|entry| entry.file_name() != ".gitignore") {
        let mut gzip = sh::cmd("gzip");
        gzip.args(["-9", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut gzip = gzip.spawn().context("can't start gzip")?;
        let content = fs::read(entry.path())?;
        let mut input = gzip.stdin.take().context("gzip takes no input")?;
        let writer = std::thread::spawn(move || input.write_all(&content));
        sum += gzip.wait_with_output()?.stdout.len();
        writer.join().ok().context("the thread that feeds gzip failed")??;
    }
    Ok(sum)
}
