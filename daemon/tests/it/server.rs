//! One daemon for all tests of this program. It ends with the program.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc;

use openjetd::config::{BackendChoice, Config};
use openjetd::run::Daemon;
use openjetd::systemd::Sockets;

/// Where the daemon listens.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) control: PathBuf,
}

/// Settings for a daemon of a test's own.
pub(crate) fn config(folder: &std::path::Path) -> Config {
    Config {
        listen: "127.0.0.1:0".to_owned(),
        control: Some(folder.join("control.sock")),
        backend: BackendChoice::Cpu,
        header_timeout_s: 2,
        body_timeout_s: 2,
        body_limit_mib: 1,
        ping_s: 1,
        ..Config::default()
    }
}

/// The daemon that all tests share, once it is ready.
pub(crate) fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        start(config(&folder))
    })
}

/// Starts a daemon in a runtime of its own, which lives until the program ends.
pub(crate) fn start(config: Config) -> Server {
    let control = config.control_socket();
    let (ready, address) = mpsc::channel();
    std::thread::spawn(move || {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut daemon = Daemon::start(config, Sockets::default()).await.unwrap();
            daemon.until_ready().await.unwrap();
            ready.send(daemon.address).unwrap();
            std::future::pending::<()>().await;
        });
    });
    Server { address: address.recv().unwrap(), control }
}
