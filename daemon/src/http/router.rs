//! Which path and method is which endpoint.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};

use super::body::{Body, json_text};
use super::cors;
use super::error::{ApiError, Family};
use super::limits;
use super::server::Handler;
use crate::api::head::session;
use crate::app::App;
use crate::control::Control;
use crate::requests::refused;
use crate::{api, metrics, page};

/// Answers the HTTP API's requests.
#[derive(Clone, Debug)]
pub struct Router {
    /// The daemon.
    pub app: Arc<App>,
}

/// Below this path is what the control socket serves, for those who may change things.
const CONTROL: &str = "/control/";

/// The HTTP API's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Chat,
    Completions,
    Messages,
    CountTokens,
    Responses,
    Models,
    Model,
    Health,
    Slots,
    Tokenize,
    Detokenize,
    ApplyTemplate,
    Embeddings,
    OpenApi,
    Metrics,
    Control,
    Feed,
    Page,
}

impl Endpoint {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/responses" => Self::Responses,
            "/v1/models" => Self::Models,
            "/health" => Self::Health,
            "/slots" => Self::Slots,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/apply-template" => Self::ApplyTemplate,
            "/v1/embeddings" => Self::Embeddings,
            "/openapi.json" => Self::OpenApi,
            "/metrics" => Self::Metrics,
            "/ws" => Self::Feed,
            _ if path.starts_with(CONTROL) => Self::Control,
            _ if path.starts_with("/v1/models/") => Self::Model,
            _ if page::file(path).is_some() => Self::Page,
            _ => return None,
        })
    }

    /// Whether it asks something of the model, which is loaded for it if it was unloaded for want of use.
    fn needs_model(self) -> bool {
        let about_it =
            matches!(self, Self::Health | Self::OpenApi | Self::Metrics | Self::Control | Self::Feed | Self::Page);
        !about_it && self != Self::Embeddings
    }

    /// Whether it has a model write.
    fn writes(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Messages | Self::Responses)
    }

    fn allow(self) -> &'static str {
        match self {
            // The control API says itself what it takes.
            Self::Control => "",
            Self::Chat
            | Self::Completions
            | Self::Messages
            | Self::CountTokens
            | Self::Responses
            | Self::Embeddings
            | Self::Tokenize
            | Self::Detokenize
            | Self::ApplyTemplate => "POST",
            _ => "GET, HEAD",
        }
    }
}

/// Whose errors a request's client understands.
fn family<B>(request: &Request<B>) -> Family {
    let anthropic =
        request.uri().path().starts_with("/v1/messages") || request.headers().contains_key("anthropic-version");
    if anthropic { Family::Anthropic } else { Family::OpenAi }
}

impl Handler for Router {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let family = family(&request);
        let origin = cors::allowed(&request, &self.app.config().cors_origins);
        let path = request.uri().path().to_owned();
        let conversation = session(&request).ok().flatten();
        let mut response = match self.admitted(request, origin.is_some()).await {
            Ok(response) => response,
            Err(error) => {
                if Endpoint::of(&path).is_some_and(Endpoint::writes) && !error.is_recorded() {
                    let reason = format!("{}: {}", error.status().as_u16(), error.message());
                    self.app.requests_over.add(refused(path, conversation, reason));
                }
                tracing::debug!(status = error.status().as_u16(), message = error.message(), "refused");
                error.to_response(family)
            }
        };
        if let Some(origin) = origin {
            cors::open(&mut response, origin);
        }
        response
    }
}

impl Router {
    /// The answer to a request that may ask.
    async fn admitted(&self, request: Request<Incoming>, cross_origin: bool) -> Result<Response<Body>, ApiError> {
        if cross_origin && cors::is_preflight(&request) {
            return Ok(cors::preflight(&request));
        }
        limits::check(&request)?;
        // Whether it lives is nobody's secret.
        if request.uri().path() == "/health" {
            return self.answer(request).await;
        }
        let admission = self.app.keys().admit(&request)?;
        let response = self.answer(request).await?;
        if !admission.is_limited() {
            return Ok(response);
        }
        // It counts until the last byte is sent or the client has left.
        Ok(response.map(|body| {
            let kept = move |frame| {
                let _until_the_end = &admission;
                frame
            };
            body.map_frame(kept).boxed_unsync()
        }))
    }

    /// Hands a request to the control API, for whoever may change things.
    async fn control(&self, mut request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
        self.app.admin.admit(&request)?;
        let path = request.uri().path();
        let inner = path.get(CONTROL.len() - 1..).unwrap_or_default();
        let uri = inner.parse().map_err(|error| ApiError::not_found(format!("there is no {path}: {error}")))?;
        *request.uri_mut() = uri;
        Ok(Control { app: self.app.clone() }.handle(request).await)
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
        let path = request.uri().path().to_owned();
        let endpoint = Endpoint::of(&path).ok_or_else(|| {
            ApiError::not_found(format!("there is no {path}; the API is at /v1/chat/completions and its neighbours"))
        })?;
        let method = request.method();
        let allowed = match endpoint.allow() {
            "" => true,
            "POST" => method == Method::POST,
            _ => method == Method::GET || method == Method::HEAD,
        };
        if !allowed {
            return Err(ApiError::method_not_allowed(method.as_str(), &path, endpoint.allow()));
        }
        let app = &self.app;
        if endpoint.needs_model() {
            app.change.wake(app).await?;
        }
        match endpoint {
            Endpoint::Health => Ok(api::health::health(app)),
            Endpoint::Models => api::models::list(app),
            Endpoint::Model => api::models::one(app, path.trim_start_matches("/v1/models/")),
            Endpoint::Embeddings => Err(ApiError::not_found(
                "models of this family write text: they give no useful embeddings, so there are none here",
            )
            .with_code("no_embeddings")),
            Endpoint::OpenApi => Ok(json_text(api::reference::openapi())),
            Endpoint::Metrics => metrics::scrape(app),
            Endpoint::Slots => api::health::slots(app),
            Endpoint::Chat => api::chat::answer(app, request).await,
            Endpoint::Completions => api::completions::answer(app, request).await,
            Endpoint::Messages => api::messages::answer(app, request).await,
            Endpoint::CountTokens => api::messages::count_tokens(app, request).await,
            Endpoint::Responses => api::responses::answer(app, request).await,
            Endpoint::Tokenize => api::text::tokenize(app, request).await,
            Endpoint::Detokenize => api::text::detokenize(app, request).await,
            Endpoint::Control => self.control(request).await,
            Endpoint::Feed => page::socket::open(app, request),
            Endpoint::Page => page::file(&path).ok_or_else(|| ApiError::not_found(path)),
            Endpoint::ApplyTemplate => api::text::apply_template(app, request).await,
        }
    }
}
