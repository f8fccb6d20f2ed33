//! A streamed answer of `/v1/chat/completions`.

use serde::{Deserialize, Serialize};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortSignal, Headers, ReadableStreamDefaultReader, RequestInit, Response, TextDecoder};

/// One turn of the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Turn {
    /// `user` or `assistant`.
    pub(crate) role: &'static str,
    /// What was said.
    pub(crate) content: String,
    /// What was thought before it; it isn't sent back.
    #[serde(skip)]
    pub(crate) thinking: String,
    /// What there is to say about it, for people.
    #[serde(skip)]
    pub(crate) note: String,
}

#[derive(Serialize)]
struct Question<'a> {
    model: &'a str,
    messages: &'a [Turn],
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// A piece of the answer.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<Problem>,
}

#[derive(Debug, Default, Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Usage {
    completion_tokens: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Problem {
    message: String,
}

/// What a piece adds.
#[derive(Debug, Default)]
pub(crate) struct Addition {
    /// Words.
    pub(crate) content: String,
    /// Thoughts.
    pub(crate) thinking: String,
    /// Why the answer ended.
    pub(crate) finish: Option<String>,
    /// Tokens of the whole answer.
    pub(crate) tokens: Option<u64>,
}

/// Asks, and hands each piece of the answer to `take` as it comes.
///
/// # Errors
/// The server's own words, or the browser's.
pub(crate) async fn ask(turns: &[Turn], stop: &AbortSignal, mut take: impl FnMut(Addition)) -> Result<(), String> {
    let question = Question {
        model: "openjet",
        messages: turns,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
    };
    let body = serde_json::to_string(&question).map_err(|error| error.to_string())?;
    let response = send(&body, stop).await.map_err(|error| words(&error))?;
    if !response.ok() {
        let text = match response.text() {
            Ok(text) => JsFuture::from(text).await.ok().and_then(|text| text.as_string()).unwrap_or_default(),
            Err(_) => String::new(),
        };
        let problem = serde_json::from_str::<Chunk>(&text).ok().and_then(|chunk| chunk.error);
        return Err(problem.map_or_else(|| format!("status {}", response.status()), |problem| problem.message));
    }
    let reader = response.body().ok_or("the answer is empty")?.get_reader();
    let reader: ReadableStreamDefaultReader = reader.unchecked_into();
    let decoder = TextDecoder::new().map_err(|error| words(&error))?;
    let mut events = Events::default();
    loop {
        let piece = JsFuture::from(reader.read()).await.map_err(|error| words(&error))?;
        let value = js_sys::Reflect::get(&piece, &"value".into()).map_err(|error| words(&error))?;
        let Ok(bytes) = value.dyn_into::<js_sys::Uint8Array>() else { return Ok(()) };
        let options = web_sys::TextDecodeOptions::new();
        options.set_stream(true);
        let text = decoder.decode_with_buffer_source_and_options(&bytes, &options).map_err(|error| words(&error))?;
        for event in events.push(&text) {
            let chunk = serde_json::from_str::<Chunk>(&event).unwrap_or_default();
            if let Some(problem) = chunk.error {
                return Err(problem.message);
            }
            take(addition(chunk));
        }
    }
}

async fn send(body: &str, stop: &AbortSignal) -> Result<Response, JsValue> {
    let headers = Headers::new()?;
    headers.set("Content-Type", "application/json")?;
    let request = RequestInit::new();
    request.set_method("POST");
    request.set_headers(&headers);
    request.set_body(&body.into());
    request.set_signal(Some(stop));
    let window = web_sys::window().ok_or("no window")?;
    JsFuture::from(window.fetch_with_str_and_init("/v1/chat/completions", &request)).await?.dyn_into()
}

fn addition(chunk: Chunk) -> Addition {
    let mut addition = Addition { tokens: chunk.usage.map(|usage| usage.completion_tokens), ..Addition::default() };
    for choice in chunk.choices {
        addition.content += &choice.delta.content.unwrap_or_default();
        addition.thinking += &choice.delta.reasoning_content.unwrap_or_default();
        addition.finish = choice.finish_reason.or(addition.finish);
    }
    addition
}

/// What the browser says went wrong.
fn words(error: &JsValue) -> String {
    error
        .dyn_ref::<js_sys::Error>()
        .map_or_else(|| "the browser can't say what".to_owned(), |error| error.message().into())
}

/// Cuts a stream of server-sent events into the data of each.
#[derive(Debug, Default)]
struct Events {
    rest: String,
}

impl Events {
    fn push(&mut self, text: &str) -> Vec<String> {
        self.rest += text;
        let mut data = Vec::new();
        while let Some(end) = self.rest.find('\n') {
            let line: String = self.rest.drain(..=end).collect();
            if let Some(event) = line.trim_end().strip_prefix("data:") {
                data.push(event.trim_start().to_owned());
            }
        }
        data
    }
}
