//! `openjetctl pull`: fetches a model file from the model hub or from a URL, whole or not at all.
//!
//! Bytes go to a file with the ending `.part`, which a later call goes on with. The file gets its name once its length, its
//! SHA-256 where one is known, and its being a model have been checked.

mod source;
mod transfer;

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use openjet_engine::gguf::GgufFile;
use openjet_engine::inspect::Inspection;
use serde_json::json;

use crate::cli::PullArgs;
use crate::failure::Failure;
use crate::text;
use source::Source;
use transfer::Transfer;

/// Where models go without `--dir`.
pub(crate) const MODELS: &str = "/var/lib/openjet/models";

/// Bytes that are to stay free on the disk.
const HEADROOM: u64 = 256 << 20;

pub(crate) fn run(args: &PullArgs, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let folder = args.dir.as_deref().unwrap_or(Path::new(MODELS));
    let source = Source::find(&args.what, args.sha256.as_deref())?;
    let file = folder.join(&source.name);
    if file.exists() && !args.force {
        let known = source.size.is_none_or(|size| file.metadata().is_ok_and(|meta| meta.len() == size));
        if !known {
            return Err(anyhow!("{} is there already, with another length; --force replaces it", file.display()).into());
        }
        return report(&file, None, "is there already", json, out);
    }
    check_folder(folder)?;
    let part = folder.join(format!("{}.part", source.name));
    let mut transfer = Transfer::begin(&source, &part)?;
    if let Err(error) = check_space(folder, transfer.missing()) {
        if transfer.has_nothing() {
            discard(&part);
        }
        return Err(error.into());
    }
    transfer.run()?;
    let sum = transfer.finish()?;
    if let Some(expected) = source.sha256.as_deref().filter(|expected| !expected.eq_ignore_ascii_case(&sum)) {
        discard(&part);
        return Err(anyhow!(
            "what came is not the file: its SHA-256 is {sum}, expected was {expected}; it was removed, try again"
        )
        .into());
    }
    if let Err(error) = GgufFile::open(&part) {
        discard(&part);
        return Err(anyhow!("what came is no model file: {}; it was removed", error.problem).into());
    }
    // The daemon is another user.
    fs::set_permissions(&part, fs::Permissions::from_mode(0o644))?;
    fs::rename(&part, &file).with_context(|| format!("{} can't be written", file.display()))?;
    transfer::forget(&part);
    report(&file, Some(&sum), "is there", json, out)
}

/// Says what there is now, and whether it can be run.
fn report(file: &Path, sum: Option<&str>, what: &str, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let inspection = Inspection::of(&Arc::new(GgufFile::open(file)?));
    if json {
        let problems = &inspection.problems;
        return text::json(
            &json!({
                "file": file, "bytes": inspection.file_bytes, "sha256": sum, "runnable": inspection.runnable, "problems": problems,
            }),
            out,
        );
    }
    writeln!(out, "{} {what}, {}", file.display(), text::bytes(inspection.file_bytes))?;
    if let Some(sum) = sum {
        writeln!(out, "SHA-256 {sum}")?;
    }
    match inspection.problems.first() {
        None => {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let name = if file.starts_with(MODELS) { name } else { file.to_string_lossy() };
            writeln!(out, "`openjetctl load {name}` loads it")?;
        }
        Some(problem) => writeln!(out, "OpenJet can't run it: {problem}")?,
    }
    Ok(())
}

fn check_folder(folder: &Path) -> anyhow::Result<()> {
    let probe = folder.join(".openjetctl-probe");
    match fs::create_dir_all(folder).and_then(|()| fs::write(&probe, "")) {
        Ok(()) => Ok(fs::remove_file(&probe)?),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!(
            "{} may not be written by this user; use sudo, or another folder with --dir (and name it in model_paths)",
            folder.display()
        ),
        Err(error) => bail!("{} can't be used: {error}", folder.display()),
    }
}

fn check_space(folder: &Path, missing: u64) -> anyhow::Result<()> {
    let disk = rustix::fs::statvfs(folder).with_context(|| format!("the disk of {}", folder.display()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < missing.saturating_add(HEADROOM) {
        bail!(
            "{} has {} free, but {} are to come; make room, or choose another folder with --dir",
            folder.display(),
            text::bytes(free),
            text::bytes(missing)
        );
    }
    Ok(())
}

fn discard(part: &Path) {
    // What can't be removed is written over next time.
    let _gone = fs::remove_file(part);
    transfer::forget(part);
}
