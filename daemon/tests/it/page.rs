//! The page and its feed.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use openjet_proto::live::{FromPage, Live, RequestRecord, ToPage};
use openjetd::config::Config;
use serde_json::{Value, json};

use crate::client::{connect, get, read_response, send};
use crate::server::{config, shared, start};

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

/// A page's connection, after its handshake.
struct Page {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Page {
    fn open() -> Self {
        let mut stream = connect(shared().address);
        stream.write_all(handshake(KEY).as_bytes()).unwrap();
        let mut page = Self { stream, bytes: Vec::new() };
        let head = page.read(|bytes| bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4));
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        // The answer to this key is given in RFC 6455, section 1.3.
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        page
    }

    /// Bytes up to where `end` says, once they have come.
    fn read(&mut self, end: impl Fn(&[u8]) -> Option<usize>) -> Vec<u8> {
        loop {
            if let Some(end) = end(&self.bytes) {
                return self.bytes.drain(..end).collect();
            }
            let mut buffer = [0; 4096];
            let n = self.stream.read(&mut buffer).unwrap();
            assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&self.bytes));
            self.bytes.extend_from_slice(&buffer[..n]);
        }
    }

    /// The next frame: its first byte, which says what it is, and its content.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let head = |bytes: &[u8]| match *bytes {
            [_, 126, a, b, ..] => Some((4, usize::from(u16::from_be_bytes([a, b])))),
            [_, 127, 0, 0, 0, 0, a, b, c, d, ..] => Some((10, u32::from_be_bytes([a, b, c, d]) as usize)),
            [_, length @ 0..126, ..] => Some((2, usize::from(length))),
            _ => None,
        };
        let whole = |bytes: &[u8]| head(bytes).map(|(start, length)| start + length).filter(|&end| end <= bytes.len());
        let mut frame = self.read(whole);
        let (start, _) = head(&frame).unwrap();
        let content = frame.split_off(start);
        (frame[0], content)
    }

    fn message(&mut self) -> ToPage {
        let (kind, content) = self.frame();
        assert_eq!(kind, 0x81, "a text frame: {}", String::from_utf8_lossy(&content));
        serde_json::from_slice(&content).unwrap()
    }

    /// Sends a frame of this kind, masked with zeros.
    fn send(&mut self, kind: u8, content: &[u8]) {
        let length = u8::try_from(content.len()).ok().filter(|&length| length < 126).unwrap();
        self.stream.write_all(&[&[kind, 0x80 | length, 0, 0, 0, 0], content].concat()).unwrap();
    }

    fn seen(&mut self, number: u64) {
        self.send(0x81, &serde_json::to_vec(&FromPage::Seen(number)).unwrap());
    }

    /// Why the daemon closes the connection, after messages that it had sent before.
    fn closed(mut self) -> (u16, String) {
        loop {
            let (kind, content) = self.frame();
            if kind == 0x88 {
                let code = content.get(..2).map_or(0, |code| u16::from_be_bytes([code[0], code[1]]));
                return (code, String::from_utf8_lossy(content.get(2..).unwrap_or_default()).into_owned());
            }
        }
    }
}

#[test]
fn a_snapshot_comes_first_and_then_what_changes() {
    let mut page = Page::open();
    let ToPage::Snapshot { mut number, mut state } = page.message() else { panic!("no snapshot at first") };
    page.seen(number);
    for _ in 0..5 {
        let ToPage::Update { number: next, change } = page.message() else {
            panic!("a snapshot though none was missed")
        };
        assert_eq!(next, number + 1);
        number = next;
        change.apply(&mut state);
        page.seen(number);
        let live: Live = serde_json::from_value(state.clone()).unwrap();
        assert!(!live.daemon.engine.unwrap().agents.is_empty());
    }
}

#[test]
fn who_is_behind_hears_nothing_and_then_the_newest_state() {
    let mut page = Page::open();
    let mut sent = Vec::new();
    page.stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    for _ in 0..4 {
        let (ToPage::Snapshot { number, .. } | ToPage::Update { number, .. }) = page.message();
        sent.push(number);
    }
    let silence = page.stream.peek(&mut [0]).unwrap_err();
    assert!(matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence}");
    page.stream.set_read_timeout(None).unwrap();
    page.seen(sent[3]);
    let ToPage::Snapshot { number, .. } = page.message() else { panic!("an update to something that it has not seen") };
    assert!(number > sent[3] + 4, "{number} after {sent:?}");
}

#[test]
fn what_no_page_would_say_ends_the_connection() {
    for (kind, content, code) in [
        (0x81, &b"hello"[..], 1008),
        (0x81, br#"{"seen": 18446744073709551615}"#, 1008),
        (0x81, br#"{"seen": -1}"#, 1008),
        (0x82, br#"{"seen": 1}"#, 1003),
        (0x81, &[0xff, 0xfe], 1007),
        // A kind that there isn't, bits that mean nothing, a control frame in pieces.
        (0x8f, b"", 1002),
        (0xf1, b"", 1002),
        (0x09, b"", 1002),
    ] {
        let mut page = Page::open();
        page.message();
        page.send(kind, content);
        let (closed, reason) = page.closed();
        assert!(closed == code || closed == 0, "{kind:x} {content:?}: {closed} {reason}");
    }
    // Clients must mask what they send.
    let mut page = Page::open();
    page.stream.write_all(&[0x81, 2, b'{', b'}']).unwrap();
    page.closed();
    // A message that is too large is not waited for.
    let mut page = Page::open();
    page.stream.write_all(&[0x81, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    page.closed();
}

#[test]
fn the_log_has_what_was_written_and_what_was_refused() {
    let address = shared().address;
    let ask = |body: &Value| {
        let headers = "Content-Type: application/json\r\nX-Session-Id: seen-on-the-page\r\n";
        send(address, "POST", "/v1/chat/completions", headers, body.to_string().as_bytes())
    };
    let asked = json!({"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 3, "temperature": 0});
    assert_eq!(ask(&asked).status, 200);
    assert_eq!(ask(&json!({"messages": 7})).status, 400);
    // The first message may be older than the answers.
    std::thread::sleep(Duration::from_millis(500));
    let ToPage::Snapshot { state, .. } = Page::open().message() else { panic!("no snapshot") };
    let live: Live = serde_json::from_value(state).unwrap();
    let own = |record: &&RequestRecord| record.session.as_deref() == Some("seen-on-the-page");
    let records: Vec<_> = live.requests.iter().filter(own).collect();
    let [written, refused] = records[..] else { panic!("{records:?}") };
    assert_eq!((written.generated_tokens, written.finish.as_str()), (3, "length"));
    assert!(written.prompt_tokens > 5 && written.id.is_some() && written.agent.is_some());
    assert_eq!((refused.finish.as_str(), refused.id, refused.path.as_str()), ("refused", None, "/v1/chat/completions"));
    assert!(
        refused.error.as_ref().unwrap().starts_with("400: ") && refused.error.as_ref().unwrap().contains("messages")
    );
    let agents = live.daemon.engine.unwrap().agents;
    assert!(agents.iter().any(|agent| agent.task.as_deref() == Some("Say hello.")), "{agents:?}");
}

#[test]
fn nothing_can_be_changed_over_http_unless_the_settings_say_so() {
    let set = |address, headers: &str| {
        let headers = format!("Content-Type: application/json\r\n{headers}");
        send(address, "PUT", "/control/v1/agents", &headers, br#"{"count": 3}"#)
    };
    let closed = set(shared().address, "");
    assert_eq!(closed.status, 403);
    assert!(closed.body.contains("admin_key"), "{closed:?}");

    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "a-key-of-some-length\n").unwrap();
    let server = start(Config { admin_key: Some(key), ..config(folder.path()) });
    let right = "X-OpenJet-Admin: a-key-of-some-length\r\n";
    assert_eq!(set(server.address, "").status, 401);
    assert_eq!(set(server.address, "X-OpenJet-Admin: another-key-of-some-length\r\n").status, 401);
    assert_eq!(set(server.address, &format!("{right}Origin: http://evil.example\r\n")).status, 403);
    assert_eq!(get(server.address, "/slots").json().as_array().unwrap().len(), 4);
    assert_eq!(set(server.address, &format!("{right}Origin: http://x\r\n")).json(), json!({"count": 3}));
    assert_eq!(get(server.address, "/slots").json().as_array().unwrap().len(), 3);
    let unknown = send(server.address, "GET", "/control/v1/nothing", right, b"");
    assert_eq!((unknown.status, unknown.body.contains("/v1/nothing")), (404, true), "{unknown:?}");
}

#[test]
fn other_sites_and_odd_handshakes_are_refused() {
    let own = format!("Origin: http://{}\r\n", shared().address);
    for (headers, status) in [
        (format!("{KEY}Origin: http://evil.example\r\n"), 403),
        (format!("{KEY}Origin: null\r\n"), 403),
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
