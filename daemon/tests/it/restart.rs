//! Conversations outlive the process.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Events, control, post, send};
use crate::process::{Process, command, spawn_as, terminate};
use crate::server::shared;

fn start(folder: &Path) -> Process {
    let mut command = command(folder, &["--listen", "127.0.0.1:0"]);
    command.env("STATE_DIRECTORY", folder.join("state"));
    spawn_as(&mut command)
}

/// A request of a session; its body, which must be a success.
fn ask(address: SocketAddr, path: &str, session: &str, body: &Value) -> Value {
    let headers = format!("Content-Type: application/json\r\nX-Session-Id: {session}\r\n");
    let response = send(address, "POST", path, &headers, body.to_string().as_bytes());
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

fn kept(folder: &Path) -> Vec<Value> {
    control(&folder.join("control.sock"), "GET", "/v1/conversations", "").json().as_array().unwrap().clone()
}

/// Two turns of a chat, and two of a text; what comes between them is the caller's.
struct Turns {
    messages: Vec<Value>,
    tokens: Vec<u64>,
}

impl Turns {
    fn first(address: SocketAddr) -> Self {
        let long =
            "Read this list of names and remember it: add, remove, find, sort, merge, split, count, fold. ".repeat(20);
        let mut messages = vec![json!({"role": "user", "content": long})];
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 60});
        let answer = ask(address, "/v1/chat/completions", "chat", &body);
        messages.push(json!({"role": "assistant", "content": answer["choices"][0]["message"]["content"]}));
        messages.push(json!({"role": "user", "content": "Go on."}));
        let mut tokens: Vec<u64> = (0..500).map(|i| 300 + (i * i * 7 + i * 31) % 4000).collect();
        tokens.extend(Self::text(address, &tokens).0);
        tokens.extend([500, 600, 700]);
        Self { messages, tokens }
    }

    fn text(address: SocketAddr, tokens: &[u64]) -> (Vec<u64>, u64) {
        let body =
            json!({"prompt": tokens, "temperature": 0, "max_tokens": 40, "ignore_eos": true, "return_token_ids": true});
        let answer = ask(address, "/v1/completions", "text", &body);
        let ids = answer["choices"][0]["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        (ids, answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    }

    /// What comes of the second turns, and how many tokens of their prompts were not read again.
    fn second(&self, address: SocketAddr) -> (Value, Vec<u64>, [u64; 2]) {
        let body = json!({"messages": self.messages, "temperature": 0, "max_tokens": 60});
        let answer = ask(address, "/v1/chat/completions", "chat", &body);
        let (ids, text_cached) = Self::text(address, &self.tokens);
        let chat_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (answer["choices"][0]["message"].clone(), ids, [chat_cached, text_cached])
    }
}

#[test]
fn killed_under_load_it_goes_on_with_the_conversations_on_disk_as_if_nothing_had_been() {
    let expected = Turns::first(shared().address).second(shared().address);
    let folder = tempfile::tempdir().unwrap();
    let mut first = start(folder.path());
    let turns = Turns::first(first.address);
    let began = Instant::now();
    while kept(folder.path()).len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing was written");
        std::thread::sleep(Duration::from_millis(50));
    }
    let load = |i: usize| json!({"prompt": format!("{i} is a number. ").repeat(100), "max_tokens": 900, "ignore_eos": true, "stream": true});
    let mut streams: Vec<_> = (0..3).map(|i| Events::open(first.address, "/v1/completions", &load(i))).collect();
    streams.iter_mut().for_each(|stream| assert!(stream.next().is_some()));
    first.child.kill().unwrap();
    first.child.wait().unwrap();

    let second = start(folder.path());
    let (answer, ids, cached) = turns.second(second.address);
    assert_eq!((&answer, &ids), (&expected.0, &expected.1));
    assert_eq!(cached, expected.2);
    assert!(cached.iter().all(|&n| n > 300), "{cached:?}");
}

#[test]
fn stopped_it_writes_what_rests_and_forget_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = start(folder.path());
    let turns = Turns::first(first.address);
    terminate(&first);
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    let second = start(folder.path());
    assert_eq!(kept(folder.path()).len(), 2);
    let forget = |body: &Value| control(&folder.path().join("control.sock"), "POST", "/v1/forget", &body.to_string());
    assert_eq!(forget(&json!({"conversation": "text"})).json(), json!({"count": 1}));
    assert_eq!(kept(folder.path())[0]["session"], "chat");
    assert_eq!(forget(&json!("all")).json(), json!({"count": 1}));
    assert!(kept(folder.path()).is_empty());
    assert_eq!(turns.second(second.address).2, [0, 0]);
    for (body, status) in [("{", 400), ("7", 400), (r#"{"conversation": 3}"#, 400), (r#"{"conversation": "x"}"#, 200)] {
        assert_eq!(control(&folder.path().join("control.sock"), "POST", "/v1/forget", body).status, status, "{body}");
    }
}

#[test]
fn without_a_state_directory_or_where_it_is_switched_off_nothing_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(folder.path(), &["--listen", "127.0.0.1:0"]);
    command.env("STATE_DIRECTORY", folder.path().join("state")).env("OPENJET_KEEP_CONVERSATIONS", "false");
    let mut process = spawn_as(&mut command);
    post(process.address, "/v1/completions", &json!({"prompt": "x ".repeat(300), "max_tokens": 2}));
    terminate(&process);
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
    assert!(!folder.path().join("state").exists());
}
