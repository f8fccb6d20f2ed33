//! Files of a store: private, written whole or not at all, set aside when they are damaged.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A folder in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Heads,
    Parts,
    /// What was damaged, for people to look at.
    Damaged,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Heads => "heads",
            Self::Parts => "parts",
            Self::Damaged => "damaged",
        }
    }
}

/// A store's folder, locked for this process.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    _lock: File,
}

/// Beginning of the names of files that are being written.
const TEMPORARY: &str = ".new-";

impl Files {
    /// Makes what is missing of the folder `root`, for this user alone, and locks it.
    ///
    /// # Errors
    /// With the path; also when another process uses the folder.
    pub(super) fn open(root: &Path) -> Result<Self, String> {
        let places = [Place::Heads, Place::Parts, Place::Damaged].map(|place| root.join(place.name()));
        for folder in std::iter::once(root).chain(places.iter().map(PathBuf::as_path)) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| format!("{} can't be made: {error}", folder.display()))?;
        }
        let path = root.join("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = lock.map_err(|error| format!("{} can't be opened: {error}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { root: root.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(format!("another process uses {}", root.display())),
            Err(TryLockError::Error(error)) => Err(format!("{} can't be locked: {error}", path.display())),
        }
    }

    pub(super) fn path(&self, place: Place, name: &str) -> PathBuf {
        self.root.join(place.name()).join(name)
    }

    /// Names and times of a folder's files. What was being written when a process ended is removed.
    pub(super) fn list(&self, place: Place) -> io::Result<Vec<(String, fs::Metadata)>> {
        let mut out = Vec::new();
        for entry in fs::read_dir(self.root.join(place.name()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(TEMPORARY) {
                fs::remove_file(entry.path())?;
                continue;
            }
            let meta = entry.metadata()?;
            if meta.is_file() {
                out.push((name, meta));
            }
        }
        Ok(out)
    }

    /// Writes a file: after a crash it is there as a whole or not at all.
    pub(super) fn write<'a>(
        &self,
        place: Place,
        name: &str,
        content: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        let temporary = self.path(place, &format!("{TEMPORARY}{name}"));
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            for bytes in content {
                file.write_all(bytes)?;
            }
            file.sync_all()?;
            fs::rename(&temporary, self.path(place, name))?;
            File::open(self.root.join(place.name()))?.sync_all()
        };
        write().inspect_err(|_| {
            // It may not be there at all.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Reads a file of exactly `expected` bytes, or of any size up to `limit`.
    pub(super) fn read(&self, place: Place, name: &str, limit: u64, expected: Option<u64>) -> io::Result<Vec<u8>> {
        let file = File::open(self.path(place, name))?;
        let bytes = file.metadata()?.len();
        if bytes > limit || expected.is_some_and(|expected| expected != bytes) {
            let message = format!("it has {bytes} bytes, not {}", expected.unwrap_or(limit));
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut out = Vec::with_capacity(bytes as usize);
        file.take(bytes).read_to_end(&mut out)?;
        Ok(out)
    }

    /// Notes that a file was used now.
    pub(super) fn touch(&self, place: Place, name: &str) -> io::Result<()> {
        File::options().write(true).open(self.path(place, name))?.set_modified(SystemTime::now())
    }

    /// Moves a damaged file out of the way.
    pub(super) fn set_aside(&self, place: Place, name: &str, reason: &str) {
        let (from, to) = (self.path(place, name), self.path(Place::Damaged, name));
        match fs::rename(&from, &to) {
            Ok(()) => tracing::warn!("{}: {reason}; set aside as {}", from.display(), to.display()),
            Err(error) => tracing::warn!("{}: {reason}; it can't be set aside: {error}", from.display()),
        }
    }

    /// Removes a file; one that is gone already is no error.
    pub(super) fn remove(&self, place: Place, name: &str) {
        let path = self.path(place, name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{} can't be removed: {error}", path.display());
            }
            _ => {}
        }
    }
}
