//! What a follow-up costs before the model has anything to do: a conversation of 23,000 tokens that has its slot already gets one
//! more question, as a chat and as token ids. The backend computes nothing, so what is left is the daemon's and the engine's.
//!
//! `cargo run --release -p openjetd --example follow_up`
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "this is a program that prints a table")]

#[path = "../../engine/tests/support/vocabularies.rs"]
mod vocabularies;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use openjet_engine::backend::{Backend, BackendError, BackendOptions, KvType, StateImage};
use openjet_engine::drafts::StepCost;
use openjet_engine::engine::{Engine, EngineConfig};
use openjet_engine::request::{Event, Request};
use openjet_engine::step::{PageId, Sampled, SegmentOutput, SlotId, Step};
use openjet_engine::text::{ChatTemplate, Tokenizer, TokenizerSpec};
use openjetd::api::sampling::SamplingDefaults;
use openjetd::api::{chat, completions};
use serde_json::{Value, json};

const TOKENS: usize = 23_000;
const MESSAGES: usize = 60;
const RUNS: usize = 7;
/// What the backend writes.
const ANSWER: u32 = 1000;

/// Takes every step at once, and says when it began.
#[derive(Debug)]
struct Nothing(Arc<Mutex<Option<Instant>>>);

impl Backend for Nothing {
    fn describe(&self) -> String {
        "nothing".into()
    }

    fn options(&self) -> BackendOptions {
        BackendOptions { slots: 4, pages: 2048, kv: KvType::Q8_0, draft_max: 0 }
    }

    fn cost(&self) -> StepCost {
        StepCost::default()
    }

    fn step(&mut self, step: &Step<'_>) -> Result<Vec<SegmentOutput>, BackendError> {
        self.0.lock().unwrap().get_or_insert_with(Instant::now);
        let token = || vec![Sampled { token: ANSWER, logprobs: None }];
        let output =
            |samples: bool| SegmentOutput { tokens: if samples { token() } else { Vec::new() }, ..Default::default() };
        Ok(step.segments.iter().map(|segment| output(segment.sample.is_some())).collect())
    }

    fn reset_slot(&mut self, _slot: SlotId) -> Result<(), BackendError> {
        Ok(())
    }

    fn save_state(&mut self, _slot: SlotId) -> Result<Arc<StateImage>, BackendError> {
        Ok(Arc::new(StateImage::new(Vec::new())))
    }

    fn load_state(&mut self, _slot: SlotId, _image: &StateImage) -> Result<(), BackendError> {
        Ok(())
    }

    fn save_page(&mut self, _page: PageId) -> Result<Vec<u8>, BackendError> {
        Ok(Vec::new())
    }

    fn load_page(&mut self, _page: PageId, _cells: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }
}

struct Bench {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    engine: Engine,
    began: Arc<Mutex<Option<Instant>>>,
}

impl Bench {
    fn new() -> Self {
        let tokenizer = Arc::new(Tokenizer::new(&vocabularies::Released::load().spec()).unwrap());
        let file = vocabularies::tiny_file();
        let template = ChatTemplate::new(TokenizerSpec::from_gguf(&file).unwrap().chat_template.unwrap(), &tokenizer);
        let began = Arc::default();
        let config = EngineConfig { draft: 0, ..EngineConfig::new(65_536, tokenizer.vocab_size(), vec![]) };
        let (engine, _thread) = Engine::start(Box::new(Nothing(Arc::clone(&began))), config).unwrap();
        Self { template: template.unwrap(), tokenizer, engine, began }
    }

    /// Has a request served, and returns what passed from its submission to its first step.
    fn serve(&self, request: Request) -> Duration {
        *self.began.lock().unwrap() = None;
        let submitted = Instant::now();
        let mut generation = self.engine.submit(Request { max_tokens: Some(8), ignore_end: true, ..request }).unwrap();
        while !matches!(generation.events.blocking_recv(), Some(Event::Finished(_))) {}
        let began = self.began.lock().unwrap().unwrap();
        began - submitted
    }

    /// A chat of so many messages: the parts' times. On a thread of its own, as the daemon's are.
    fn chat(&self, messages: &[Value]) -> (usize, [Duration; 4]) {
        std::thread::scope(|scope| scope.spawn(|| self.chat_here(messages)).join().unwrap())
    }

    fn chat_here(&self, messages: &[Value]) -> (usize, [Duration; 4]) {
        let body = json!({"model": "m", "messages": messages, "stream": true, "temperature": 0}).to_string();
        let (value, parsed) = timed(|| serde_json::from_str::<Value>(&body).unwrap());
        let vocab = self.tokenizer.vocab_size();
        let (asked, checked) = timed(|| chat::request::parse(value, SamplingDefaults::FAMILY, vocab).unwrap());
        let (prompt, rendered) = timed(|| self.template.prompt(&asked.chat, &self.tokenizer).unwrap());
        let tokens = prompt.tokens.len();
        let request = Request {
            prompt: prompt.tokens,
            system_until: prompt.system_until,
            generation_prompt_at: prompt.generation_prompt_at,
            ..Request::default()
        };
        (tokens, [parsed, checked, rendered, self.serve(request)])
    }

    fn ids(&self, ids: &[u32]) -> [Duration; 4] {
        let body = json!({"model": "m", "prompt": ids, "stream": true, "temperature": 0}).to_string();
        let (value, parsed) = timed(|| serde_json::from_str::<Value>(&body).unwrap());
        let vocab = self.tokenizer.vocab_size();
        let (asked, checked) = timed(|| completions::request::parse(value, SamplingDefaults::FAMILY, vocab).unwrap());
        let completions::request::Prompt::Tokens(prompt) = &asked.prompts[0] else { unreachable!() };
        let (prompt, copied) = timed(|| prompt.clone());
        [parsed, checked, copied, self.serve(Request { prompt, ..Request::default() })]
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

/// Text as agents send it: code, with names and numbers of its own.
fn code(seed: usize, bytes: usize) -> String {
    const WORDS: [&str; 16] = [
        "request", "buffer", "offset", "parse", "index", "result", "engine", "value", "length", "update", "token",
        "stream", "handle", "config", "render", "state",
    ];
    let (mut text, mut state) = (String::new(), seed as u64 + 1);
    let mut word = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    while text.len() < bytes {
        let name = |a: u64, b: u64| format!("{}_{}", WORDS[a as usize], WORDS[b as usize]);
        let (f, a, b) = (name(word(16), word(16)), name(word(16), word(16)), WORDS[word(16) as usize]);
        let n = word(1000);
        let _ = writeln!(
            text,
            "    let {a} = self.{f}(&{b}, {n})?;\n    if {a}.{b}() > {n} {{\n        return Err({f:?}.into());\n    }}"
        );
    }
    text
}

fn message(i: usize, text: &str) -> Value {
    json!({"role": if i.is_multiple_of(2) { "user" } else { "assistant" }, "content": text})
}

fn print(what: &str, parts: [&str; 4], runs: &mut [[Duration; 4]]) {
    let ms = |time: Duration| 1e3 * time.as_secs_f64();
    runs.sort_by_key(|run| run.iter().sum::<Duration>());
    let median = &runs[runs.len() / 2];
    let each = parts.iter().zip(median).map(|(part, &time)| format!("{part} {:.2}", ms(time))).collect::<Vec<_>>();
    println!("{what}: {:.2} ms = {}", ms(median.iter().sum()), each.join(" + "));
}

fn main() {
    let bench = Bench::new();
    let parts = ["JSON", "checks", "template and tokens", "to the first step"];
    let (mut first, mut follow) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        let mut messages: Vec<Value> = (0..MESSAGES - 1).map(|i| message(i, &code(run * 1000 + i, 1180))).collect();
        let (tokens, times) = bench.chat(&messages);
        first.push(times);
        messages.extend([message(1, "I have done it."), message(0, "And what does the second function return?")]);
        let (longer, times) = bench.chat(&messages);
        follow.push(times);
        println!("a chat of {tokens} tokens, then one of {longer}");
    }
    print("a new chat", parts, &mut first);
    print("its follow-up", parts, &mut follow);
    let parts = ["JSON", "checks", "copy", "to the first step"];
    let (mut first, mut follow) = (Vec::new(), Vec::new());
    for run in 0..RUNS as u32 {
        let mut ids: Vec<u32> = (0..TOKENS as u32).map(|i| 300 + (i * 7919 + i * i * run) % 200_000).collect();
        first.push(bench.ids(&ids));
        ids.extend([ANSWER; 8]);
        ids.extend(500..508);
        follow.push(bench.ids(&ids));
    }
    print("new token ids", parts, &mut first);
    print("their follow-up", parts, &mut follow);
}
