//! `openjetctl doctor`: looks at the driver, the GPU, permissions, the model and the sockets, and says how to mend what is wrong.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use openjet_kernels::device::{card, list};
use openjet_proto::Health;
use openjet_proto::control::DaemonStatus;
use serde::Serialize;

use crate::client::Client;
use crate::failure::Failure;
use crate::pull::MODELS;
use crate::text;

/// Compute capability below which the kernels do not run.
const CAPABILITY: (i32, i32) = (8, 0);

/// Free bytes below which the state folder is short of space.
const SPACE: u64 = 1 << 30;

/// The group that may control the daemon.
const GROUP: &str = "openjet";

/// What was looked at and found.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    /// What was looked at.
    what: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// What to do about it.
    fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Good,
    /// It works, but perhaps not as wished.
    Note,
    Bad,
}

pub(crate) fn run(client: &Client, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let mut findings = gpu(Path::new("/"));
    findings.extend(daemon(client));
    findings.extend(models());
    let bad = findings.iter().filter(|finding| finding.state == State::Bad).count();
    if json {
        text::json(&findings, out)?;
    } else {
        for Finding { what, state, found, fix } in &findings {
            let mark = match state {
                State::Good => "ok  ",
                State::Note => "note",
                State::Bad => "BAD ",
            };
            writeln!(out, "{mark}  {what:<12} {found}")?;
            if let Some(fix) = fix {
                writeln!(out, "{:18} -> {fix}", "")?;
            }
        }
    }
    if bad > 0 { Err(anyhow!("{bad} of {} findings are bad", findings.len()).into()) } else { Ok(()) }
}

fn good(what: &'static str, found: impl Into<String>) -> Finding {
    Finding { what, state: State::Good, found: found.into(), fix: None }
}

fn note(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { what, state: State::Note, found: found.into(), fix: Some(fix.into()) }
}

fn bad(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { what, state: State::Bad, found: found.into(), fix: Some(fix.into()) }
}

/// From the card to the driver's library; what needs something that is missing is left out. `root` is `/`.
fn gpu(root: &Path) -> Vec<Finding> {
    if !has_card(&root.join("sys/bus/pci/devices")) && !root.join("dev/nvidiactl").exists() {
        let fix = "for large models put one in, or pass it through to this machine or container";
        return vec![note("card", "no NVIDIA card is seen: models run on the CPU", fix)];
    }
    let Ok(version) = fs::read_to_string(root.join("proc/driver/nvidia/version")) else {
        let fix = "install the driver (Debian: `apt install nvidia-driver`), or load it with `modprobe nvidia`";
        return vec![bad("driver", "there is a card, but its driver is not loaded", fix)];
    };
    let mut findings = vec![good("driver", version.lines().next().unwrap_or_default().trim())];
    for node in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
        let path = root.join("dev").join(node);
        match fs::OpenOptions::new().read(true).write(true).open(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let fix = "`nvidia-modprobe -u -c 0` makes it; nvidia-persistenced does so at every start";
                findings.push(bad("device", format!("{} is missing", path.display()), fix));
            }
            Err(error) => {
                let fix = "join its group: `sudo usermod -aG video,render $USER`, and log in again";
                findings.push(bad("device", format!("{}: {error}", path.display()), fix));
            }
        }
    }
    match list() {
        Ok(devices) => findings.extend(devices.iter().map(|device| {
            let free = card(&device.uuid).map_or_else(String::new, |card| {
                let display = if card.display { ", shows a display" } else { "" };
                format!(", {} free{display}", text::bytes(card.free as u64))
            });
            let (major, minor) = device.capability;
            let size = text::bytes(device.memory as u64);
            let found = format!("{}: {}, {size}{free}, compute capability {major}.{minor}", device.index, device.name);
            if device.capability >= CAPABILITY {
                good("GPU", found)
            } else {
                bad("GPU", found, format!("the kernels need {}.{}: use another card", CAPABILITY.0, CAPABILITY.1))
            }
        })),
        Err(problem) => {
            findings.push(bad(
                "CUDA",
                problem.to_string(),
                "install the driver's library (Debian: `apt install libcuda1`)",
            ));
        }
    }
    findings
}

/// Whether a card of NVIDIA's is in the list of PCI devices.
fn has_card(devices: &Path) -> bool {
    let Ok(entries) = fs::read_dir(devices) else { return false };
    entries.flatten().any(|device| {
        let read = |name| fs::read_to_string(device.path().join(name)).unwrap_or_default();
        read("vendor").trim() == "0x10de" && read("class").starts_with("0x03")
    })
}

/// The control socket, then what the daemon says and serves.
fn daemon(client: &Client) -> Vec<Finding> {
    let socket = client.socket();
    let shown = socket.display();
    if let Err(error) = UnixStream::connect(socket) {
        return vec![match error.kind() {
            ErrorKind::PermissionDenied => bad(
                "control",
                format!("{shown} may not be used by this user"),
                format!("use sudo, or `sudo usermod -aG {GROUP} $USER` and log in again"),
            ),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => bad(
                "control",
                format!("no daemon listens on {shown}"),
                "`sudo systemctl start openjet`; if that fails, `journalctl -u openjet` says why",
            ),
            _ => bad("control", format!("{shown}: {error}"), "name the daemon's socket with --socket"),
        }];
    }
    let mode = fs::metadata(socket).map(|meta| meta.mode() & 0o777).unwrap_or_default();
    let mut findings = vec![if mode & 0o007 == 0 {
        good("control", format!("{shown}, mode {mode:o}"))
    } else {
        bad(
            "control",
            format!("{shown} has mode {mode:o}: everybody controls the daemon"),
            format!("`sudo chmod 660 {shown}`"),
        )
    }];
    let status: DaemonStatus = match client.get("/v1/status") {
        Ok(status) => status,
        Err(failure) => {
            findings.push(bad("daemon", failure.to_string(), "`sudo systemctl restart openjet`"));
            return findings;
        }
    };
    findings.push(if status.version == env!("CARGO_PKG_VERSION") {
        good("daemon", format!("openjetd {}, up {}", status.version, text::duration(status.uptime_s)))
    } else {
        let found = format!("openjetd {}, but this is openjetctl {}", status.version, env!("CARGO_PKG_VERSION"));
        note("daemon", found, "restart the daemon after an upgrade: `sudo systemctl restart openjet`")
    });
    findings.push(match &status.health {
        Health::Ready => good("state", "ready"),
        Health::Loading { detail } => note("state", format!("loading: {detail}"), "wait"),
        Health::Draining => {
            note("state", "draining: new requests are refused", "`openjetctl drain --off`, if it is not stopping")
        }
        Health::Unloaded { on_demand: true } => good("state", "idle: the next request loads the model"),
        Health::Unloaded { on_demand: false } => note("state", "no model is loaded", "`openjetctl load`"),
        Health::Failed { reason } => bad("state", format!("failed: {reason}"), "`journalctl -u openjet` says more"),
    });
    if let Some(model) = &status.model {
        findings.push(match &model.file {
            Some(file) => good("model", format!("{} ({file})", model.name)),
            None => note(
                "model",
                "the small one that ships with the project",
                "`openjetctl setup` says which one fits here",
            ),
        });
    }
    findings.push(match health(&status.listen) {
        Ok(answer) => good("API", format!("http://{} answers {answer}", status.listen)),
        Err(error) => bad("API", format!("http://{}: {error}", status.listen), "a firewall on the loopback, perhaps"),
    });
    findings
}

/// The status line of `/health`.
fn health(address: &str) -> anyhow::Result<String> {
    // An address that stands for all is reached on the loopback.
    let address = address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
    let mut stream = TcpStream::connect_timeout(&address.parse()?, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer)?;
    let line = answer.lines().next().unwrap_or_default();
    Ok(line.strip_prefix("HTTP/1.1 ").ok_or_else(|| anyhow!("something else answers"))?.to_owned())
}

/// The models' folder and the disk under it.
fn models() -> Vec<Finding> {
    let folder = Path::new(MODELS);
    let files = match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let fix = "the package makes it; without it, name a file with --model";
            return vec![note("models", format!("there is no {MODELS}"), fix)];
        }
        Err(error) => {
            let fix = format!("use sudo, or `sudo usermod -aG {GROUP} $USER` and log in again");
            return vec![note("models", format!("{MODELS}: {error}"), fix)];
        }
    };
    let models: Vec<_> = files.iter().filter(|file| file.extension().is_some_and(|ending| ending == "gguf")).collect();
    let closed = models.iter().find(|file| file.metadata().is_ok_and(|meta| meta.mode() & 0o044 == 0));
    let mut findings = vec![match closed {
        Some(file) => {
            let shown = file.display();
            bad("models", format!("{shown} can be read by its owner alone"), format!("`sudo chmod a+r {shown}`"))
        }
        None if models.is_empty() => {
            note("models", format!("{MODELS} is empty"), "`openjetctl setup` says what to pull")
        }
        None => good("models", format!("{} in {MODELS}", models.len())),
    }];
    if let Ok(disk) = rustix::fs::statvfs(folder) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let found = format!("{} free in {MODELS}", text::bytes(free));
        findings.push(if free >= SPACE {
            good("disk", found)
        } else {
            bad("disk", found, "make room: conversations are kept there too (`openjetctl forget --all` removes them)")
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_card_without_its_driver_is_bad_and_none_is_not() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(gpu(root.path())[0].state, State::Note);
        let device = root.path().join("sys/bus/pci/devices/0000:01:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("vendor"), "0x10de\n").unwrap();
        fs::write(device.join("class"), "0x030200\n").unwrap();
        let findings = gpu(root.path());
        assert_eq!((findings[0].what, findings[0].state), ("driver", State::Bad));
        assert!(findings[0].fix.as_ref().unwrap().contains("modprobe nvidia"));

        // The driver is there, but not the devices that programs open.
        fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        fs::write(root.path().join("proc/driver/nvidia/version"), "NVRM version: 580\n").unwrap();
        let findings = gpu(root.path());
        assert_eq!((findings[0].found.as_str(), findings[0].state), ("NVRM version: 580", State::Good));
        assert!(findings[1..4].iter().all(|finding| finding.what == "device" && finding.state == State::Bad));
    }
}
