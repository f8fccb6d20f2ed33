//! How large a request's head may be. What is far above that is refused by the HTTP library, without a body.

use hyper::Request;

use super::error::ApiError;

/// Most bytes of a request's target and headers.
pub(super) const HEADER_BYTES: usize = 64 << 10;

/// Most headers of a request.
pub(super) const HEADERS: usize = 100;

/// Checks the head of a request.
///
/// # Errors
/// 431.
pub(super) fn check<B>(request: &Request<B>) -> Result<(), ApiError> {
    let headers = request.headers();
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let bytes: usize =
        target + headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>();
    if headers.len() > HEADERS {
        let message = format!("the request has {} headers, but may have up to {HEADERS}", headers.len());
        return Err(ApiError::head_too_large(message));
    }
    if bytes > HEADER_BYTES {
        let message = format!("the request's headers have {bytes} bytes, but may have up to {HEADER_BYTES}");
        return Err(ApiError::head_too_large(message));
    }
    Ok(())
}
