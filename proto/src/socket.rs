//! Where the daemon and its control tool meet when nobody says where.

use std::path::{Path, PathBuf};

/// Folder of the control socket on a machine where the package is installed.
pub const SYSTEM_SOCKET_DIR: &str = "/run/openjet";

/// The control socket's name in its folder.
pub const SOCKET_NAME: &str = "control.sock";

/// The control socket's path without a setting: in `/run/openjet` if that folder exists, else in
/// `$XDG_RUNTIME_DIR/openjet`, else in `/tmp/openjet-UID`.
#[must_use]
pub fn default_control_socket(uid: u32) -> PathBuf {
    socket_path(Path::new(SYSTEM_SOCKET_DIR).is_dir(), std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), uid)
}

fn socket_path(system_dir: bool, runtime_dir: Option<PathBuf>, uid: u32) -> PathBuf {
    let dir = match runtime_dir {
        _ if system_dir => PathBuf::from(SYSTEM_SOCKET_DIR),
        Some(runtime) if runtime.is_absolute() => runtime.join("openjet"),
        _ => PathBuf::from(format!("/tmp/openjet-{uid}")),
    };
    dir.join(SOCKET_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_folder_then_runtime_folder_then_tmp() {
        let runtime = Some(PathBuf::from("/run/user/7"));
        assert_eq!(socket_path(true, runtime.clone(), 7), Path::new("/run/openjet/control.sock"));
        assert_eq!(socket_path(false, runtime, 7), Path::new("/run/user/7/openjet/control.sock"));
        assert_eq!(socket_path(false, Some("relative".into()), 7), Path::new("/tmp/openjet-7/control.sock"));
        assert_eq!(socket_path(false, None, 7), Path::new("/tmp/openjet-7/control.sock"));
    }
}
