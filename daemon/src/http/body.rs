//! Request bodies in, response bodies out.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::Value;

use super::error::ApiError;

/// Every response's body.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What a request's body may cost.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Most bytes.
    pub bytes: usize,
    /// Longest wait for its end.
    pub time: Duration,
}

/// A whole body.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A JSON response.
#[must_use]
pub fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = json_text(value.to_string());
    *response.status_mut() = status;
    response
}

/// A response of 200 with JSON that is written already.
pub fn json_text(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The JSON in a request's body.
///
/// # Errors
/// 415 without a JSON content type (which also keeps web pages of other origins from sending requests unasked), 413 and
/// 408 past the limits, 400 for what is not UTF-8 or not JSON, with its place.
pub async fn read_json(request: Request<Incoming>, limits: BodyLimits) -> Result<Value, ApiError> {
    check_content_type(request.headers().get(CONTENT_TYPE))?;
    let body = request.into_body();
    if body.size_hint().lower() > limits.bytes as u64 {
        return Err(ApiError::too_large(limits.bytes));
    }
    let bytes = match tokio::time::timeout(limits.time, Limited::new(body, limits.bytes).collect()).await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) => return Err(read_error(&*error, limits)),
        Err(_) => {
            let message = format!("the body was not complete after {} s", limits.time.as_secs());
            return Err(ApiError::timeout(message));
        }
    };
    parse_json(&bytes)
}

fn check_content_type(header: Option<&HeaderValue>) -> Result<(), ApiError> {
    let Some(value) = header else { return Err(ApiError::not_json("missing")) };
    let found = String::from_utf8_lossy(value.as_bytes());
    let essence = found.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(ApiError::not_json(&found)) }
}

fn read_error(error: &(dyn Error + 'static), limits: BodyLimits) -> ApiError {
    if error.is::<LengthLimitError>() {
        ApiError::too_large(limits.bytes)
    } else {
        ApiError::bad_request(format!("the body could not be read: {error}"))
    }
}

fn parse_json(bytes: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        ApiError::bad_request(format!("the body is not UTF-8 at byte {}", error.valid_up_to()))
            .with_code("invalid_utf8")
    })?;
    serde_json::from_str(text).map_err(|error| {
        ApiError::bad_request(format!("the body is not valid JSON: {error}")).with_code("invalid_json")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn json_errors_name_their_place() {
        let error = parse_json(b"{\n  \"a\": tru }").unwrap_err();
        assert!(error.message().contains("line 2 column"), "{}", error.message());
        let error = parse_json(b"{\"prompt\":\"\xff\"}").unwrap_err();
        assert!(error.message().contains("not UTF-8 at byte 11"), "{}", error.message());
        assert_eq!(parse_json(b"{\"a\": [1, null]}").unwrap(), serde_json::json!({"a": [1, null]}));
        assert!(parse_json("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn only_json_is_taken() {
        let check = |text: &'static str| check_content_type(Some(&HeaderValue::from_static(text)));
        assert!(check("application/json").is_ok());
        assert!(check("Application/JSON; charset=utf-8").is_ok());
        for other in ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"] {
            assert_eq!(check(other).unwrap_err().status(), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{other}");
        }
        assert!(check_content_type(None).is_err());
    }
}
