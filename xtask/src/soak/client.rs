//! One client: a conversation that goes on turn by turn, texts in between, answers that it does not wait for.

use super::Counts;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest wait for an answer: on a machine that is busy with other work they take long, and that is no error.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A conversation with a longer prompt ends, and another begins.
const LONG: u64 = 900;

/// Small random numbers (xorshift64*).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

const QUESTIONS: [&str; 5] = [
    "Write a Python function `add` that returns the sum of two numbers.",
    "Now give it a docstring.",
    "Read the file main.py and say what it does.",
    "Write a test for it.",
    "Go on.",
];

#[derive(Debug)]
pub(super) struct Client<'a> {
    address: SocketAddr,
    number: u64,
    counts: &'a Counts,
    random: Random,
    conversations: u64,
    messages: Vec<Value>,
}

impl<'a> Client<'a> {
    pub(super) fn new(address: SocketAddr, number: u64, counts: &'a Counts) -> Self {
        Self { address, number, counts, random: Random::new(number + 1), conversations: 0, messages: Vec::new() }
    }

    /// Works until the time is over.
    pub(super) fn run(mut self) {
        while !self.counts.over.load(Ordering::Relaxed) {
            let done = match self.random.below(10) {
                0 => self.leave(),
                1 | 2 => self.text(),
                _ => self.turn(),
            };
            if let Err(error) = done {
                self.counts.error(format!("client {}: {error:#}", self.number));
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }

    fn ask(&mut self, stream: bool) -> Value {
        if self.messages.is_empty() {
            self.conversations += 1;
            // Clients of one kind have one system prompt.
            let kind = self.number % 3;
            let system =
                format!("You are assistant number {kind}. {}", "Answer in short sentences and be kind. ".repeat(20));
            self.messages.push(json!({"role": "system", "content": system}));
        }
        let question = QUESTIONS[self.random.below(QUESTIONS.len() as u64) as usize];
        self.messages.push(json!({"role": "user", "content": question}));
        json!({"messages": self.messages, "max_tokens": 20 + self.random.below(40), "stream": stream})
    }

    /// A turn of the conversation.
    fn turn(&mut self) -> Result<()> {
        let body = self.ask(false);
        let answer = self.post("/v1/chat/completions", &body)?;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        self.messages.push(json!({"role": "assistant", "content": content}));
        self.counts.turns.fetch_add(1, Ordering::Relaxed);
        if self.count(&answer)? > LONG {
            self.messages.clear();
        }
        Ok(())
    }

    /// A text that is no conversation.
    fn text(&mut self) -> Result<()> {
        let prompt = format!("{} plus {} is ", self.random.below(100), self.random.below(100));
        let body = json!({"prompt": prompt.repeat(1 + self.random.below(8) as usize), "max_tokens": 16});
        let answer = self.post("/v1/completions", &body)?;
        self.counts.texts.fetch_add(1, Ordering::Relaxed);
        self.count(&answer).map(drop)
    }

    /// A turn whose answer is not waited for: the connection closes at once, or after its first bytes.
    fn leave(&mut self) -> Result<()> {
        let body = self.ask(true);
        self.messages.pop();
        let mut stream = self.open("/v1/chat/completions", &body)?;
        let mut bytes = [0; 16];
        match self.random.below(3) {
            0 => {}
            _ => stream.read_exact(&mut bytes).context("a stream that is left")?,
        }
        if bytes.starts_with(b"HTTP") && !bytes.starts_with(b"HTTP/1.1 200") {
            bail!("a stream began with {}", String::from_utf8_lossy(&bytes));
        }
        self.counts.cancelled.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Adds an answer's usage and returns the tokens of its prompt.
    fn count(&self, answer: &Value) -> Result<u64> {
        let usage = &answer["usage"];
        let number = |value: &Value| value.as_u64().with_context(|| format!("no usage in {answer}"));
        let prompt = number(&usage["prompt_tokens"])?;
        self.counts.prompt.fetch_add(prompt, Ordering::Relaxed);
        self.counts.cached.fetch_add(number(&usage["prompt_tokens_details"]["cached_tokens"])?, Ordering::Relaxed);
        self.counts.tokens.fetch_add(number(&usage["completion_tokens"])?, Ordering::Relaxed);
        Ok(prompt)
    }

    fn open(&self, path: &str, body: &Value) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (body, number, conversation) = (body.to_string(), self.number, self.conversations);
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nContent-Type: application/json\r\n\
             X-Session-Id: client-{number}-{conversation}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        Ok(stream)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let mut answer = Vec::new();
        self.open(path, body)?.read_to_end(&mut answer).with_context(|| format!("no answer to POST {path}"))?;
        let answer = String::from_utf8(answer).context("an answer that is not UTF-8")?;
        let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no HTTP answer: {answer:?}"))?;
        if !head.starts_with("HTTP/1.1 200") {
            bail!("POST {path}: {answer}");
        }
        serde_json::from_str(body).with_context(|| format!("POST {path}: not JSON: {answer}"))
    }
}
