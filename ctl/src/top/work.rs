//! Small coding agents for `--run`: each writes functions with the model's help and has a compiler look at what it gets.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use ureq::Agent;

/// What the functions are to do.
const TASKS: [&str; 12] = [
    "merge two sorted lists into one sorted list",
    "count the words of a text and return the ten most frequent",
    "parse a line of comma-separated values with quotes",
    "find the longest common prefix of a list of strings",
    "compute the edit distance of two strings",
    "flatten a nested list",
    "check whether brackets in a text are balanced",
    "convert a Roman numeral to a number",
    "group the anagrams in a list of words",
    "rotate a matrix by 90 degrees",
    "find all prime numbers below a limit",
    "return the shortest path through a grid with walls",
];

/// Answers to one task, corrections included.
const TURNS: usize = 3;

/// Most tokens of an answer.
const TOKENS: usize = 400;

/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Agents at work; they stop when this is dropped, after the piece of text that they wait for.
pub(super) struct Work {
    over: Arc<AtomicBool>,
    notes: Vec<Arc<Mutex<String>>>,
}

impl Work {
    /// Starts so many agents against the API at `address`.
    pub(super) fn start(agents: usize, address: &str) -> anyhow::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let notes: Vec<_> = (0..agents).map(|_| Arc::default()).collect();
        // An address that stands for all is reached on the loopback.
        let address = address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
        for (number, note) in notes.iter().enumerate() {
            let coder = Coder {
                number,
                url: format!("http://{address}/v1/chat/completions"),
                key: std::env::var("OPENJET_API_KEY").ok(),
                over: Arc::clone(&over),
                note: Arc::clone(note),
                http: Agent::config_builder().http_status_as_error(false).build().into(),
            };
            let thread = std::thread::Builder::new().name(format!("agent {number}"));
            thread.spawn(move || coder.work()).context("an agent can't be started")?;
        }
        Ok(Self { over, notes })
    }

    /// A line for each agent: what came of its work so far.
    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.iter().map(|note| note.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

/// One agent.
struct Coder {
    number: usize,
    url: String,
    key: Option<String>,
    over: Arc<AtomicBool>,
    note: Arc<Mutex<String>>,
    http: Agent,
}

impl Coder {
    fn work(&self) {
        let (mut done, mut good) = (0, 0);
        for task in TASKS.iter().cycle().skip(self.number * 5) {
            if self.over.load(Ordering::Acquire) {
                return;
            }
            self.say(&format!("{done} tasks done, {good} of them compile; now: {task}"));
            match self.task(task) {
                Ok(compiles) => (done, good) = (done + 1, good + usize::from(compiles)),
                Err(error) => {
                    self.say(&format!("{error:#}"));
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn say(&self, note: &str) {
        let note = format!("agent {}: {note}", self.number);
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    /// Has a function written, and corrected for as long as it does not compile. Whether it did in the end.
    fn task(&self, task: &str) -> anyhow::Result<bool> {
        let mut messages = vec![json!({
            "role": "user",
            "content": format!("Write a Python function that does this: {task}. Answer with one block of code."),
        })];
        for _ in 0..TURNS {
            let answer = self.ask(task, &messages)?;
            let Err(complaint) = compiles(&code(&answer)) else { return Ok(true) };
            messages.push(json!({"role": "assistant", "content": answer}));
            messages
                .push(json!({"role": "user", "content": format!("It does not compile:\n{complaint}\nCorrect it.")}));
        }
        Ok(false)
    }

    /// The model's answer.
    fn ask(&self, task: &str, messages: &[Value]) -> anyhow::Result<String> {
        let body = json!({"messages": messages, "stream": true, "max_tokens": TOKENS});
        let session = format!("{}: {task}", self.number);
        let mut request = self.http.post(&self.url).header("X-Session-Id", session);
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let mut response = request.header("Content-Type", "application/json").send(body.to_string())?;
        if response.status() != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            let error = serde_json::from_str::<Value>(&text).unwrap_or_default();
            bail!("{}: {}", response.status(), error["error"]["message"].as_str().unwrap_or(&text));
        }
        let mut answer = String::new();
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            if self.over.load(Ordering::Acquire) {
                bail!("stopped");
            }
            let line = line?;
            let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
            let piece: Value = serde_json::from_str(data)?;
            if let Some(message) = piece["error"]["message"].as_str() {
                return Err(anyhow!("{message}"));
            }
            answer += piece["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        }
        Ok(answer)
    }
}

/// The first block of code of an answer, or all of it.
fn code(answer: &str) -> String {
    let Some((_, rest)) = answer.split_once("```") else { return answer.to_owned() };
    let block = rest.split_once("```").map_or(rest, |(block, _)| block);
    block.split_once('\n').map_or("", |(_, code)| code).to_owned()
}

/// Has Python compile it, which runs nothing of it.
fn compiles(code: &str) -> Result<(), String> {
    let program = "import sys\ncompile(sys.stdin.read(), 'answer.py', 'exec')";
    let mut python = Command::new("python3");
    python.args(["-I", "-c", program]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let Ok(mut child) = python.spawn() else { return Ok(()) };
    if let Some(mut input) = child.stdin.take() {
        // It may have ended early, which its status then tells.
        let _ended = std::io::Write::write_all(&mut input, code.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(complaint.lines().last().unwrap_or("it does not compile").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_and_looked_at() {
        assert_eq!(code("Here:\n```python\nx = 1\n```\nDone."), "x = 1\n");
        assert_eq!(code("x = 1"), "x = 1");
        assert_eq!(compiles("x = 1\n"), Ok(()));
        assert!(compiles("def f(:\n").is_err_and(|complaint| complaint.contains("SyntaxError")));
    }
}
