//! A small HTTP client on plain sockets, so that tests can also send what no well-behaved client would.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A whole response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, v)| v.trim())
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn write_request(stream: &mut impl Write, method: &str, path: &str, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The daemon may refuse a body without reading it.
    let _refused_already = stream.write_all(body);
}

/// Reads a response to the end of the connection; `None` when there is none.
pub(crate) fn read_response(stream: &mut impl Read) -> Option<Response> {
    let mut bytes = Vec::new();
    // A reset after the response does not take it back.
    let _reset = stream.read_to_end(&mut bytes);
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &bytes[at + 4..];
    let chunked = header(&head, "transfer-encoding").is_some_and(|v| v == "chunked");
    let body = if chunked { unchunk(body) } else { body.to_vec() };
    Some(Response { status, head, body: String::from_utf8(body).expect("a body that is not UTF-8") })
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = body.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..at]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        out.extend_from_slice(&body[at + 2..at + 2 + size]);
        body = &body[at + 4 + size..];
    }
    out
}

/// Any request.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
    let mut stream = connect(address);
    write_request(&mut stream, method, path, headers, body);
    read_response(&mut stream).unwrap_or_else(|| panic!("no response to {method} {path}"))
}

/// A JSON request.
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    send(address, "POST", path, "Content-Type: application/json\r\n", body.to_string().as_bytes())
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    send(address, "GET", path, "", b"")
}

/// A request to the control socket.
pub(crate) fn control(socket: &Path, method: &str, path: &str, body: &str) -> Response {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write_request(&mut stream, method, path, "Content-Type: application/json\r\n", body.as_bytes());
    read_response(&mut stream).unwrap()
}

/// A stream of server-sent events that is being read. Dropping it closes the connection.
pub(crate) struct Events {
    reader: BufReader<TcpStream>,
    /// Comments seen.
    pub(crate) comments: usize,
}

impl Events {
    pub(crate) fn open(address: SocketAddr, path: &str, body: &Value) -> Self {
        Self::open_with(address, path, "", body)
    }

    /// With more headers.
    pub(crate) fn open_with(address: SocketAddr, path: &str, headers: &str, body: &Value) -> Self {
        let mut stream = connect(address);
        let headers = format!("Content-Type: application/json\r\n{headers}");
        write_request(&mut stream, "POST", path, &headers, body.to_string().as_bytes());
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        Self { reader, comments: 0 }
    }

    /// The next event's data; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            let mut line = Vec::new();
            if self.reader.read_until(b'\n', &mut line).unwrap() == 0 {
                return None;
            }
            // What is not UTF-8 here is a broken character on the wire.
            let line = String::from_utf8(line).expect("a chunk that is not UTF-8");
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.trim_end().to_owned());
            }
            self.comments += usize::from(line.starts_with(':'));
        }
    }

    /// All events to the end of the stream.
    pub(crate) fn rest(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next()).map(|data| serde_json::from_str(&data).unwrap()).collect()
    }

    /// All events up to `[DONE]`, which must come last.
    pub(crate) fn all(mut self) -> Vec<Value> {
        let mut out = Vec::new();
        while let Some(data) = self.next() {
            if data == "[DONE]" {
                assert_eq!(self.next(), None, "nothing may follow [DONE]");
                return out;
            }
            out.push(serde_json::from_str(&data).unwrap());
        }
        panic!("the stream ended without [DONE] after {} events, the last {:?}", out.len(), out.last());
    }
}
