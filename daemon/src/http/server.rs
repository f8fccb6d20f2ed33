//! Accepts connections, TCP and Unix, and serves HTTP/1.1 and HTTP/2 on them within limits.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, watch};

use super::body::Body;
use super::limits;

/// Most bytes of a request's line and headers that are answered with an error of ours.
const HEADER_BYTES: usize = 2 * limits::HEADER_BYTES;

/// Most headers of a request that are answered with an error of ours.
const HEADERS: usize = 4 * limits::HEADERS;

/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 128;

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Most open at once.
    pub connections: usize,
    /// Longest wait for a request's headers.
    pub headers: Duration,
    /// Longest time that what was sent may stay unread.
    pub write: Duration,
}

/// Who is at the other end of a Unix socket, as the kernel says. Every request that came by one carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process, where it is known.
    pub pid: Option<i32>,
}

/// Answers one request.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The response to `request`. It is dropped when the client goes away.
    fn handle(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
}

/// A bound socket that serves once [`Server::run`] is called.
#[derive(Debug)]
pub struct Server {
    socket: Socket,
    limits: ConnectionLimits,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Server {
    /// Serves TCP.
    #[must_use]
    pub fn tcp(listener: TcpListener, limits: ConnectionLimits) -> Self {
        Self { socket: Socket::Tcp(listener), limits }
    }

    /// Serves a Unix socket.
    #[must_use]
    pub fn unix(listener: UnixListener, limits: ConnectionLimits) -> Self {
        Self { socket: Socket::Unix(listener), limits }
    }

    /// The TCP address, if it is one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// Accepts and serves until `stop` turns true; then no connection is accepted, open ones end after the response that
    /// they are at, and the call returns when the last one has ended.
    pub async fn run<H: Handler>(self, handler: H, mut stop: watch::Receiver<bool>) {
        let Self { socket, limits } = self;
        let places = Arc::new(Semaphore::new(limits.connections));
        loop {
            // The semaphore is never closed, so acquiring can't fail.
            let place = tokio::select! {
                place = places.clone().acquire_owned() => match place { Ok(place) => place, Err(_) => break },
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let stream = tokio::select! {
                stream = socket.accept(limits) => stream,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            match stream {
                Ok(stream) => {
                    let (handler, stop) = (handler.clone(), stop.clone());
                    tokio::spawn(async move {
                        match stream {
                            Stream::Tcp(stream) => serve(stream, None, handler, limits, stop).await,
                            Stream::Unix(stream, peer) => serve(stream, Some(peer), handler, limits, stop).await,
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: wait for some to be closed.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(socket);
        let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
        let _all_closed = places.acquire_many(all).await;
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(tokio::net::UnixStream, Peer),
}

impl Socket {
    async fn accept(&self, limits: ConnectionLimits) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let millis = u32::try_from(limits.write.as_millis()).unwrap_or(u32::MAX);
                rustix::net::sockopt::set_tcp_user_timeout(&stream, millis)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?;
                Ok(Stream::Unix(stream, Peer { uid: peer.uid(), gid: peer.gid(), pid: peer.pid() }))
            }
        }
    }
}

async fn serve<I, H>(
    stream: I,
    peer: Option<Peer>,
    handler: H,
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_BYTES as u32)
        .keep_alive_interval(limits.write)
        .keep_alive_timeout(limits.write);
    let spoken = Arc::new(AtomicBool::new(false));
    let service = service_fn({
        let spoken = spoken.clone();
        move |mut request: Request<Incoming>| {
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            spoken.store(true, Ordering::Relaxed);
            let handler = handler.clone();
            async move { Ok::<_, Infallible>(handler.handle(request).await) }
        }
    });
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    // While the protocol is being found out no limit of hyper's applies yet, so the first request has one of its own.
    let mut first_request = pin!(tokio::time::sleep(limits.headers));
    let (mut waiting, mut stopping) = (true, false);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            () = first_request.as_mut(), if waiting => {
                waiting = false;
                if !spoken.load(Ordering::Relaxed) {
                    return;
                }
            }
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
