//! Which path and method is which endpoint.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response};

use super::body::Body;
use super::error::ApiError;
use super::server::Handler;
use crate::api;
use crate::app::App;
use crate::page;

/// Answers the HTTP API's requests.
#[derive(Clone, Debug)]
pub struct Router {
    /// The daemon.
    pub app: Arc<App>,
}

/// The HTTP API's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Chat,
    Completions,
    Models,
    Model,
    Health,
    Slots,
    Tokenize,
    Detokenize,
    ApplyTemplate,
    Feed,
    Page,
}

impl Endpoint {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/models" => Self::Models,
            "/health" => Self::Health,
            "/slots" => Self::Slots,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/apply-template" => Self::ApplyTemplate,
            "/ws" => Self::Feed,
            _ if path.starts_with("/v1/models/") => Self::Model,
            _ if page::file(path).is_some() => Self::Page,
            _ => return None,
        })
    }

    fn allow(self) -> &'static str {
        match self {
            Self::Models | Self::Model | Self::Health | Self::Slots | Self::Feed | Self::Page => "GET, HEAD",
            _ => "POST",
        }
    }
}

impl Handler for Router {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        match self.answer(request).await {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(status = error.status().as_u16(), message = error.message(), "refused");
                error.to_response()
            }
        }
    }
}

impl Router {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
        let path = request.uri().path().to_owned();
        let endpoint = Endpoint::of(&path).ok_or_else(|| {
            ApiError::not_found(format!("there is no {path}; the API is at /v1/chat/completions and its neighbours"))
        })?;
        let method = request.method();
        let allowed = match endpoint.allow() {
            "POST" => method == Method::POST,
            _ => method == Method::GET || method == Method::HEAD,
        };
        if !allowed {
            return Err(ApiError::method_not_allowed(method.as_str(), &path, endpoint.allow()));
        }
        let app = &self.app;
        match endpoint {
            Endpoint::Health => Ok(api::health::health(app)),
            Endpoint::Models => api::models::list(app),
            Endpoint::Model => api::models::one(app, path.trim_start_matches("/v1/models/")),
            Endpoint::Slots => api::health::slots(app),
            Endpoint::Chat => api::chat::answer(app, request).await,
            Endpoint::Completions => api::completions::answer(app, request).await,
            Endpoint::Tokenize => api::text::tokenize(app, request).await,
            Endpoint::Detokenize => api::text::detokenize(app, request).await,
            Endpoint::Feed => page::feed::open(app, request),
            Endpoint::Page => page::file(&path).ok_or_else(|| ApiError::not_found(path)),
            Endpoint::ApplyTemplate => api::text::apply_template(app, request).await,
        }
    }
}
