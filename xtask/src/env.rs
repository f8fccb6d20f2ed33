//! Where things lie, and what this machine has.

use std::path::{Path, PathBuf};

/// Names the folder that stands for the repository where programs were carried to another machine.
pub(crate) const FILES: &str = "OPENJET_FIXTURES";

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    if let Some(folder) = crate::pack::folder() {
        return packed_root(&folder);
    }
    // Cargo sets it for `cargo run`; the compiled-in path serves a binary that is started by hand.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = PathBuf::from(manifest);
    manifest.parent().map_or(manifest.clone(), Path::to_path_buf)
}

/// The checkout that a pack is used in: the one that is named, or that holds the working folder or the pack.
fn packed_root(pack: &Path) -> PathBuf {
    if let Some(named) = std::env::var_os(FILES) {
        return named.into();
    }
    let here = std::env::current_dir().unwrap_or_default();
    let checkout = here.ancestors().chain(pack.ancestors()).find(|folder| folder.join("assets").is_dir());
    checkout.map_or_else(|| here.clone(), Path::to_path_buf)
}

/// The folder for tools that are fetched for this checkout alone.
pub(crate) fn tools() -> PathBuf {
    root().join(".tools")
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Where `program` is in PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Whether the kernel shows an NVIDIA GPU.
pub(crate) fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists() || Path::new("/dev/dxg").exists()
}

/// Whether this is continuous integration, where nothing but a GPU may be lacking.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value != "false" && !value.is_empty())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
