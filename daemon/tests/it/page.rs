//! The page and its feed.

use std::io::{Read, Write};

use serde_json::Value;

use crate::client::{connect, get, read_response};
use crate::server::shared;

fn handshake(headers: &str) -> String {
    let host = shared().address;
    format!("GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{headers}\r\n")
}

const KEY: &str = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[test]
fn the_page_is_served_with_its_policy() {
    let response = get(shared().address, "/");
    assert_eq!(response.status, 200);
    assert!(response.body.contains("OpenJet"));
    assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(response.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert_eq!(get(shared().address, "/../Cargo.toml").status, 404);
}

#[test]
fn snapshots_come_over_the_websocket() {
    let mut stream = connect(shared().address);
    stream.write_all(handshake(KEY).as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let mut read_until = |wanted: &dyn Fn(&[u8]) -> Option<usize>| loop {
        if let Some(end) = wanted(&bytes) {
            return bytes.drain(..end).collect::<Vec<u8>>();
        }
        let mut buffer = [0; 4096];
        let n = stream.read(&mut buffer).unwrap();
        assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..n]);
    };
    let head = read_until(&|bytes| bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4));
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    // The answer to this key is given in RFC 6455, section 1.3.
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    for _ in 0..3 {
        // A text frame: its first byte is 0x81; the length follows, in two more bytes from 126 on.
        let frame = read_until(&|bytes| match *bytes {
            [0x81, 126, a, b, ..] => {
                Some(4 + usize::from(u16::from_be_bytes([a, b]))).filter(|&end| bytes.len() >= end)
            }
            [0x81, length @ 0..126, ..] => Some(2 + usize::from(length)).filter(|&end| bytes.len() >= end),
            [] | [0x81] | [0x81, 126] | [0x81, 126, _] => None,
            _ => panic!("an odd frame: {bytes:?}"),
        });
        let text = &frame[if frame[1] == 126 { 4 } else { 2 }..];
        let status: openjet_proto::EngineStatus = serde_json::from_slice(text).unwrap();
        assert!(!status.agents.is_empty());
    }
}

#[test]
fn other_sites_and_odd_handshakes_are_refused() {
    let own = format!("Origin: http://{}\r\n", shared().address);
    for (headers, status) in [
        (format!("{KEY}Origin: http://evil.example\r\n"), 400),
        (format!("{KEY}Origin: null\r\n"), 400),
        ("Sec-WebSocket-Version: 13\r\n".to_owned(), 400),
        ("Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: x\r\n".to_owned(), 400),
    ] {
        let mut stream = connect(shared().address);
        let request = handshake(&headers).replace("Connection: Upgrade", "Connection: close");
        stream.write_all(request.as_bytes()).unwrap();
        let response = read_response(&mut stream).unwrap();
        assert_eq!(response.status, status, "{headers}: {response:?}");
        assert!(response.json()["error"]["message"] != Value::Null);
    }
    let mut stream = connect(shared().address);
    stream.write_all(handshake(&(own + KEY)).as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 101");
}
