//! Says why the system refuses to open a file, and what would let it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Folders that the systemd service can't see, whatever their permissions are.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// Who may not do what on the way to `path`, and the fix. For files that could not be opened for lack of permission.
#[must_use]
pub fn explain(path: &Path) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut folders: Vec<&Path> = full.ancestors().skip(1).collect();
    folders.reverse();
    // Looking up "." in a folder needs the permission to enter it.
    let barred =
        |folder: &&Path| fs::metadata(folder.join(".")).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
    let (what, mode, place) = match folders.into_iter().find(barred) {
        Some(folder) => ("enter", "x", folder),
        None => ("read", "r", full.as_path()),
    };
    let place = place.display();
    let homes = if HOMES.iter().any(|home| full.starts_with(home)) {
        " (the systemd service sees no home folders)"
    } else {
        ""
    };
    format!(
        "{}: can't be read: user {uid} may not {what} {place}; allow it with `chmod o+{mode} {place}`, or move the file \
         to where user {uid} may read it, such as /var/lib/openjet{homes}",
        path.display()
    )
}
