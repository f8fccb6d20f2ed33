//! Puts the built page (`cargo xtask web`) into the program: a table of its files.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> std::io::Result<()> {
    let dist = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../web/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files: Vec<PathBuf> =
        fs::read_dir(&dist).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.retain(|path| content_type(path).is_some());
    files.sort();
    let mut table = String::from("&[\n");
    for path in &files {
        let (Some(name), Some(kind)) = (path.file_name().and_then(|name| name.to_str()), content_type(path)) else {
            continue;
        };
        let path = fs::canonicalize(path)?;
        println!("cargo::rerun-if-changed={}", path.display());
        // Writing to a string can't fail.
        let _ok = writeln!(table, "    (\"/{name}\", \"{kind}\", include_bytes!({:?})),", path.display().to_string());
    }
    table.push(']');
    fs::write(Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("page.rs"), table)
}

fn content_type(path: &Path) -> Option<&'static str> {
    Some(match path.extension()?.to_str()? {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "wasm" => "application/wasm",
        _ => return None,
    })
}
