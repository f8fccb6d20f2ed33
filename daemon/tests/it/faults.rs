//! A GPU that fails under the daemon: the device code on the CPU, with faults injected.

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use serde_json::json;

use crate::client::{Events, get, post};
use crate::process::{command, failure, spawn_as};

const BODY: &str = "/v1/completions";

/// `openjetd` on an emulated GPU with a fault, small enough to start quickly.
fn arguments(fault: &'static str) -> [&'static str; 8] {
    ["--backend", "cuda", "--gpu", fault, "--ctx", "2048", "--draft", "0"]
}

#[test]
fn a_lost_gpu_ends_the_daemon_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let notify = folder.path().join("notify.sock");
    let told = UnixDatagram::bind(&notify).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    // Read all the time: a socket that is full would hold the daemon up.
    let listener = std::thread::spawn(move || {
        let (mut messages, mut buffer) = (String::new(), [0; 4096]);
        while !messages.contains("STOPPING=1") {
            let n = told.recv(&mut buffer).unwrap();
            messages += &String::from_utf8_lossy(&buffer[..n]);
            messages.push('\n');
        }
        messages
    });
    let mut command =
        command(folder.path(), &[&["--listen", "127.0.0.1:0"], &arguments("emulated:lost:12")[..]].concat());
    command.env("NOTIFY_SOCKET", &notify);
    let mut process = spawn_as(&mut command);
    let body = json!({"prompt": "x", "max_tokens": 200, "ignore_eos": true, "stream": true});
    let mut events = Events::open(process.address, BODY, &body);
    let mut last = String::new();
    while let Some(data) = events.next() {
        last = data;
    }
    assert!(last.contains("\"error\"") && last.contains("the GPU is lost"), "{last}");
    let health = get(process.address, "/health");
    assert_eq!(health.status, 503);
    assert!(health.json()["reason"].as_str().unwrap().contains("the GPU is lost"), "{health:?}");
    assert_eq!(process.child.wait().unwrap().code(), Some(1));
    let mut log = String::new();
    process.log.read_to_string(&mut log).unwrap();
    assert!(log.contains("the engine has failed") && log.contains("the GPU is lost"), "{log}");
    // The plan is shown before the weights move.
    let place = |what: &str| log.find(what).unwrap_or_else(|| panic!("no {what:?} in {log}"));
    assert!(place("\n  key-value pool  ") < place("% of "), "{log}");
    let messages = listener.join().unwrap();
    let place = |what: &str| messages.find(what).unwrap_or_else(|| panic!("no {what} in {messages}"));
    let order = ["100%", "warming up openjet-tiny", "READY=1", "STOPPING=1"].map(place);
    assert!(order.is_sorted(), "{messages}");
}

#[test]
fn a_gpu_without_memory_is_explained_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let said = failure(folder.path(), &arguments("emulated:allocation:2"));
    assert!(said.contains("bytes on the GPU: out of memory"), "{said}");
    // One that fails in its first steps is seen before anybody asks it for anything.
    let said = failure(folder.path(), &arguments("emulated:lost:0"));
    assert!(said.contains("the GPU is lost") && !said.contains("ready after"), "{said}");
    // A pool that no GPU has room for is refused with the table before anything is loaded.
    let said = failure(folder.path(), &["--backend", "cuda", "--gpu", "emulated", "--ctx", "60000000"]);
    for part in ["openjet-tiny does not fit on", "  key-value pool  ", "  missing  ", "it would fit with ctx "] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
}

#[test]
fn numbers_that_are_not_finite_fail_that_request_alone() {
    let folder = tempfile::tempdir().unwrap();
    let process = spawn_as(&mut command(
        folder.path(),
        &[&["--listen", "127.0.0.1:0"], &arguments("emulated:nan:8")[..]].concat(),
    ));
    // Longer than the steps that it was warmed up with and those up to the fault.
    let ask =
        || post(process.address, BODY, &json!({"prompt": "x", "max_tokens": 9, "ignore_eos": true, "temperature": 0}));
    let response = ask();
    assert_eq!((response.status, &response.json()["error"]["code"]), (500, &json!("not_finite")), "{response:?}");
    assert_eq!(ask().status, 200);
    assert_eq!(get(process.address, "/health").status, 200);
}
