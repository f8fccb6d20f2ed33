//! The page and what it is told.

pub mod feed;
pub mod socket;

use bytes::Bytes;
use hyper::Response;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};

use crate::http::body::{Body, full};

/// Path, content type and content of the built page's files; empty when it was not built.
static FILES: &[(&str, &str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Stands in for a page that was not built.
static PLAIN: &str = include_str!("plain.html");

/// Nothing from elsewhere, nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's file at `path`, if there is one.
#[must_use]
pub fn file(path: &str) -> Option<Response<Body>> {
    let wanted = if path == "/" { "/index.html" } else { path };
    let (kind, content): (_, Bytes) = match FILES.iter().find(|(name, ..)| *name == wanted) {
        Some((_, kind, content)) => (*kind, Bytes::from_static(content)),
        None if path == "/" => ("text/html; charset=utf-8", Bytes::from_static(PLAIN.as_bytes())),
        None => return None,
    };
    let mut response = Response::new(full(content));
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}
