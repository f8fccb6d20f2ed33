//! Snapshots of the engine for open pages, over a WebSocket. All pages share each snapshot, and a slow one misses some.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, HOST, HeaderMap, HeaderValue, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::app::App;
use crate::http::body::{Body, full};
use crate::http::error::ApiError;

/// Time between snapshots.
const PERIOD: Duration = Duration::from_millis(200);

/// Most pages that are fed at once.
const READERS: usize = 256;

/// A reader that takes longer than this for one snapshot is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of the largest message that a reader may send; it has nothing to say.
const MESSAGE_BYTES: usize = 4096;

/// Hands snapshots to all readers.
#[derive(Debug)]
pub struct Feed(watch::Sender<Utf8Bytes>);

impl Feed {
    /// A feed that has no snapshot yet.
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(Utf8Bytes::default()))
    }

    /// Makes snapshots for as long as there is an engine and somebody reads.
    pub async fn run(app: Arc<App>) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let feed = &app.feed.0;
            if feed.receiver_count() == 0 {
                continue;
            }
            if let Some(serving) = app.phase().loaded() {
                match serde_json::to_string(&*serving.engine.status()) {
                    Ok(text) => feed.send_modify(|last| *last = text.into()),
                    Err(error) => tracing::error!(%error, "a snapshot could not be written"),
                }
            }
        }
    }
}

impl Default for Feed {
    fn default() -> Self {
        Self::new()
    }
}

/// Turns a request into a feed.
///
/// # Errors
/// 400 for what is no WebSocket handshake or comes from another site's page, 503 when too many pages are open.
pub fn open(app: &Arc<App>, mut request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let key = accept_key(request.headers())?;
    if app.feed.0.receiver_count() >= READERS {
        return Err(ApiError::unavailable(format!("{READERS} pages are open already"), 5));
    }
    let snapshots = app.feed.0.subscribe();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => serve(TokioIo::new(upgraded), snapshots).await,
            Err(error) => tracing::debug!(%error, "a WebSocket did not come about"),
        }
    });
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, key);
    Ok(response)
}

fn accept_key(headers: &HeaderMap) -> Result<HeaderValue, ApiError> {
    let is = |name, value: &str| {
        headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok()).is_some_and(|v| v.eq_ignore_ascii_case(value))
    };
    if !is(UPGRADE, "websocket") || !is(SEC_WEBSOCKET_VERSION, "13") {
        return Err(ApiError::bad_request("this path is for WebSockets, version 13"));
    }
    // Browsers say which site a page is from, and let every site open WebSockets to every other.
    if let Some(origin) = headers.get(ORIGIN) {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        let site = origin.as_ref().and_then(|origin| origin.authority()).map(ToString::to_string);
        if site.is_none_or(|site| !is(HOST, &site)) {
            return Err(ApiError::bad_request("pages of other sites can't read this"));
        }
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or_else(|| ApiError::bad_request("Sec-WebSocket-Key is missing"))?;
    HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
        .map_err(|error| ApiError::internal(format!("the WebSocket's key can't be answered: {error}")))
}

/// Sends snapshots until the reader leaves, sends something odd, or is too slow.
async fn serve<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    stream: S,
    mut snapshots: watch::Receiver<Utf8Bytes>,
) {
    let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES)).max_frame_size(Some(MESSAGE_BYTES));
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    loop {
        tokio::select! {
            changed = snapshots.changed() => {
                if changed.is_err() {
                    break;
                }
                let snapshot = snapshots.borrow_and_update().clone();
                match tokio::time::timeout(PATIENCE, socket.send(Message::Text(snapshot))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => break,
                }
            }
            message = socket.next() => match message {
                // Pings are answered by the library.
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => break,
            },
        }
    }
    // The reader may be gone already.
    let _gone = tokio::time::timeout(PATIENCE, socket.close(None)).await;
}
