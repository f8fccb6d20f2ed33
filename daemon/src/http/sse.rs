//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::Value;

use super::body::Body;

/// Something that writes events until it is done. It is dropped when the client goes away.
pub trait EventSource: Send + 'static {
    /// The next bytes of the stream, any number of whole events; `None` at the end. Must be cancel-safe: it is dropped and
    /// called again around pings.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;

    /// What is sent when there has been nothing to say for a while.
    fn ping(&self) -> Bytes {
        Bytes::from_static(b": ping\n\n")
    }
}

/// One `data:` event.
#[must_use]
pub fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// One event with a name.
#[must_use]
pub fn event(name: &str, value: &Value) -> String {
    format!("event: {name}\ndata: {value}\n\n")
}

/// What ends a stream of the `OpenAI` chat and completion APIs.
pub const DONE: &str = "data: [DONE]\n\n";

/// A response that sends `source`'s events, and a sign of life whenever it has been silent for `ping`.
pub fn response<S: EventSource>(source: S, ping: Duration) -> Response<Body> {
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames(source, ping))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn frames<S: EventSource>(source: S, ping: Duration) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    futures_util::stream::unfold(source, move |mut source| async move {
        let bytes = match tokio::time::timeout(ping, source.next()).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return None,
            Err(_) => source.ping(),
        };
        Some((Ok(Frame::data(bytes)), source))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::StreamExt;

    use super::*;

    struct Slow(u32);

    impl EventSource for Slow {
        async fn next(&mut self) -> Option<Bytes> {
            tokio::time::sleep(Duration::from_millis(if self.0 == 1 { 60 } else { 0 })).await;
            self.0 += 1;
            (self.0 < 3).then(|| Bytes::from(format!("{}", self.0)))
        }
    }

    #[tokio::test]
    async fn silence_is_filled_with_comments() {
        let all: Vec<_> =
            frames(Slow(0), Duration::from_millis(40)).map(|f| f.unwrap().into_data().unwrap()).take(3).collect().await;
        assert_eq!(all, ["1", ": ping\n\n", ": ping\n\n"]);
    }
}
