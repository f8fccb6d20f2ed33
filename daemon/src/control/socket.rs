//! Makes the control socket: one daemon a socket, stale files removed, group access.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tokio::net::UnixListener;

/// A bound socket's file, removed with it. To be dropped after the listener.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _lock = self.path.parent().map(lock);
        // Somebody who listens now is another daemon that has taken the path since.
        if UnixStream::connect(&self.path).is_err() {
            let _gone_already = fs::remove_file(&self.path);
        }
    }
}

/// Binds `path` with mode 0660. A folder that is missing is made for this user alone.
///
/// # Errors
/// When another daemon listens there, when something that is no socket is in the way, or when permissions are lacking; the
/// message names the fix.
pub fn bind(path: &Path) -> anyhow::Result<(UnixListener, ControlSocket)> {
    let shown = path.display();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_folder(folder).with_context(|| {
        format!("the control socket's folder {} can't be used; choose another place with --control", folder.display())
    })?;
    let _lock = lock(folder).with_context(|| format!("the folder {} could not be locked", folder.display()))?;
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            bail!("{shown} exists and is not a socket; choose another place with --control");
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            bail!("another openjetd listens on {shown}; stop it, or choose another place with --control");
        }
        Ok(_) => fs::remove_file(path).with_context(|| format!("the stale socket {shown} could not be removed"))?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).with_context(|| {
        format!("the control socket {shown} could not be made; choose another place with --control")
    })?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).with_context(|| format!("permissions of {shown}"))?;
    Ok((listener, ControlSocket { path: path.to_owned() }))
}

/// Keeps other daemons from looking at and replacing sockets in `folder` meanwhile.
fn lock(folder: &Path) -> std::io::Result<fs::File> {
    let folder = fs::File::open(folder)?;
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(folder)
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let meta = fs::metadata(folder)?;
            // In a folder like /tmp somebody else could have made it to listen in.
            if folder.starts_with("/tmp")
                && meta.uid() != rustix::process::geteuid().as_raw()
                && meta.mode() & 0o1000 == 0
            {
                bail!("it belongs to another user");
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn binds_once_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/control.sock");
        let (listener, socket) = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        let message = format!("{:#}", bind(&path).unwrap_err());
        assert!(message.contains("another openjetd") && message.contains("--control"), "{message}");
        drop(listener);
        let (listener, second) = bind(&path).unwrap();
        drop(socket);
        assert!(path.exists(), "the first daemon must not remove the second one's socket");
        drop(listener);
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn leaves_other_files_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "x").unwrap();
        let message = format!("{:#}", bind(&path).unwrap_err());
        assert!(message.contains("not a socket"), "{message}");
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }
}
