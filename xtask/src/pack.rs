//! `cargo xtask pack`: the programs for a machine with a GPU that has no Rust.
//!
//! A pack is a folder: the programs, stripped, this one among them, and `pack.json`, which says what they are. What stands
//! in the repository stays there: files that the tests read, and the shipped model, which is cut out of the programs that
//! hold it and put back where the pack is used.

use crate::programs::{self, BENCH, Built, Programs};
use crate::{env, sh};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Options of `pack`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder to write; what was in it is removed if it is an older pack. DIR.tar.xz beside it holds all of it.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Cargo's profile; `dev` builds faster.
    #[arg(long, default_value = programs::RELEASE)]
    profile: String,
}

/// Name of the file that describes a pack.
const MANIFEST: &str = "pack.json";
/// The file of the repository that programs hold a copy of.
const SHIPPED: &str = "assets/openjet-tiny-Q4_K_M.gguf";
/// Folders of the repository that the tests read.
const READ: [&str; 2] = ["assets", "engine/tests/fixtures"];

/// What is in a pack.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    commit: String,
    profile: String,
    programs: Vec<Entry>,
    /// Files of the repository that the programs read.
    files: Vec<Needed>,
}

/// A program.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    test: bool,
    /// Where the bytes of a file of the repository belong that were cut out.
    #[serde(skip_serializing_if = "Option::is_none")]
    hole: Option<Hole>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Hole {
    offset: u64,
    file: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Needed {
    path: String,
    bytes: u64,
}

/// Builds the programs and writes the pack.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(Pack::here()?.is_none(), "this is a pack already; a pack is made in a checkout");
    let folder = std::path::absolute(&args.folder)?;
    let built = programs::build(&args.profile, false)?;
    if folder.exists() {
        ensure!(
            folder.join(MANIFEST).is_file() || fs::read_dir(&folder)?.next().is_none(),
            "{} is neither empty nor an older pack: choose another folder",
            folder.display()
        );
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let shipped = fs::read(env::root().join(SHIPPED)).with_context(|| format!("can't read {SHIPPED}"))?;
    let entries = built.iter().map(|built| add(built, &folder, &shipped)).collect::<Result<Vec<_>>>()?;
    let manifest = Manifest {
        commit: programs::commit(),
        profile: args.profile.clone(),
        programs: entries,
        files: READ
            .map(|under| files(Path::new(under)))
            .into_iter()
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect(),
    };
    fs::write(folder.join(MANIFEST), serde_json::to_vec_pretty(&manifest)?)?;
    let archive = folder.with_added_extension("tar.xz");
    let (parent, name) = (folder.parent().unwrap_or(Path::new("/")), folder.file_name().unwrap_or_default());
    // The largest dictionary finds what the programs have in common.
    let mut tar = sh::cmd("tar");
    tar.env("XZ_OPT", "-9").arg("-C").arg(parent).arg("-cJf").arg(&archive).arg(name);
    sh::run(&mut tar)?;
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
    let total: u64 = manifest.programs.iter().map(|entry| bytes(&folder.join(&entry.name))).sum();
    println!(
        "{}: {} programs of {}, {} KB; {}: {} KB",
        folder.display(),
        manifest.programs.len(),
        manifest.commit,
        total / 1000,
        archive.display(),
        bytes(&archive) / 1000
    );
    println!(
        "There, in a copy of the repository: tar -xJf {}.tar.xz -C .gpu && .gpu/{0}/xtask test --gpu",
        name.display()
    );
    Ok(())
}

/// Copies a program into the pack, stripped and without the shipped model.
fn add(built: &Built, folder: &Path, shipped: &[u8]) -> Result<Entry> {
    let to = folder.join(&built.name);
    let mut strip = sh::cmd("strip");
    sh::run(strip.arg("-o").arg(&to).arg(&built.file)).context("stripping a program (`strip` is in binutils)")?;
    let mut bytes = fs::read(&to)?;
    let offset = place_of(&bytes, shipped);
    if let Some(offset) = offset {
        bytes[offset..offset + shipped.len()].fill(0);
        fs::write(&to, bytes)?;
    }
    let hole = offset.map(|offset| Hole { offset: offset as u64, file: SHIPPED.into() });
    Ok(Entry { name: built.name.clone(), test: built.is_test, hole })
}

/// Where `part` begins in `whole`.
fn place_of(whole: &[u8], part: &[u8]) -> Option<usize> {
    let (head, first) = (part.get(..16)?, *part.first()?);
    let starts = whole.iter().enumerate().filter(|(_, byte)| **byte == first).map(|(at, _)| at);
    let mut matches = starts.filter(|&at| whole[at..].starts_with(head));
    matches.find(|&at| whole[at..].starts_with(part))
}

/// The files under a folder of the repository, with their sizes.
fn files(under: &Path) -> Result<Vec<Needed>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(env::root().join(under)).with_context(|| format!("can't read {}", under.display()))? {
        let entry = entry?;
        let path = under.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            all.extend(files(&path)?);
        } else {
            all.push(Needed { path: path.display().to_string(), bytes: entry.metadata()?.len() });
        }
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// A pack that this program is part of.
#[derive(Debug)]
pub(crate) struct Pack {
    folder: PathBuf,
    manifest: Manifest,
}

impl Pack {
    /// The pack beside this program, if there is one.
    pub(crate) fn here() -> Result<Option<Self>> {
        let Some(folder) = folder() else { return Ok(None) };
        let file = folder.join(MANIFEST);
        let text = fs::read(&file).with_context(|| format!("can't read {}", file.display()))?;
        let manifest = serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display()))?;
        Ok(Some(Self { folder, manifest }))
    }

    /// Its programs, ready to run.
    pub(crate) fn programs(&self) -> Result<Programs> {
        self.check(&env::root())?;
        let path = |name: &str| self.folder.join(name);
        for entry in &self.manifest.programs {
            self.fill(entry)?;
        }
        let tests = self.manifest.programs.iter().filter(|entry| entry.test);
        Ok(Programs {
            tests: tests.map(|entry| (entry.name.clone(), path(&entry.name))).collect(),
            bench: path(BENCH),
            ctl: path("openjetctl"),
            commit: self.manifest.commit.clone(),
        })
    }

    /// Whether the repository's files are there and as long as they were.
    fn check(&self, root: &Path) -> Result<()> {
        for Needed { path, bytes } in &self.manifest.files {
            let found = fs::metadata(root.join(path)).map(|data| data.len());
            if found.as_ref().ok() != Some(bytes) {
                let found = found.map_or_else(|error| error.to_string(), |found| format!("{found} bytes"));
                bail!(
                    "{path} in {} must have {bytes} bytes: {found}; start it in a checkout of {}, or name one in {}",
                    root.display(),
                    self.manifest.commit,
                    env::FILES
                );
            }
        }
        Ok(())
    }

    /// Puts back what was cut out of a program.
    fn fill(&self, entry: &Entry) -> Result<()> {
        let Some(Hole { offset, file }) = &entry.hole else { return Ok(()) };
        let program = self.folder.join(&entry.name);
        let content = fs::read(env::root().join(file)).with_context(|| format!("can't read {file}"))?;
        let open = fs::File::options().read(true).write(true).open(&program);
        let open = open.with_context(|| format!("can't write {}", program.display()))?;
        let mut first = [0; 4];
        open.read_exact_at(&mut first, *offset)?;
        if first != content[..4] {
            open.write_all_at(&content, *offset)?;
        }
        Ok(())
    }
}

/// The folder of the pack that this program is part of.
pub(crate) fn folder() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    folder.join(MANIFEST).is_file().then(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::place_of;

    #[test]
    fn a_file_is_found_in_a_program() {
        let part: Vec<u8> = (0..=255).collect();
        let whole = [&part[..20], &[7, 7], &part, &[9]].concat();
        assert_eq!(place_of(&whole, &part), Some(22));
        assert_eq!(place_of(&whole[..200], &part), None);
        assert_eq!(place_of(&whole, &[]), None);
    }
}
