//! What the service manager is told, and the sockets that it hands over.

use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

use anyhow::{Context, bail};
use rustix::net::{AddressFamily, getsockname};
use sd_notify::NotifyState;

/// Tells the service manager, where there is one.
pub fn notify(state: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd could not be notified");
    }
}

/// Sockets that systemd has opened for the daemon, ready to accept without blocking.
#[derive(Debug, Default)]
pub struct Sockets {
    /// For the HTTP API.
    pub http: Option<TcpListener>,
    /// For control.
    pub control: Option<UnixListener>,
}

impl Sockets {
    /// Takes what was handed over. To be called once in a process.
    ///
    /// # Errors
    /// When there is a socket that the daemon has no use for.
    pub fn take() -> anyhow::Result<Self> {
        let mut sockets = Self::default();
        for fd in sd_notify::listen_fds().context("the sockets that systemd handed over")? {
            // SAFETY: systemd opened it for this process, as LISTEN_PID says, and nothing else here takes it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).context("a socket of systemd's")?;
            match getsockname(&fd).context("what systemd handed over is no socket")?.address_family() {
                AddressFamily::INET | AddressFamily::INET6 if sockets.http.is_none() => {
                    let listener = TcpListener::from(fd);
                    listener.set_nonblocking(true)?;
                    sockets.http = Some(listener);
                }
                AddressFamily::UNIX if sockets.control.is_none() => {
                    let listener = UnixListener::from(fd);
                    listener.set_nonblocking(true)?;
                    sockets.control = Some(listener);
                }
                _ => bail!("systemd handed over a socket too many: there may be one for TCP and one Unix socket"),
            }
        }
        Ok(sockets)
    }
}
