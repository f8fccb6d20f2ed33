//! What went wrong with a request, in the shape of the API that it came by.

use hyper::header::{ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use openjet_engine::request::RequestError;
use serde_json::{Value, json};

use super::body::{Body, json_response};

/// A refusal or failure, boxed so that results stay small.
#[derive(Clone, Debug)]
pub struct ApiError(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    message: String,
    param: Option<String>,
    /// Prompt tokens and context tokens of an overflow.
    overflow: Option<(usize, usize)>,
    retry_after_s: Option<u64>,
    allow: Option<&'static str>,
    /// Browsers are to ask for a key.
    challenge: bool,
    /// It stands in the log of requests already.
    recorded: bool,
}

/// Whose shape an error has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `{"error": {...}}`.
    OpenAi,
    /// `{"type": "error", "error": {...}}`.
    Anthropic,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            status,
            kind,
            code: None,
            message: message.into(),
            param: None,
            overflow: None,
            retry_after_s: None,
            allow: None,
            challenge: false,
            recorded: false,
        }))
    }

    /// 400: the request as a whole can't be served.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: a field can't be served; `param` is its path, as in `messages[2].content`.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).with_param(param)
    }

    /// 401.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        let message = format!("{}; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`", message.into());
        let mut error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        error.0.challenge = true;
        error.with_code("invalid_api_key")
    }

    /// 401: the admin key, which goes into `header`.
    pub fn unauthorized_admin(message: impl Into<String>, header: &str) -> Self {
        let message = format!("{}; send it as `{header}: KEY`", message.into());
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message).with_code("invalid_admin_key")
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message).with_code("forbidden")
    }

    /// 429: one client's share is used up.
    pub fn too_many(message: impl Into<String>, retry_after_s: u64) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        error.0.retry_after_s = Some(retry_after_s);
        error.with_code("rate_limit_exceeded")
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("not_found")
    }

    /// 405, with the methods that the path has.
    pub fn method_not_allowed(method: &str, path: &str, allow: &'static str) -> Self {
        let message = format!("{path} does not take {method}; it takes {allow}");
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message);
        error.0.allow = Some(allow);
        error.with_code("method_not_allowed")
    }

    /// 408: the client was too slow.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message).with_code("request_timeout")
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes; the daemon's setting body_limit_mib raises that");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message).with_code("body_too_large")
    }

    /// 415.
    pub fn not_json(found: &str) -> Self {
        let message = format!("the Content-Type is {found}; send application/json");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
            .with_code("unsupported_media_type")
    }

    /// 431: too many headers, or too long ones.
    pub fn head_too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error", message)
            .with_code("headers_too_large")
    }

    /// 503: not now.
    pub fn unavailable(message: impl Into<String>, retry_after_s: u64) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        error.0.retry_after_s = Some(retry_after_s);
        error.with_code("unavailable")
    }

    /// 500: the daemon's own fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message).with_code("internal_error")
    }

    /// The same with another machine-readable code.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.0.code = Some(code);
        self
    }

    /// The same about the field at `param`.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.0.param = Some(param.into());
        self
    }

    /// The same, and an overflow is one of the field at `param`.
    #[must_use]
    pub fn overflow_of(self, param: impl Into<String>) -> Self {
        if self.0.overflow.is_some() { self.with_param(param) } else { self }
    }

    /// The same, which the log of requests has.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        self.0.recorded = true;
        self
    }

    /// Whether the log of requests has it already.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.0.recorded
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// For people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Path of the field at fault.
    #[must_use]
    pub fn param_name(&self) -> Option<&str> {
        self.0.param.as_deref()
    }

    /// The response's body.
    #[must_use]
    pub fn to_json(&self, family: Family) -> Value {
        match family {
            Family::OpenAi => self.openai(),
            Family::Anthropic => self.anthropic(),
        }
    }

    fn openai(&self) -> Value {
        let Inner { kind, code, message, param, overflow, .. } = &*self.0;
        let mut error = json!({ "message": message, "type": kind, "param": param, "code": code });
        if let Some((prompt, context)) = overflow {
            error["n_prompt_tokens"] = json!(prompt);
            error["n_ctx"] = json!(context);
        }
        json!({ "error": error })
    }

    fn anthropic(&self) -> Value {
        let Inner { status, message, overflow, .. } = &*self.0;
        let kind = match status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        // The words by which clients know that they have to compact the conversation.
        let message = match overflow {
            Some((prompt, context)) => format!("prompt is too long: {prompt} tokens > {context} maximum"),
            None => message.clone(),
        };
        json!({ "type": "error", "error": { "type": kind, "message": message } })
    }

    /// The whole response.
    #[must_use]
    pub fn to_response(&self, family: Family) -> Response<Body> {
        let mut response = json_response(self.0.status, &self.to_json(family));
        if let Some(seconds) = self.0.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.0.challenge {
            // Browsers then ask for it, for the page.
            let scheme = HeaderValue::from_static("Basic realm=\"openjet\", charset=\"UTF-8\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        if let Some(allow) = self.0.allow {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        match error {
            RequestError::ContextOverflow { prompt_tokens, context, .. } => {
                let mut error = Self::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message);
                error.0.overflow = Some((prompt_tokens, context));
                error.with_code("context_length_exceeded")
            }
            RequestError::Invalid { field, .. } => Self::param(field, message),
            RequestError::QueueFull { retry_after_s, .. } => {
                Self::unavailable(message, retry_after_s).with_code("queue_full")
            }
            RequestError::Unavailable(_) => Self::unavailable(message, 5),
            RequestError::Kicked { .. } => Self::unavailable(message, 1).with_code("kicked"),
            RequestError::Constraint { .. } => Self::internal(message).with_code("constraint_failed"),
            RequestError::NotFinite { .. } => Self::internal(message).with_code("not_finite"),
            RequestError::NothingAllowed { .. } => Self::internal(message).with_code("nothing_allowed"),
        }
    }
}
