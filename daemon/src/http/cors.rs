//! Cross-origin requests of web pages: refused, unless a page's origin is among the settings.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, Request, Response, StatusCode};

use super::body::{Body, full};

/// The origin of a request, if it is one that may ask.
#[must_use]
pub fn allowed<B>(request: &Request<B>, origins: &[String]) -> Option<HeaderValue> {
    let origin = request.headers().get(ORIGIN)?;
    origins.iter().any(|known| known == "*" || known.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}

/// Whether a browser asks what it may ask.
#[must_use]
pub fn is_preflight<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to that: what an allowed page wants to send it may send.
#[must_use]
pub fn preflight<B>(request: &Request<B>) -> Response<Body> {
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(names) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    response
}

/// Lets pages of `origin` read the response.
pub fn open(response: &mut Response<Body>, origin: HeaderValue) {
    response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    response.headers_mut().insert(VARY, HeaderValue::from_static("origin"));
}
