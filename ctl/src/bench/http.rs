//! The daemon's HTTP API, as far as the bench needs it.

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::failure::Failure;

/// Far over what the daemon sends in one piece.
const MOST_BYTES: usize = 64 << 20;

/// Where the daemon serves.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// `host:port`.
    authority: String,
    key: Option<String>,
}

impl Server {
    pub(super) fn new(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let uri: hyper::Uri = url.parse().with_context(|| format!("--url: {url} is no address"))?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
        let authority = authority.with_context(|| format!("--url: {url} does not begin with http://"))?;
        let authority = match authority.port_u16() {
            Some(_) => authority.to_string(),
            None => format!("{authority}:80"),
        };
        Ok(Self { authority, key })
    }

    /// Whether another address (`host:port`) has the same port: names of one host differ.
    pub(super) fn has_port_of(&self, other: &str) -> bool {
        let port = |address: &str| address.rsplit(':').next().map(str::to_owned);
        port(&self.authority) == port(other)
    }

    /// `GET path`, as JSON.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Failure> {
        let response = self.send(Method::GET, path, Bytes::new()).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await.map_err(|error| anyhow!(error))?;
        let body = body.to_bytes();
        if !status.is_success() {
            return Err(refusal(status, &body).into());
        }
        serde_json::from_slice(&body)
            .with_context(|| format!("{path} at {} is no JSON", self.authority))
            .map_err(Failure::from)
    }

    /// `POST path`; the answer is still to be read.
    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Incoming> {
        let sent = self.send(Method::POST, path, serde_json::to_vec(body)?.into()).await;
        let response = sent.map_err(|failure| anyhow!("{failure}"))?;
        if !response.status().is_success() {
            let status = response.status();
            let body =
                Limited::new(response.into_body(), MOST_BYTES).collect().await.map_err(|error| anyhow!(error))?;
            bail!(refusal(status, &body.to_bytes()));
        }
        Ok(response.into_body())
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, Failure> {
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| {
            let authority = &self.authority;
            Failure::Unreachable(anyhow!(
                "nobody answers at http://{authority} ({error}); start openjetd, or name its address with --url"
            ))
        })?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", &self.authority);
        request = request.header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        Ok(sender.send_request(request.body(Full::new(body))?).await?)
    }
}

/// What the daemon says against it.
fn refusal(status: hyper::StatusCode, body: &[u8]) -> anyhow::Error {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or("it does not say why");
    anyhow!("the daemon answered {status}: {message}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::Server;

    #[test]
    fn addresses_are_read() {
        let authority = |url: &str| Server::new(url, None).map(|server| server.authority).map_err(|e| e.to_string());
        assert_eq!(authority("http://[::1]:18080/v1"), Ok("[::1]:18080".into()));
        assert_eq!(authority("http://box"), Ok("box:80".into()));
        assert_eq!(authority("https://box"), Err("--url: https://box does not begin with http://".into()));
        assert!(authority("box:1").is_err());
        let server = Server::new("http://localhost:18080", None).unwrap();
        assert!(server.has_port_of("127.0.0.1:18080") && !server.has_port_of("127.0.0.1:1808"));
    }
}
