//! The daemon under soak: a process of its own, with little room, so that everything that is kept is also dropped.

use crate::{daemon, env, sh};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) log: PathBuf,
    socket: PathBuf,
}

impl Daemon {
    /// Starts it on the model that ships with it and waits until it is ready.
    pub(crate) fn start() -> Result<Self> {
        let folder = env::target().join("soak");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let (log, socket) = (folder.join("log"), folder.join("control.sock"));
        let file = fs::File::create(&log)?;
        let mut command = sh::cmd(env::target().join("debug/openjetd"));
        command.args(["--backend", "cpu", "--listen", "127.0.0.1:0", "--agents", "4", "--ctx", "8192", "--control"]);
        command.arg(&socket).env("OPENJET_HOST_CACHE_MIB", "48").env("OPENJET_CONVERSATIONS_GIB", "1");
        command.env("OPENJET_STATE_DIR", &folder).stderr(file.try_clone()?).stdout(file);
        let child = command.spawn().with_context(|| format!("can't start {}", sh::line(&command)))?;
        let mut daemon = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), log, socket };
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            let text = fs::read_to_string(&daemon.log)?;
            let told = text.split("http://").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
            if let Some(address) = told {
                daemon.address = address;
                if matches!(daemon::health(address), daemon::Health::Ready) {
                    return Ok(daemon);
                }
            }
            sleep(Duration::from_millis(100));
        }
        bail!("the daemon did not become ready:\n{}", sh::tail(&daemon.log, 20))
    }

    /// Megabytes of memory that it has in use.
    pub(crate) fn memory(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&path).with_context(|| format!("the daemon has ended: no {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).context("no VmRSS")?;
        Ok(kib / 1000.0)
    }

    /// Runs `openjetctl` on it and returns what it says.
    pub(crate) fn openjetctl(&self, args: &[&str]) -> Result<String> {
        sh::capture(sh::cmd(env::target().join("debug/openjetctl")).arg("--socket").arg(&self.socket).args(args))
    }

    pub(crate) fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.openjetctl(&["--json", "status"])?)?)
    }

    /// Waits until the requests that were left are cancelled.
    pub(crate) fn wait_until_idle(&self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(30) {
            let status = self.status()?;
            let agents = status["engine"]["agents"].as_array().cloned().unwrap_or_default();
            if status["engine"]["queued"] == 0 && agents.iter().all(|agent| agent["state"] == "idle") {
                return Ok(());
            }
            sleep(Duration::from_millis(100));
        }
        bail!("requests are left that nobody waits for")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}
