//! The control socket.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use openjetd::config::Config;
use serde_json::{Value, json};

use crate::client::{Events, control, get, post};
use crate::process::{command, spawn_as, terminate};
use crate::server::{config, shared, start};

#[test]
fn status_and_agents() {
    let server = shared();
    let status = control(&server.control, "GET", "/v1/status", "");
    assert_eq!(status.status, 200);
    let status: openjet_proto::control::DaemonStatus = serde_json::from_value(status.json()).unwrap();
    assert_eq!(status.health, openjet_proto::Health::Ready);
    assert_eq!(status.model.unwrap().name, "openjet-tiny");
    assert_eq!(status.listen, server.address.to_string());
    // The CPU shares nothing out.
    assert_eq!(status.tuning, None);
    let agents = control(&server.control, "GET", "/v1/agents", "");
    let agents: Vec<openjet_proto::AgentStatus> = serde_json::from_value(agents.json()).unwrap();
    assert_eq!(agents.len(), status.engine.unwrap().agents.len());
}

#[test]
fn agents_can_be_set() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(config(folder.path()));
    for count in [6, 1, 4] {
        let reply = control(&server.control, "PUT", "/v1/agents", &json!({"count": count}).to_string());
        assert_eq!((reply.status, reply.json()), (200, json!({"count": count})));
        let agents = control(&server.control, "GET", "/v1/agents", "").json();
        assert_eq!(agents.as_array().unwrap().len(), count);
    }
    let reply = control(&server.control, "PUT", "/v1/agents", r#"{"count": 100000}"#);
    assert_eq!(reply.status, 409, "{reply:?}");
}

#[test]
fn the_end_of_an_agents_text_is_shown_unless_that_is_switched_off() {
    for show_text in [None, Some(false)] {
        let folder = tempfile::tempdir().unwrap();
        let server = start(Config { show_text, agents: 1, ..config(folder.path()) });
        let body = json!({"prompt": "def add(a, b):", "max_tokens": 12, "temperature": 0});
        let answer = post(server.address, "/v1/completions", &body).json();
        let agents = control(&server.control, "GET", "/v1/agents", "").json();
        let tail = &agents[0]["tail"];
        if show_text == Some(false) {
            assert!(tail.is_null(), "{agents}");
        } else {
            // The newest token was told, but is not part of the conversation yet.
            let text = answer["choices"][0]["text"].as_str().unwrap();
            let tail = tail.as_str().unwrap();
            assert!(tail.len() > text.len() / 2 && text.starts_with(tail), "{tail:?} of {text:?}");
        }
    }
}

#[test]
fn errors_have_message_and_hint() {
    let socket = &shared().control;
    for (method, path, body, status) in [
        ("GET", "/v1/nothing", "", 404),
        ("POST", "/v1/status", "", 405),
        ("DELETE", "/v1/agents", "", 405),
        ("PUT", "/v1/agents", "{", 400),
        ("PUT", "/v1/agents", "[]", 400),
        ("PUT", "/v1/agents", r#"{"count": -1}"#, 400),
        ("PUT", "/v1/agents", r#"{"count": 1, "more": 2}"#, 400),
        ("PUT", "/v1/agents", r#"{"count": 0}"#, 409),
        ("GET", "/v1/load", "", 405),
        ("GET", "/v1/agents/0/kick", "", 405),
        ("POST", "/v1/agents/99/kick", "", 404),
        ("POST", "/v1/agents/x/kick", "", 400),
        ("POST", "/v1/agents/kick", "", 404),
        ("PUT", "/v1/drain", "{}", 400),
        ("PUT", "/v1/log", r#"{"filter": 3}"#, 400),
    ] {
        let reply = control(socket, method, path, body);
        assert_eq!(reply.status, status, "{method} {path} {body}: {reply:?}");
        let error: openjet_proto::control::ErrorReply = serde_json::from_value(reply.json()).unwrap();
        assert!(!error.error.message.is_empty() && !error.error.hint.is_empty());
    }
}

#[test]
fn a_kicked_agent_tells_its_client_and_goes_on_with_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(config(folder.path()));
    let body = json!({"prompt": "x", "max_tokens": 30_000, "ignore_eos": true, "stream": true});
    let mut events = Events::open(server.address, "/v1/completions", &body);
    events.next().unwrap();
    let agents = control(&server.control, "GET", "/v1/agents", "").json();
    let busy = agents.as_array().unwrap().iter().find(|agent| agent["state"] != "idle").unwrap()["id"].clone();
    let kick = |id: &Value| control(&server.control, "POST", &format!("/v1/agents/{id}/kick"), "").json();
    assert_eq!(kick(&busy), json!({"agent": busy, "ended": true}));
    let last = events.rest().pop().unwrap();
    assert_eq!(last["error"]["code"], "kicked", "{last}");
    assert_eq!(kick(&busy), json!({"agent": busy, "ended": false}));
    assert_eq!(post(server.address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 2})).status, 200);
}

#[test]
fn what_happens_is_told_as_it_happens() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(config(folder.path()));
    let mut stream = UnixStream::connect(&server.control).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line.is_empty()), "no head");
    control(&server.control, "PUT", "/v1/agents", r#"{"count": 3}"#);
    post(server.address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 2, "ignore_eos": true}));
    let mut next = || -> openjet_proto::events::Event {
        let line = lines.find(|line| line.starts_with("data: ")).unwrap();
        serde_json::from_str(line.trim_start_matches("data: ")).unwrap()
    };
    let own = rustix::process::getuid().as_raw();
    match next().what {
        openjet_proto::events::What::Action { action, uid, pid, status } => {
            assert_eq!(
                (action.as_str(), uid.unwrap(), pid, status),
                ("PUT /v1/agents", own, Some(std::process::id() as i32), 200)
            );
        }
        other => panic!("{other:?}"),
    }
    match next().what {
        openjet_proto::events::What::Request(end) => assert_eq!((end.tokens, end.finish.as_str()), (2, "length")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn metrics_are_the_ones_that_prometheus_reads() {
    let server = shared();
    let samples = control(&server.control, "GET", "/v1/metrics", "").json();
    let samples: Vec<openjet_proto::control::MetricSample> = serde_json::from_value(samples).unwrap();
    let text = get(server.address, "/metrics").body;
    let names = |line: &str| line.split([' ', '{']).next().unwrap().to_owned();
    let scraped: BTreeSet<_> = text.lines().filter(|line| !line.starts_with('#')).map(names).collect();
    assert_eq!(samples.iter().map(|sample| sample.name.clone()).collect::<BTreeSet<_>>(), scraped);
    assert!(
        samples
            .iter()
            .any(|sample| sample.labels.get("use").is_some_and(|value| value == "free") && sample.value > 0.0)
    );
}

#[test]
fn the_log_level_can_be_changed_and_who_did_is_logged_whatever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = spawn_as(&mut command(folder.path(), &["--listen", "127.0.0.1:0"]));
    let socket = folder.path().join("control.sock");
    let log = |filter: &str| control(&socket, "PUT", "/v1/log", &json!({ "filter": filter }).to_string());
    assert_eq!(control(&socket, "GET", "/v1/log", "").json(), json!({"filter": "info"}));
    assert_eq!(log("no=such=filter").status, 400);
    assert_eq!(log("error").json(), json!({"filter": "error"}));
    let ask = || post(process.address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 2}));
    assert_eq!(ask().status, 200);
    control(&socket, "PUT", "/v1/agents", r#"{"count": 100000}"#);
    terminate(&process);
    let mut text = String::new();
    process.log.read_to_string(&mut text).unwrap();
    assert!(!text.contains("request request="), "{text}");
    let who = format!("uid={} gid={}", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let audit: Vec<_> = text.lines().filter(|line| line.contains(&who)).collect();
    let pid = format!("pid={}", std::process::id());
    assert_eq!(audit.len(), 3, "{text}");
    assert!(audit.iter().all(|line| line.contains(&pid)), "{text}");
    assert!(audit[2].contains("action=\"PUT /v1/agents\" status=409 problem=\"100000 agents"), "{text}");
}

#[test]
fn huge_slow_and_malformed_requests_harm_nobody() {
    let server = shared();
    let status = || control(&server.control, "GET", "/v1/status", "").status;
    let began = Instant::now();
    // A body past the limit is refused by its length, before it is sent.
    let mut huge = UnixStream::connect(&server.control).unwrap();
    huge.write_all(
        b"PUT /v1/agents HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 999999999\r\n\r\n{",
    )
    .unwrap();
    let mut head = [0; 12];
    huge.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
    // Without a length, and slow: the limit on bytes or on time ends it.
    let slow: Vec<_> = (0..50)
        .map(|_| {
            let mut slow = UnixStream::connect(&server.control).unwrap();
            slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            slow.write_all(
                b"POST /v1/load HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n{\"",
            )
            .unwrap();
            slow
        })
        .collect();
    let mut silent = UnixStream::connect(&server.control).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for junk in [
        &b"\x00\xff\x13junk\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        &[b'x'; 100_000],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxxxx",
    ] {
        let mut stream = UnixStream::connect(&server.control).unwrap();
        // It may be closed while it is written to.
        let _closed = stream.write_all(junk);
        assert_eq!(status(), 200);
    }
    for (body, expected) in [("[".repeat(60_000), 400), (format!("{{\"count\": {}}}", "9".repeat(60_000)), 400)] {
        assert_eq!(control(&server.control, "PUT", "/v1/agents", &body).status, expected);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "others were held up");
    for mut slow in slow {
        slow.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 408");
    }
    // Who says nothing at all is shown the door.
    assert_eq!(silent.read(&mut head).unwrap(), 0);
    assert_eq!(status(), 200);
}
