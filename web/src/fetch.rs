//! Requests to the daemon that served this page.

use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortSignal, Headers, RequestInit, Response};

/// Sends a request, JSON in its body if there is one.
///
/// # Errors
/// The daemon's own words, or the browser's.
pub(crate) async fn send(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
    stop: Option<&AbortSignal>,
) -> Result<Response, String> {
    let response = fetch(method, path, headers, body, stop).await.map_err(|error| words(&error))?;
    if response.ok() {
        return Ok(response);
    }
    let text = text(&response).await.unwrap_or_default();
    let said = serde_json::from_str::<serde_json::Value>(&text).ok();
    let said = said.as_ref().and_then(|said| said.get("error"));
    let part = |name: &str| said.and_then(|error| error.get(name)?.as_str());
    let hint = part("hint").map_or_else(String::new, |hint| format!(" ({hint})"));
    Err(part("message").map_or_else(|| format!("status {}", response.status()), |message| format!("{message}{hint}")))
}

/// A response's body.
///
/// # Errors
/// The browser's words.
pub(crate) async fn text(response: &Response) -> Result<String, String> {
    let text = JsFuture::from(response.text().map_err(|error| words(&error))?).await.map_err(|error| words(&error))?;
    Ok(text.as_string().unwrap_or_default())
}

async fn fetch(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
    stop: Option<&AbortSignal>,
) -> Result<Response, JsValue> {
    let list = Headers::new()?;
    list.set("Content-Type", "application/json")?;
    for (name, value) in headers {
        list.set(name, value)?;
    }
    let request = RequestInit::new();
    request.set_method(method);
    request.set_headers(&list);
    request.set_signal(stop);
    if let Some(body) = body {
        request.set_body(&body.into());
    }
    let window = web_sys::window().ok_or("no window")?;
    JsFuture::from(window.fetch_with_str_and_init(path, &request)).await?.dyn_into()
}

/// What the browser says went wrong.
pub(crate) fn words(error: &JsValue) -> String {
    error
        .dyn_ref::<js_sys::Error>()
        .map_or_else(|| "the browser can't say what".to_owned(), |error| error.message().into())
}
