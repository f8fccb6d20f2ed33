//! One page's WebSocket. It says which messages it has taken in; while it is behind with that it is told nothing more, and then
//! the newest state, so a slow page costs no memory and is never behind by more than a few messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use openjet_proto::live::FromPage;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::feed::Frame;
use crate::app::App;
use crate::http::admin::same_site;
use crate::http::body::{Body, full};
use crate::http::error::ApiError;

/// Most pages that are fed at once.
const READERS: usize = 256;

/// Messages that a page may be behind before it is told nothing more.
const BEHIND: usize = 4;

/// A page that has taken in nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(300);

/// Longest time for the network to take a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of the largest message that a page may send.
const MESSAGE_BYTES: usize = 256;

/// Bytes that are read from a page at once.
const READ_BYTES: usize = 1024;

/// Turns a request into a feed.
///
/// # Errors
/// 400 for what is no WebSocket handshake, 403 for a page of another site, 503 when too many pages are open.
pub fn open(app: &Arc<App>, mut request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let key = accept_key(request.headers())?;
    // Browsers let every site open WebSockets to every other.
    same_site(request.headers())?;
    if app.feed.readers() >= READERS {
        return Err(ApiError::unavailable(format!("{READERS} pages are open already"), 5));
    }
    let mut frames = app.feed.subscribe();
    frames.mark_changed();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => serve(TokioIo::new(upgraded), frames).await,
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
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or_else(|| ApiError::bad_request("Sec-WebSocket-Key is missing"))?;
    HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
        .map_err(|error| ApiError::internal(format!("the WebSocket's key can't be answered: {error}")))
}

/// What a page was sent and has taken in.
#[derive(Debug, Default)]
struct Reader {
    /// Number of the last message that was sent.
    sent: Option<u64>,
    /// Those that it has not taken in yet, in order.
    open: VecDeque<u64>,
}

impl Reader {
    /// Takes in what a page says.
    ///
    /// # Errors
    /// What it should have said.
    fn hear(&mut self, text: &str) -> Result<(), &'static str> {
        let Ok(FromPage::Seen(number)) = serde_json::from_str(text) else { return Err("say {\"seen\": NUMBER}") };
        if !self.open.contains(&number) {
            return Err("that message was not sent, or was seen before");
        }
        while self.open.front().is_some_and(|open| *open <= number) {
            self.open.pop_front();
        }
        Ok(())
    }

    /// The message for it, if it should have one.
    fn next(&mut self, frame: Option<&Frame>) -> Option<Utf8Bytes> {
        let frame = frame?;
        let message = frame.after(self.sent);
        self.sent = Some(frame.number);
        self.open.push_back(frame.number);
        Some(message)
    }
}

/// Sends messages until the page leaves, says something odd, or is silent for too long.
async fn serve<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    stream: S,
    mut frames: watch::Receiver<Option<Arc<Frame>>>,
) {
    // The library's own buffer for reading has room for messages that a page never sends.
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES));
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let mut reader = Reader::default();
    let mut heard = Instant::now();
    let parting = loop {
        tokio::select! {
            changed = frames.changed(), if reader.open.len() < BEHIND => {
                if changed.is_err() {
                    break None;
                }
                let frame = frames.borrow_and_update().clone();
                let Some(message) = reader.next(frame.as_deref()) else { continue };
                match timeout(PATIENCE, socket.send(Message::Text(message))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => break None,
                }
            }
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => match reader.hear(&text) {
                    Ok(()) => heard = Instant::now(),
                    Err(reason) => break Some((CloseCode::Policy, reason)),
                },
                // Pings are answered by the library.
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Binary(_))) => break Some((CloseCode::Unsupported, "say it in text")),
                _ => break None,
            },
            () = sleep_until(heard + SILENCE) => break Some((CloseCode::Away, "nothing was taken in for too long")),
        }
    };
    let parting = parting.map(|(code, reason)| CloseFrame { code, reason: Utf8Bytes::from_static(reason) });
    // The page may be gone already.
    let _gone = timeout(PATIENCE, socket.close(parting)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sent_can_be_seen() {
        let mut reader = Reader { sent: Some(9), open: [4, 7, 9].into() };
        for odd in
            ["", "seen", "{}", r#"{"seen": -1}"#, r#"{"seen": 5}"#, r#"{"seen": 4, "more": 1}"#, r#"{"gone": 4}"#]
        {
            assert!(reader.hear(odd).is_err(), "{odd}");
        }
        assert_eq!(reader.hear(r#"{"seen": 7}"#), Ok(()));
        assert_eq!(reader.open, [9]);
        assert!(reader.hear(r#"{"seen": 7}"#).is_err());
    }
}
