//! An open page, as far as the daemon sees it.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Largest message that is believed.
const MESSAGE_BYTES: usize = 16 << 20;

/// A WebSocket after its handshake.
#[derive(Debug)]
pub(super) struct Page(TcpStream);

impl Page {
    /// Opens one; it reads nothing yet.
    pub(super) fn open(address: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        write!(
            stream,
            "GET /ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).context("no answer to a handshake")?;
            head.push(byte[0]);
        }
        ensure!(head.starts_with(b"HTTP/1.1 101"), "no page could be opened: {}", String::from_utf8_lossy(&head));
        Ok(Self(stream))
    }

    /// Takes in messages, and tells so, until it is to leave.
    pub(super) fn read(&self, left: &AtomicBool, messages: &AtomicU64, bytes: &AtomicU64) {
        while !left.load(Ordering::Relaxed) {
            match self.message() {
                Ok(size) => {
                    messages.fetch_add(1, Ordering::Relaxed);
                    bytes.fetch_add(size as u64, Ordering::Relaxed);
                }
                Err(error) => return println!("  a page was left: {error:#}"),
            }
        }
    }

    /// Takes in one message; returns its bytes.
    fn message(&self) -> Result<usize> {
        let mut stream = &self.0;
        let mut head = [0; 2];
        stream.read_exact(&mut head)?;
        let size = match head[1] {
            126 => {
                let mut size = [0; 2];
                stream.read_exact(&mut size)?;
                u64::from(u16::from_be_bytes(size))
            }
            127 => {
                let mut size = [0; 8];
                stream.read_exact(&mut size)?;
                u64::from_be_bytes(size)
            }
            size => u64::from(size),
        };
        let size =
            usize::try_from(size).ok().filter(|size| *size <= MESSAGE_BYTES).context("a message that is too large")?;
        let mut content = vec![0; size];
        stream.read_exact(&mut content)?;
        if head[0] != 0x81 {
            bail!("a frame that is no text: {:x}, {}", head[0], String::from_utf8_lossy(&content));
        }
        let text = std::str::from_utf8(&content)?;
        let number = text.split("\"number\":").nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        let seen = format!("{{\"seen\":{}}}", number.with_context(|| format!("no number in {text}"))?);
        // A frame of a client is masked; with zeros it stays as it is.
        let mut frame = vec![0x81, 0x80 | u8::try_from(seen.len())?, 0, 0, 0, 0];
        frame.extend_from_slice(seen.as_bytes());
        stream.write_all(&frame)?;
        Ok(size)
    }
}
