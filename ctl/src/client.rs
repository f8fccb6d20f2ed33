//! HTTP and JSON over the daemon's control socket.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use openjet_proto::control::ErrorReply;
use openjet_proto::socket::default_control_socket;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::failure::Failure;

/// The daemon answers from memory; only a change of agents waits, for running requests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Far over what the daemon sends, so that something else behind the socket can't fill the memory.
const MOST_BYTES: usize = 16 << 20;

/// The daemon's end of the socket.
pub(crate) struct Client {
    socket: PathBuf,
    patience: Duration,
}

impl Client {
    /// For `socket`, or the place where the daemon listens without a setting.
    pub(crate) fn new(socket: Option<PathBuf>) -> Self {
        let socket = socket.unwrap_or_else(|| default_control_socket(rustix::process::geteuid().as_raw()));
        Self { socket, patience: PATIENCE }
    }

    /// The same, but it waits longer for an answer.
    pub(crate) fn patient(&self, patience: Duration) -> Self {
        Self { socket: self.socket.clone(), patience }
    }

    /// Where the daemon listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// `GET path`, whose answer is a stream of events: `take` is given the data of each, until it says `false`.
    pub(crate) fn events(
        &self,
        path: &str,
        mut take: impl FnMut(&str) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(&error))?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let _connection = tokio::spawn(connection);
            let response = sender.send_request(request(Method::GET, path, Bytes::new())?).await?;
            let (status, mut body) = (response.status(), response.into_body());
            if !status.is_success() {
                let body = Limited::new(body, MOST_BYTES).collect().await.map_err(|error| anyhow!(error))?;
                return Err(refusal(status, &body.to_bytes()));
            }
            let mut rest = Vec::new();
            while let Some(frame) = body.frame().await {
                rest.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line);
                    if let Some(data) = line.trim_end().strip_prefix("data: ")
                        && !take(data)?
                    {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }

    /// `GET path`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.request(Method::GET, path, Bytes::new())
    }

    /// `POST path` with a JSON body.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.request(Method::POST, path, serde_json::to_vec(body)?.into())
    }

    /// `PUT path` with a JSON body.
    pub(crate) fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.request(Method::PUT, path, serde_json::to_vec(body)?.into())
    }

    fn request<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let request = request(method, path, body)?;
        let exchange = async {
            let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(&error))?;
            let answer = exchange(stream, request).await;
            answer.with_context(|| format!("the daemon at {} broke off", self.socket.display())).map_err(Failure::from)
        };
        let (status, body) = runtime.block_on(async {
            tokio::time::timeout(self.patience, exchange).await.unwrap_or_else(|_| {
                let (socket, patience) = (self.socket.display(), self.patience.as_secs());
                Err(Failure::Unreachable(anyhow!("the daemon at {socket} did not answer within {patience} s")))
            })
        })?;
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        serde_json::from_slice(&body)
            .context("the daemon's answer can't be read; use an openjetctl of the daemon's version")
            .map_err(Failure::from)
    }

    fn unreachable(&self, error: &std::io::Error) -> Failure {
        let socket = self.socket.display();
        Failure::Unreachable(match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow!(
                "no daemon listens on {socket}; start it with `systemctl start openjet` or `openjetd`, or name its socket \
                 with --socket"
            ),
            ErrorKind::PermissionDenied => anyhow!(
                "no permission for {socket}; use sudo, or join its group with `sudo usermod -aG openjet $USER` and log in again"
            ),
            _ => anyhow!("can't connect to {socket}: {error}"),
        })
    }
}

fn request(method: Method, path: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("host", "openjet").header("content-type", "application/json");
    Ok(request.body(Full::new(body))?)
}

/// What the daemon says against it.
fn refusal(status: hyper::StatusCode, body: &[u8]) -> Failure {
    Failure::Failed(match serde_json::from_slice::<ErrorReply>(body) {
        Ok(ErrorReply { error }) => anyhow!("{}; {}", error.message.trim_end(), error.hint),
        Err(_) => anyhow!("the daemon answered {status} without saying why"),
    })
}

/// One request and its whole answer.
async fn exchange(stream: UnixStream, request: Request<Full<Bytes>>) -> anyhow::Result<(hyper::StatusCode, Bytes)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response: Response<Incoming> = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
    let body = body.map_err(|error| anyhow!(error))?.to_bytes();
    connection.abort();
    Ok((status, body))
}
