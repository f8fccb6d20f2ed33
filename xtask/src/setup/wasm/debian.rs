//! The target from Debian's compiler for the web: its packages conflict with a compiler by rustup, so they are
//! unpacked into a private folder, and the standard library is built from Debian's source there.

use super::Toolchain;
use crate::{env, sh};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Unpacks and builds what is missing in `folder`.
pub(super) fn install(folder: &Path) -> Result<Toolchain> {
    let rustc = folder.join("bin/rustc");
    let toolchain = Toolchain::Other { rustc: rustc.clone(), linker: linker()? };
    let done = folder.join("done");
    if done.exists() {
        return Ok(toolchain);
    }
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder.join("bin"))?;
    fetch(folder)?;
    fs::write(
        &rustc,
        "#!/bin/sh\nd=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")\nLD_LIBRARY_PATH=\"$d/usr/lib/x86_64-linux-gnu\" exec \"$d/usr/bin/rustc\" \"$@\"\n",
    )?;
    fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755))?;
    build_std(folder, &rustc)?;
    fs::write(done, "")?;
    Ok(toolchain)
}

/// The linker that comes with the compiler in use.
fn linker() -> Result<PathBuf> {
    let sysroot = sh::capture(sh::cmd("rustc").args(["--print", "sysroot"]))?;
    let linker = Path::new(sysroot.trim()).join("lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld");
    ensure!(linker.exists(), "{} is missing: a compiler installed by rustup has it", linker.display());
    Ok(linker)
}

/// Downloads the packages and unpacks them.
fn fetch(folder: &Path) -> Result<()> {
    if env::is_root() {
        sh::capture(sh::cmd("apt-get").args(["-q", "update"]))?;
    }
    let std = dependency("libstd-rust-web-dev", "libstd-rust-web-")?;
    let llvm = dependency(&std, "libllvm")?;
    sh::capture(
        sh::cmd("apt-get")
            .current_dir(folder)
            .args(["download", "rustc-web", "libstd-rust-web-dev", &std])
            .args(["rust-web-src", &llvm]),
    )?;
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            sh::capture(sh::cmd("dpkg-deb").arg("-x").arg(entry.path()).arg(folder))?;
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The package among those that `package` depends on whose name starts with `prefix`.
fn dependency(package: &str, prefix: &str) -> Result<String> {
    let all = sh::capture(sh::cmd("apt-cache").args(["depends", package])).context("`apt-get update` may be needed")?;
    let mut names = all.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let name = names.find(|name| name.starts_with(prefix));
    Ok(name.with_context(|| format!("{package} depends on no {prefix}*"))?.to_owned())
}

/// Builds the standard library once, from an empty crate, and puts it where the compiler looks for it.
fn build_std(folder: &Path, rustc: &Path) -> Result<()> {
    let seed = folder.join("seed");
    fs::create_dir_all(seed.join("src"))?;
    fs::write(seed.join("Cargo.toml"), "[package]\nname = \"seed\"\nedition = \"2024\"\n[workspace]\n")?;
    fs::write(seed.join("src/lib.rs"), "#![no_std]\n")?;
    let mut build = sh::cargo();
    build.current_dir(&seed).env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
    // With bitcode the page can be optimised as a whole.
    build.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", "-C embed-bitcode=yes");
    build.env("CARGO_TARGET_DIR", seed.join("target"));
    build.args(["build", "--release", "-Z", "build-std=std,panic_abort", "--target", "wasm32-unknown-unknown"]);
    sh::capture(&mut build)?;
    let lib = folder.join("usr/lib/rustlib/wasm32-unknown-unknown/lib");
    fs::create_dir_all(&lib)?;
    for entry in fs::read_dir(seed.join("target/wasm32-unknown-unknown/release/deps"))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if (name.ends_with(".rlib") || name.ends_with(".rmeta")) && !name.starts_with("libseed") {
            fs::copy(entry.path(), lib.join(name))?;
        }
    }
    fs::remove_dir_all(seed)?;
    Ok(())
}
