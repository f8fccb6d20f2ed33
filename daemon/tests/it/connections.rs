//! Clients that leave, are slow, or are many.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Events, connect, control, get, post, read_response};
use crate::server::{Server, config, shared, start};

/// A daemon with one agent, so that requests wait for each other.
fn single(folder: &std::path::Path, queue: usize) -> Server {
    start(openjetd::config::Config { agents: 1, queue, ..config(folder) })
}

fn engine(server: &Server) -> Value {
    control(&server.control, "GET", "/v1/status", "").json()["engine"].clone()
}

fn wait_for(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn endless(stream: bool) -> Value {
    json!({"prompt": "x", "max_tokens": 20_000, "ignore_eos": true, "stream": stream})
}

/// llama.cpp issue 24496 and others: the text went on being generated after its reader had gone.
#[test]
fn llama_cpp_24496_a_client_that_leaves_frees_its_agent() {
    let folder = tempfile::tempdir().unwrap();
    let server = single(folder.path(), 8);
    let mut events = Events::open(server.address, "/v1/completions", &endless(true));
    for _ in 0..5 {
        events.next().unwrap();
    }
    assert_eq!(engine(&server)["agents"][0]["state"], "decode");
    drop(events);
    wait_for("an idle agent", || engine(&server)["agents"][0]["state"] == "idle");
    assert_eq!(engine(&server)["requests_cancelled"], 1);
    // The same without a stream, where nothing has been sent yet.
    let mut stream = connect(server.address);
    let body = endless(false).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    wait_for("a busy agent", || engine(&server)["agents"][0]["state"] == "decode");
    drop(stream);
    wait_for("an idle agent", || engine(&server)["agents"][0]["state"] == "idle");
    assert_eq!(engine(&server)["requests_cancelled"], 2);
}

/// ik_llama.cpp issue 1929: cancelling a waiting request ended another's.
#[test]
fn ik_llama_cpp_1929_cancelling_a_waiting_request_harms_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = single(folder.path(), 8);
    let running = Events::open(
        server.address,
        "/v1/completions",
        &json!({"prompt": "x", "max_tokens": 60, "ignore_eos": true, "stream": true}),
    );
    let waiting = Events::open(server.address, "/v1/completions", &endless(true));
    wait_for("a queue", || engine(&server)["queued"] == 1);
    drop(waiting);
    let events = running.all();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    wait_for("an empty queue", || engine(&server)["queued"] == 0);
}

/// llama.cpp issue 27456: overload is 503 with Retry-After.
#[test]
fn llama_cpp_27456_a_full_queue_is_503_with_retry_after() {
    let folder = tempfile::tempdir().unwrap();
    let server = single(folder.path(), 1);
    let mut running = Events::open(server.address, "/v1/completions", &endless(true));
    running.next().unwrap();
    let _waiting = Events::open(server.address, "/v1/completions", &endless(true));
    wait_for("a queue", || engine(&server)["queued"] == 1);
    let response = post(server.address, "/v1/completions", &endless(true));
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.json()["error"]["code"], "queue_full");
    assert!(response.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
}

#[test]
fn a_waiting_stream_shows_signs_of_life() {
    let folder = tempfile::tempdir().unwrap();
    let server = single(folder.path(), 8);
    let mut running = Events::open(server.address, "/v1/completions", &endless(true));
    running.next().unwrap();
    let mut waiting = Events::open(server.address, "/v1/completions", &json!({"prompt": "x", "stream": true}));
    std::thread::sleep(Duration::from_millis(1500));
    drop(running);
    waiting.next().unwrap();
    assert!(waiting.comments > 0);
}

#[test]
fn slow_requests_are_cut_off() {
    let started = Instant::now();
    let mut silent = connect(shared().address);
    let mut half_line = connect(shared().address);
    half_line.write_all(b"P").unwrap();
    let mut half_head = connect(shared().address);
    half_head.write_all(b"GET /health HTTP/1.1\r\nHos").unwrap();
    let mut half_body = connect(shared().address);
    half_body
        .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
        .unwrap();
    for stream in [&mut silent, &mut half_line, &mut half_head] {
        // hyper answers a late head with 408, or just closes.
        if let Some(response) = read_response(stream) {
            assert_eq!(response.status, 408);
        }
    }
    let response = read_response(&mut half_body).unwrap();
    assert_eq!((response.status, &response.json()["error"]["code"]), (408, &json!("request_timeout")));
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

/// A client that asks for much and reads nothing is left after `write_timeout_s`.
#[test]
fn slow_readers_are_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(openjetd::config::Config { write_timeout_s: 1, ..config(folder.path()) });
    let (mut stream, asked) = (connect(server.address), 1200);
    unread(&mut stream, asked);
    std::thread::sleep(Duration::from_secs(6));
    let mut got = Vec::new();
    let _reset = stream.read_to_end(&mut got);
    let answers = got.windows(15).filter(|bytes| bytes == b"HTTP/1.1 200 OK").count();
    assert!((1..asked).contains(&answers), "{answers} of {asked} answers came, in {} bytes", got.len());
    assert_eq!(get(server.address, "/health").status, 200);
}

/// Asks for more than fits into the buffers between client and server, and reads none of it.
fn unread(stream: &mut TcpStream, requests: usize) {
    stream.write_all("GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(requests).as_bytes()).unwrap();
}

/// The longest that one of a hundred clients waited, each with a connection of its own.
fn longest_wait(address: SocketAddr) -> Duration {
    let ask = || {
        let started = Instant::now();
        assert_eq!(get(address, "/health").status, 200);
        started.elapsed()
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..100).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).max().unwrap()
    })
}

#[test]
fn of_1000_clients_900_slow_ones_do_not_slow_the_rest() {
    // Both ends of each connection are in this process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum.or(Some(65_536)), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = start(openjetd::config::Config { header_timeout_s: 60, body_timeout_s: 60, ..config(folder.path()) });
    let text = || post(server.address, "/v1/completions", &json!({"prompt": "def", "max_tokens": 8, "temperature": 0}));
    let alone = (longest_wait(server.address), text().json()["choices"].clone());
    let slow: Vec<_> = (0..900)
        .map(|i| {
            let mut stream = connect(server.address);
            match i % 45 {
                44 => unread(&mut stream, 1200),
                30.. => stream
                    .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
                    .unwrap(),
                15.. => stream.write_all(b"GET /hea").unwrap(),
                _ => {}
            }
            stream
        })
        .collect();
    let among = (longest_wait(server.address), text().json()["choices"].clone());
    eprintln!("the longest wait: {:?} alone, {:?} among 900 slow clients", alone.0, among.0);
    // A connection that found the queue full would have waited a second.
    assert!(
        among.0 < alone.0 * 5 + Duration::from_millis(500),
        "{:?} alone, {:?} among slow clients",
        alone.0,
        among.0
    );
    assert_eq!(among.1, alone.1);
    drop(slow);
}
