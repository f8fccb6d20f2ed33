//! One text on its way from the engine to a client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use openjet_engine::engine::Generation;
use openjet_engine::request::{Event, FinishReason, Request};
use openjet_engine::step::Logprobs;
use openjet_engine::text::OutputPart;
use openjet_proto::events::{RequestEnd, What};
use openjet_proto::live::RequestRecord;
use tokio::sync::watch;

use super::usage::Usage;
use super::writer::{Delta, Writer};
use crate::app::{App, RequestGuard};
use crate::events::Events;
use crate::http::error::ApiError;
use crate::metrics::Metrics;
use crate::requests::{RequestLog, now_ms};
use crate::serving::{Cut, Serving};

/// What has become known of an answer since the last piece.
#[derive(Debug, Default)]
pub struct Piece {
    /// Text and calls.
    pub deltas: Vec<Delta>,
    /// The tokens behind them; text may come later than its token.
    pub tokens: Vec<Token>,
    /// The end.
    pub end: Option<End>,
    /// An agent has begun to read the prompt: how much of it need not be read is known.
    pub started: bool,
}

/// A generated token.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The part of the answer that it belongs to.
    pub part: OutputPart,
    /// If they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub struct End {
    /// `finish_reason`.
    pub reason: EndReason,
    /// The stop string that ended it.
    pub stop_string: Option<String>,
    /// What it used.
    pub usage: Usage,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The model waits for the results of its calls.
    ToolCalls,
}

impl EndReason {
    /// The name in the `OpenAI` API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// An answer that is being generated. Dropping it cancels the request, and writes the request's log line.
#[derive(Debug)]
pub struct Answer {
    /// `None` once it is over.
    generation: Option<Generation>,
    writer: Writer,
    usage: Usage,
    clock: Clock,
    /// End it early: all of the daemon's, and those of this model.
    cuts: [watch::Receiver<Cut>; 2],
    /// Keeps the sender of the second one.
    _serving: Arc<Serving>,
    metrics: Arc<Metrics>,
    /// Who writes it, and when its latest tokens came.
    agent: usize,
    latest: Option<Instant>,
    log: LogLine,
    _guard: RequestGuard,
}

/// When things happened, for answers that end before the engine says.
#[derive(Debug)]
struct Clock {
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl Answer {
    /// Submits `request`, which came to `path`, to the engine.
    ///
    /// # Errors
    /// What the engine refuses: overflow is 400, a full queue 503.
    pub fn submit(
        app: &App,
        serving: &Arc<Serving>,
        request: Request,
        writer: Writer,
        path: &'static str,
    ) -> Result<Self, ApiError> {
        let guard = app.count_request(serving);
        let prompt_tokens = request.prompt.len();
        let session = request.session.clone();
        let generation = serving.engine.submit(request)?;
        let log = LogLine {
            id: generation.id,
            path,
            session,
            agent: None,
            requests: app.requests_over.clone(),
            usage: Usage { prompt_tokens, ..Usage::default() },
            finish: "cancelled",
            problem: None,
            status: None,
            metrics: app.metrics.clone(),
            events: app.events.clone(),
        };
        Ok(Self {
            generation: Some(generation),
            writer,
            usage: Usage { prompt_tokens, ..Usage::default() },
            clock: Clock { submitted: Instant::now(), started: None, first_token: None },
            cuts: [app.cut(), serving.cut.subscribe()],
            _serving: serving.clone(),
            metrics: app.metrics.clone(),
            agent: 0,
            latest: None,
            log,
            _guard: guard,
        })
    }

    /// The next piece; `None` when the answer is over. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        loop {
            let generation = self.generation.as_mut()?;
            let [daemon, model] = &mut self.cuts;
            let event = tokio::select! {
                biased;
                event = generation.events.recv() => Ok(event),
                Ok(reason) = daemon.wait_for(Option::is_some) => Err(reason.clone()),
                Ok(reason) = model.wait_for(Option::is_some) => Err(reason.clone()),
            };
            let event = match event {
                Ok(event) => event,
                Err(reason) => {
                    let reason = reason.unwrap_or_default().to_string();
                    return Some(Err(self.fail(ApiError::unavailable(reason, 5))));
                }
            };
            let Some(event) = event else {
                return Some(Err(self.fail(ApiError::internal("the engine ended without finishing the request"))));
            };
            match event {
                Event::Started { agent, cached_tokens } => {
                    self.usage.cached_tokens = cached_tokens;
                    self.agent = agent;
                    self.log.agent = Some(agent);
                    let now = Instant::now();
                    // A request that was parked is started again.
                    if self.clock.started.replace(now).is_none() {
                        let queued = now - self.clock.submitted;
                        self.metrics.started(agent, queued, self.usage.prompt_tokens, cached_tokens);
                    }
                    return Some(Ok(Piece { started: true, ..Piece::default() }));
                }
                Event::Prefill { cached_tokens, .. } => self.usage.cached_tokens = cached_tokens,
                Event::Drafted { offered, accepted } => {
                    self.usage.drafts.0 += offered;
                    self.usage.drafts.1 += accepted;
                }
                Event::Tokens(tokens) => {
                    let piece = self.tokens(tokens);
                    return Some(Ok(piece));
                }
                Event::Finished(finish) => return Some(self.finished(&finish)),
                Event::Failed(error) => return Some(Err(self.fail(error.into()))),
            }
        }
    }

    /// What it used so far.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Whether [`Answer::next`] has nothing more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.generation.is_none()
    }

    fn tokens(&mut self, tokens: Vec<openjet_engine::step::Sampled>) -> Piece {
        let now = Instant::now();
        self.clock.first_token.get_or_insert(now);
        let since = self.latest.replace(now).unwrap_or(self.clock.submitted);
        self.metrics.tokens(self.agent, tokens.len(), since == self.clock.submitted, now - since);
        let mut piece = Piece::default();
        for sampled in tokens {
            let part = self.writer.part();
            self.usage.completion_tokens += 1;
            self.usage.reasoning_tokens += usize::from(part == OutputPart::Reasoning);
            piece.tokens.push(Token { id: sampled.token, part, logprobs: sampled.logprobs });
            piece.deltas.extend(self.writer.push(sampled.token));
            if self.writer.stopped() {
                piece.end = Some(self.end_early());
                break;
            }
        }
        self.log.usage = self.usage.clone();
        piece
    }

    /// A stop string or the only call: the engine is told by dropping the request, and the counts are our own.
    fn end_early(&mut self) -> End {
        self.generation = None;
        self.read_clock();
        let reason = if self.writer.calls() > 0 { EndReason::ToolCalls } else { EndReason::Stop };
        self.end(reason)
    }

    /// Times as they are known here: the engine tells its own only of requests that end by themselves.
    fn read_clock(&mut self) {
        let now = Instant::now();
        let started = self.clock.started.unwrap_or(now);
        let first = self.clock.first_token.unwrap_or(now);
        self.usage.queued = started - self.clock.submitted;
        self.usage.prefill = first.saturating_duration_since(started);
        self.usage.decode = self.latest.map_or(Duration::ZERO, |latest| latest.saturating_duration_since(first));
    }

    fn finished(&mut self, finish: &openjet_engine::request::Finish) -> Result<Piece, ApiError> {
        self.generation = None;
        let used = &finish.usage;
        self.usage = Usage {
            prompt_tokens: used.prompt_tokens,
            cached_tokens: used.cached_tokens,
            completion_tokens: used.completion_tokens,
            reasoning_tokens: self.usage.reasoning_tokens,
            drafts: (used.drafts_offered, used.drafts_accepted),
            queued: used.queued,
            prefill: used.prefill,
            decode: used.decode,
        };
        let deltas = self.writer.finish();
        let reason = match finish.reason {
            FinishReason::Stop if self.writer.calls() > 0 => EndReason::ToolCalls,
            FinishReason::Stop => EndReason::Stop,
            // A stop string may come to light only when nothing more can follow.
            FinishReason::Length if self.writer.stopped() => EndReason::Stop,
            FinishReason::Length => EndReason::Length,
            FinishReason::Cancelled => {
                return Err(self.fail(ApiError::unavailable("the request was cancelled on the server", 1)));
            }
        };
        Ok(Piece { deltas, end: Some(self.end(reason)), ..Piece::default() })
    }

    fn end(&mut self, reason: EndReason) -> End {
        self.log.finish = reason.name();
        self.log.usage = self.usage.clone();
        End { reason, stop_string: self.writer.stop_string().map(str::to_owned), usage: self.usage.clone() }
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.generation = None;
        self.read_clock();
        self.log.usage = self.usage.clone();
        self.log.finish = "failed";
        self.log.problem = Some(error.message().to_owned());
        self.log.status = Some(error.status().as_u16());
        error.recorded()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.generation.is_some() {
            // The client has left.
            self.read_clock();
            self.log.usage = self.usage.clone();
        }
    }
}

/// The request's line in the log, written when the request is over, however that came about.
#[derive(Debug)]
struct LogLine {
    id: u64,
    path: &'static str,
    session: Option<String>,
    agent: Option<usize>,
    requests: Arc<RequestLog>,
    usage: Usage,
    finish: &'static str,
    /// Why it failed, if it did, and the status of the error.
    problem: Option<String>,
    status: Option<u16>,
    metrics: Arc<Metrics>,
    events: Events,
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let usage = &self.usage;
        self.metrics.ended(self.finish, usage);
        let (offered, accepted) = usage.drafts;
        self.requests.add(RequestRecord {
            id: Some(self.id),
            ended_ms: now_ms(),
            path: self.path.to_owned(),
            session: self.session.clone(),
            agent: self.agent,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            generated_tokens: usage.completion_tokens,
            tokens_per_second: usage.tokens_per_second(),
            drafts_offered: offered,
            drafts_accepted: accepted,
            queued_ms: usage.queued.as_secs_f64() * 1e3,
            first_token_ms: usage.prefill.as_secs_f64() * 1e3,
            finish: self.finish.to_owned(),
            error: self.status.zip(self.problem.as_ref()).map(|(status, problem)| format!("{status}: {problem}")),
        });
        tracing::info!(
            request = self.id,
            session = self.session.as_deref().unwrap_or("-"),
            prompt = usage.prompt_tokens,
            cached = usage.cached_tokens,
            queued_ms = usage.queued.as_millis() as u64,
            first_token_ms = usage.prefill.as_millis() as u64,
            tokens = usage.completion_tokens,
            tok_s = format_args!("{:.1}", usage.tokens_per_second()),
            drafts = format_args!("{accepted}/{offered}"),
            finish = self.finish,
            problem = self.problem.as_deref(),
            "request"
        );
        self.events.tell(What::Request(RequestEnd {
            request: self.id,
            session: self.session.clone(),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            queued_ms: usage.queued.as_millis() as u64,
            first_token_ms: usage.prefill.as_millis() as u64,
            tokens: usage.completion_tokens,
            tokens_per_second: usage.tokens_per_second(),
            drafts_offered: offered,
            drafts_accepted: accepted,
            finish: self.finish.to_owned(),
        }));
    }
}
