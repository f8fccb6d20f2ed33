//! Starting the daemon and asking whether it is ready.

use anyhow::{Result, bail};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What `/health` said.
#[derive(Debug)]
pub(crate) enum Health {
    /// It serves.
    Ready,
    /// Nothing listens, or it isn't ready yet.
    NotYet,
    /// Something else than OpenJet answers there.
    Other,
}

/// Asks `/health` once.
pub(crate) fn health(address: SocketAddr) -> Health {
    match get(address, "/health") {
        Ok((200, _)) => Health::Ready,
        Ok((503, _)) | Err(_) => Health::NotYet,
        Ok(_) => Health::Other,
    }
}

/// One plain HTTP request; returns the status and the body.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("no HTTP answer from {address}") };
    let Some(status) = head.split(' ').nth(1).and_then(|word| word.parse().ok()) else {
        bail!("no HTTP status from {address}: {head:?}")
    };
    Ok((status, body.to_owned()))
}
