//! The program itself: its start, its messages, its end.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Events, get, post};
use crate::server::shared;

/// A daemon in a process of its own; killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) log: BufReader<std::process::ChildStderr>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

pub(crate) fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_openjetd"));
    command.args(["--control", folder.join("control.sock").to_str().unwrap()]).args(args);
    if !args.contains(&"--backend") {
        command.args(["--backend", "cpu"]);
    }
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OPENJET_")) {
        command.env_remove(name);
    }
    command.env_remove("STATE_DIRECTORY");
    command.stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Starts a daemon and waits until it is ready.
fn spawn(folder: &Path, args: &[&str]) -> Process {
    spawn_as(&mut command(folder, &[&["--listen", "127.0.0.1:0"], args].concat()))
}

/// Starts a daemon that listens anywhere and waits until it is ready.
pub(crate) fn spawn_as(command: &mut Command) -> Process {
    let mut child = command.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("http://") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "openjetd ended");
    }
    let address = line.split("http://").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let started = Instant::now();
    while get(address, "/health").status != 200 {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    Process { child, address, log }
}

/// Runs the program to its end, which must be a failure, and returns what it said.
pub(crate) fn failure(folder: &Path, args: &[&str]) -> String {
    let output = command(folder, args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

pub(crate) fn terminate(process: &Process) {
    let pid = rustix::process::Pid::from_raw(process.child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[test]
fn terminated_it_drains_and_exits_with_0() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = spawn(folder.path(), &[]);
    let body = json!({"prompt": "x", "max_tokens": 60, "ignore_eos": true, "stream": true});
    let mut events = Events::open(process.address, "/v1/completions", &body);
    events.next().unwrap();
    terminate(&process);
    let started = Instant::now();
    while get(process.address, "/health").status != 503 {
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(get(process.address, "/health").json()["state"], "draining");
    let response = post(process.address, "/v1/completions", &json!({"prompt": "x"}));
    assert_eq!((response.status, &response.json()["error"]["code"]), (503, &json!("draining")));
    assert!(response.header("retry-after").is_some());
    let last = events.all();
    assert_eq!(last.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
    assert!(!folder.path().join("control.sock").exists());
}

#[test]
fn what_does_not_end_in_time_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("openjet.toml");
    std::fs::write(&file, "drain_s = 1\n").unwrap();
    let mut process = spawn(folder.path(), &["--config", file.to_str().unwrap()]);
    let body = json!({"prompt": "x", "max_tokens": 30_000, "ignore_eos": true, "stream": true});
    let mut events = Events::open(process.address, "/v1/completions", &body);
    events.next().unwrap();
    terminate(&process);
    let mut last = String::new();
    while let Some(data) = events.next() {
        last = data;
    }
    assert!(last.contains("\"error\"") && last.contains("stopping"), "{last}");
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
}

/// A service runs as a user of its own, who often may not enter the folder that a model was downloaded to.
#[test]
fn a_model_that_may_not_be_read_is_explained() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let closed = folder.path().join("closed");
    let model = closed.join("x.gguf");
    std::fs::create_dir(&closed).unwrap();
    std::fs::write(&model, "GGUF").unwrap();
    mode(folder.path(), 0o777);
    // Root may read everything; another user runs a copy of the program that it can reach.
    let program = folder.path().join("openjetd");
    assert!(Command::new("cp").args([Path::new(env!("CARGO_BIN_EXE_openjetd")), &program]).status().unwrap().success());
    let root = rustix::process::geteuid().is_root();
    let said = |uid: u32| {
        let mut command = Command::new(&program);
        let control = folder.path().join("run/control.sock");
        command.arg("--control").arg(control).args(["--listen", "127.0.0.1:0", "--model"]).arg(&model);
        if root {
            command.uid(uid).gid(uid);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let uid = if root { 65534 } else { rustix::process::geteuid().as_raw() };

    mode(&model, 0o000);
    let message = said(uid);
    let file = model.display();
    assert!(
        message.contains(&format!("user {uid} may not read {file}; allow it with `chmod o+r {file}`")),
        "{message}"
    );

    mode(&closed, 0o600);
    let message = said(uid);
    mode(&closed, 0o700);
    let closed = closed.display();
    assert!(message.contains(&format!("{file}: can't be read: user {uid} may not enter {closed}; ")), "{message}");
    assert!(message.contains(&format!("`chmod o+x {closed}`")), "{message}");
}

#[test]
fn one_line_is_logged_for_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = spawn(folder.path(), &[]);
    let answer = post(process.address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 7, "ignore_eos": true}));
    assert_eq!(answer.status, 200);
    terminate(&process);
    let mut log = String::new();
    process.log.read_to_string(&mut log).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("finish=")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for part in ["tokens=7", "cached=0", "finish=\"length\"", "tok_s=", "drafts=", "first_token_ms="] {
        assert!(lines[0].contains(part), "no {part} in {}", lines[0]);
    }
}

#[test]
fn it_says_which_model_and_backend_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = spawn(folder.path(), &[]);
    terminate(&process);
    let mut log = String::new();
    process.log.read_to_string(&mut log).unwrap();
    assert!(log.contains("openjet-tiny (the model that ships with openjetd)") && log.contains("CPU"), "{log}");
}

#[test]
fn a_port_or_socket_in_use_is_said_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let taken = shared().address.to_string();
    let message = failure(folder.path(), &["--listen", &taken]);
    assert!(message.contains(&taken) && message.contains("--listen"), "{message}");
    let _process = spawn(folder.path(), &[]);
    let message = failure(folder.path(), &["--listen", "127.0.0.1:0"]);
    assert!(message.contains("control.sock") && message.contains("--control"), "{message}");
}

#[test]
fn bad_settings_are_said_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let message = failure(folder.path(), &["--config", &path("a.toml", "agnets = 3\n")]);
    assert!(message.contains("a.toml") && message.contains("`agents`"), "{message}");
    let message = failure(folder.path(), &["--listen", "0.0.0.0:0"]);
    assert!(message.contains("listen_without_key"), "{message}");
    let message = failure(folder.path(), &["--listen", "127.0.0.1:0", "--model", "/nowhere/x.gguf"]);
    assert!(message.contains("/nowhere/x.gguf"), "{message}");
    let message = failure(folder.path(), &["--listen", "127.0.0.1:0", "--model", &path("x.gguf", "GGUF")]);
    assert!(message.contains("x.gguf"), "{message}");
}

#[test]
fn a_large_model_is_not_run_on_the_cpu_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/openjet-tiny-Q4_K_M.gguf"), &path).unwrap();
    // A hole in the file: its size is all that counts here.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 << 30).unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--model", path.to_str().unwrap()];
    // Where there is a usable GPU the model is run on it, so it is hidden.
    let output = command(folder.path(), &[&arguments[..], &["--backend", "auto"]].concat())
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("3.2 GB") && message.contains("--backend cpu"), "{message}");
    let process = spawn(folder.path(), &arguments[2..]);
    assert_eq!(get(process.address, "/health").status, 200);
}
