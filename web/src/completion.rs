//! A streamed answer of `/v1/chat/completions`.

use crate::fetch::{self, words};
use crate::turn::{Call, Turn};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortSignal, ReadableStreamDefaultReader, TextDecodeOptions, TextDecoder};

#[derive(Serialize)]
struct Question<'a> {
    model: &'a str,
    messages: &'a [Turn],
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Value>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// A piece of the answer.
#[derive(Debug, Default, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    timings: Option<Timings>,
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
    #[serde(default)]
    tool_calls: Vec<CallPiece>,
}

/// A call's beginning, with its id and name, or more of its arguments.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct CallPiece {
    index: usize,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: FunctionPiece,
}

#[derive(Debug, Default, Deserialize)]
struct FunctionPiece {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Usage {
    completion_tokens: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Timings {
    predicted_per_second: f64,
}

#[derive(Debug, Default, Deserialize)]
struct Problem {
    message: String,
}

/// What a piece adds.
#[derive(Debug, Default)]
pub(crate) struct Addition {
    content: String,
    thinking: String,
    calls: Vec<CallPiece>,
    /// Why the answer ended.
    pub(crate) finish: Option<String>,
    /// Tokens of the whole answer, and how many a second.
    pub(crate) speed: Option<(u64, f64)>,
}

impl Addition {
    /// Adds it to the answer.
    pub(crate) fn add_to(self, turn: &mut Turn) {
        turn.content += &self.content;
        turn.thinking += &self.thinking;
        for piece in self.calls {
            while turn.calls.len() <= piece.index {
                turn.calls.push(Call::default());
            }
            if let Some(call) = turn.calls.get_mut(piece.index) {
                call.id = piece.id.unwrap_or_else(|| std::mem::take(&mut call.id));
                call.name = piece.function.name.unwrap_or_else(|| std::mem::take(&mut call.name));
                call.arguments += &piece.function.arguments.unwrap_or_default();
            }
        }
    }
}

/// Asks, and hands each piece of the answer to `take` as it comes.
///
/// # Errors
/// The server's own words, or the browser's.
pub(crate) async fn ask(
    turns: &[Turn],
    tools: Option<Value>,
    session: &str,
    stop: &AbortSignal,
    mut take: impl FnMut(Addition),
) -> Result<(), String> {
    let stream_options = StreamOptions { include_usage: true };
    let question = Question { model: "openjet", messages: turns, stream: true, stream_options, tools };
    let body = serde_json::to_string(&question).map_err(|error| error.to_string())?;
    let headers = [("X-Session-Id", session)];
    let response = fetch::send("POST", "/v1/chat/completions", &headers, Some(&body), Some(stop)).await?;
    let reader = response.body().ok_or("the answer is empty")?.get_reader();
    let reader: ReadableStreamDefaultReader = reader.unchecked_into();
    let decoder = TextDecoder::new().map_err(|error| words(&error))?;
    let options = TextDecodeOptions::new();
    options.set_stream(true);
    let mut events = Events::default();
    loop {
        let piece = JsFuture::from(reader.read()).await.map_err(|error| words(&error))?;
        let value = js_sys::Reflect::get(&piece, &"value".into()).map_err(|error| words(&error))?;
        let Ok(bytes) = value.dyn_into::<js_sys::Uint8Array>() else { return Ok(()) };
        let text = decoder.decode_with_buffer_source_and_options(&bytes, &options).map_err(|error| words(&error))?;
        for event in events.push(&text) {
            // What ends the stream is no JSON.
            let chunk = serde_json::from_str::<Chunk>(&event).unwrap_or_default();
            if let Some(problem) = chunk.error {
                return Err(problem.message);
            }
            take(addition(chunk));
        }
    }
}

fn addition(chunk: Chunk) -> Addition {
    let speed = chunk.usage.zip(chunk.timings);
    let speed = speed.map(|(usage, timings)| (usage.completion_tokens, timings.predicted_per_second));
    let mut addition = Addition { speed, ..Addition::default() };
    for choice in chunk.choices {
        addition.content += &choice.delta.content.unwrap_or_default();
        addition.thinking += &choice.delta.reasoning_content.unwrap_or_default();
        addition.calls.extend(choice.delta.tool_calls);
        addition.finish = choice.finish_reason.or(addition.finish);
    }
    addition
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
