//! Rust's standard library for wasm32, which the page is compiled against.

mod debian;

use crate::{env, sh};
use anyhow::{Context, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to compile for wasm32 on this machine.
#[derive(Debug)]
pub(crate) enum Toolchain {
    /// The compiler in use has the target.
    Own,
    /// Another compiler has it: its program, and a linker.
    Other { rustc: PathBuf, linker: PathBuf },
}

impl Toolchain {
    /// Makes `command`, a cargo build, use this toolchain.
    pub(crate) fn apply(&self, command: &mut Command) {
        if let Self::Other { rustc, linker } = self {
            command.env("RUSTC", rustc).env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
        }
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => write!(out, "the target wasm32-unknown-unknown of the compiler in use"),
            Self::Other { rustc, .. } => write!(out, "{}", rustc.display()),
        }
    }
}

/// Makes wasm32 compile here, by rustup where that works, else with Debian's packages.
pub(crate) fn install() -> Result<Toolchain> {
    if own_has_target() {
        return Ok(Toolchain::Own);
    }
    let rustup = sh::capture(sh::cmd("rustup").args(["target", "add", "wasm32-unknown-unknown"]));
    if rustup.is_ok() && own_has_target() {
        return Ok(Toolchain::Own);
    }
    let refusal = rustup.err().map_or_else(|| "it did nothing".to_owned(), |error| format!("{error:#}"));
    debian::install(&env::tools().join("wasm")).with_context(|| {
        format!("rustup can't add wasm32-unknown-unknown ({refusal}), and Debian's packages don't serve in its place")
    })
}

/// Whether the compiler in use has the target's standard library.
fn own_has_target() -> bool {
    let mut rustc = sh::cmd("rustc");
    rustc.args(["--print", "target-libdir", "--target", "wasm32-unknown-unknown"]);
    sh::capture(&mut rustc).is_ok_and(|dir| {
        std::fs::read_dir(Path::new(dir.trim()))
            .is_ok_and(|files| files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libstd-")))
    })
}
