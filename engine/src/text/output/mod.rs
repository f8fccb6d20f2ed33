//! What a model writes, taken apart: reasoning, content and tool calls, as the text comes.
//!
//! The family writes reasoning up to `</think>`, then content, with tool calls in this form:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A call ends the reasoning before it. What follows `<tool_call>` but is no call comes out as text of the section that it
//! stands in, without the marker; so does what was written of a call that breaks.

mod arguments;
mod markers;

use serde_json::Value as Json;

pub use arguments::ToolSchemas;
use arguments::quote_part;
pub(crate) use arguments::{Conversion, conversion};
use markers::{find_marker, held_back, starts};

/// A piece of a model's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// More reasoning.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A tool call begins.
    ToolCallStart {
        /// Number of the call, from 0.
        index: usize,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments. All fragments of a whole call together are a JSON object.
    ToolCallArguments {
        /// Number of the call.
        index: usize,
        /// The next characters.
        fragment: String,
    },
    /// A call is whole.
    ToolCallEnd {
        /// Number of the call.
        index: usize,
    },
    /// A call that began can't be finished, as its text ended or makes no sense. Its arguments are no JSON; what was written
    /// of it follows as content.
    ToolCallBroken {
        /// Number of the call.
        index: usize,
    },
}

/// A kind of section of a model's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// Reasoning.
    Reasoning,
    /// The answer.
    Content,
    /// A tool call.
    Call,
}

/// What became of the tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Calls that are whole.
    pub whole: usize,
    /// Calls that began and broke off, and `<tool_call>` markers without a call.
    pub broken: usize,
}

/// Longest name of a function or parameter, in bytes.
const MAX_NAME: usize = 256;

/// Takes apart the text that it is given piece by piece; how the text is cut makes no difference to the whole.
#[derive(Clone, Debug)]
pub struct OutputParser {
    schemas: ToolSchemas,
    calls: bool,
    /// Text that can't be decided on yet.
    buffer: String,
    state: State,
    /// The section that ordinary text belongs to.
    section: Section,
    /// White space that is printed only if the section goes on.
    blank: String,
    /// Text of the present section was printed, so that white space is part of it.
    begun: bool,
    counts: CallCounts,
    /// Calls that began.
    started: usize,
    events: Vec<OutputEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Reasoning,
    Content,
}

#[derive(Clone, Debug)]
enum State {
    /// Reasoning or content.
    Text,
    /// After `<tool_call>`.
    Call,
    /// In a function, between parameters.
    Function(Call),
    /// In a parameter's value.
    Parameter(Call, Value),
}

/// A call that began.
#[derive(Clone, Debug)]
struct Call {
    index: usize,
    name: String,
    /// Parameters so far.
    parameters: usize,
    /// What was written of it, in case that it breaks.
    written: String,
}

/// A value that began.
#[derive(Clone, Debug)]
struct Value {
    conversion: Conversion,
    /// The newline after the tag is behind us.
    begun: bool,
}

impl OutputParser {
    /// `in_thinking`: the prompt left a `<think>` open. `schemas`: the request's tools. `calls`: without, tool calls are
    /// text like any other, but for their markers.
    #[must_use]
    pub fn new(in_thinking: bool, schemas: ToolSchemas, calls: bool) -> Self {
        Self {
            schemas,
            calls,
            buffer: String::new(),
            state: State::Text,
            section: if in_thinking { Section::Reasoning } else { Section::Content },
            blank: String::new(),
            // An answer without thinking keeps the white space that it starts with.
            begun: !in_thinking,
            counts: CallCounts::default(),
            started: 0,
            events: Vec::new(),
        }
    }

    /// The model wrote `text`.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        self.buffer.push_str(text);
        while self.advance() {}
        std::mem::take(&mut self.events)
    }

    /// The model's text is over.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        let rest = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(&rest),
            State::Call => {
                self.counts.broken += 1;
                self.text(&rest);
            }
            State::Function(mut call) | State::Parameter(mut call, _) => {
                call.written.push_str(&rest);
                self.broken(&call);
            }
        }
        let blank = std::mem::take(&mut self.blank);
        if self.begun && !blank.is_empty() {
            self.print(blank);
        }
        std::mem::take(&mut self.events)
    }

    /// The tool calls so far.
    #[must_use]
    pub fn counts(&self) -> CallCounts {
        self.counts
    }

    /// What the next character belongs to, as far as is known.
    #[must_use]
    pub fn part(&self) -> OutputPart {
        match (&self.state, self.section) {
            (State::Text, Section::Reasoning) => OutputPart::Reasoning,
            (State::Text, Section::Content) => OutputPart::Content,
            _ => OutputPart::Call,
        }
    }

    /// Takes one step; `false` if it takes more text to go on.
    fn advance(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.advance_text(),
            State::Call => self.advance_call(),
            State::Function(call) => self.advance_function(call),
            State::Parameter(call, value) => self.advance_parameter(call, value),
        }
    }

    fn advance_text(&mut self) -> bool {
        let Some((range, marker)) = find_marker(&self.buffer) else {
            let text = self.take(self.buffer.len() - held_back(&self.buffer));
            self.text(&text);
            return false;
        };
        let text = self.take(range.end);
        self.text(&text[..range.start]);
        match (marker, self.section) {
            (markers::THINK, Section::Content) => self.enter(Section::Reasoning),
            (markers::END_THINK, Section::Reasoning) => self.enter(Section::Content),
            (markers::TOOL_CALL, _) if self.calls => self.state = State::Call,
            // The border of a section that it is already in, the end of a call, or a call where calls are text.
            _ => {}
        }
        true
    }

    fn advance_call(&mut self) -> bool {
        let rest = self.buffer.trim_start();
        match tag(rest, "<function=") {
            Tag::Found { name, len } => {
                let written = rest[..len].to_owned();
                let call = Call { index: self.started, name: name.to_owned(), parameters: 0, written };
                self.take(self.buffer.len() - rest.len() + len);
                self.started += 1;
                self.enter(Section::Content);
                self.events.push(OutputEvent::ToolCallStart { index: call.index, name: call.name.clone() });
                self.state = State::Function(call);
                true
            }
            Tag::Unfinished => {
                self.state = State::Call;
                false
            }
            Tag::Other => {
                self.counts.broken += 1;
                true
            }
        }
    }

    fn advance_function(&mut self, mut call: Call) -> bool {
        let rest = self.buffer.trim_start();
        let skipped = self.buffer.len() - rest.len();
        if let Tag::Found { name, len } = tag(rest, "<parameter=") {
            let conversion = self.schemas.conversion(&call.name, name);
            let open = if call.parameters == 0 { "{" } else { ", " };
            self.arguments(&call, format!("{open}{}: ", Json::from(name)));
            call.parameters += 1;
            call.written.push_str(&self.take(skipped + len));
            if conversion == Conversion::Text {
                self.arguments(&call, "\"".into());
            }
            self.state = State::Parameter(call, Value { conversion, begun: false });
            return true;
        }
        // A model that forgets the inner end still finishes its call.
        for end in ["</function>", markers::END_TOOL_CALL] {
            if rest.starts_with(end) {
                self.take(skipped + end.len());
                self.arguments(&call, if call.parameters == 0 { "{}" } else { "}" }.into());
                self.events.push(OutputEvent::ToolCallEnd { index: call.index });
                self.counts.whole += 1;
                return true;
            }
        }
        if ["<parameter=", "</function>", markers::END_TOOL_CALL].iter().any(|t| starts(t, rest))
            || matches!(tag(rest, "<parameter="), Tag::Unfinished)
        {
            self.state = State::Function(call);
            return false;
        }
        self.broken(&call);
        true
    }

    fn advance_parameter(&mut self, mut call: Call, mut value: Value) -> bool {
        const END: &str = "</parameter>";
        // The newline after the tag is not part of the value, nor is the one before the end.
        if !value.begun {
            if self.buffer.is_empty() {
                self.state = State::Parameter(call, value);
                return false;
            }
            if self.buffer.starts_with('\n') {
                call.written.push_str(&self.take(1));
            }
            value.begun = true;
        }
        if let Some(at) = self.buffer.find(END) {
            let text = self.take(at + END.len());
            call.written.push_str(&text);
            let text = text[..at].strip_suffix('\n').unwrap_or(&text[..at]);
            let fragment = match value.conversion {
                Conversion::Text => quote_part(text) + "\"",
                _ => value.conversion.apply(text),
            };
            self.arguments(&call, fragment);
            self.state = State::Function(call);
            return true;
        }
        if value.conversion == Conversion::Text {
            let kept = ["\n</parameter>", END].map(|end| markers::overlap(&self.buffer, end)).into_iter().max();
            let text = self.take(self.buffer.len() - kept.unwrap_or(0));
            call.written.push_str(&text);
            if !text.is_empty() {
                self.arguments(&call, quote_part(&text));
            }
        }
        self.state = State::Parameter(call, value);
        false
    }

    /// Ordinary text of the present section.
    fn text(&mut self, text: &str) {
        let body = if self.begun { text } else { text.trim_start() };
        let end = body.trim_end();
        if end.is_empty() {
            if self.begun {
                self.blank.push_str(body);
            }
            return;
        }
        let printed = std::mem::take(&mut self.blank) + end;
        self.blank.push_str(&body[end.len()..]);
        self.begun = true;
        self.print(printed);
    }

    fn print(&mut self, text: String) {
        self.events.push(match self.section {
            Section::Reasoning => OutputEvent::Reasoning(text),
            Section::Content => OutputEvent::Content(text),
        });
    }

    /// A section begins; the white space around its border belongs to neither.
    fn enter(&mut self, section: Section) {
        self.section = section;
        self.blank.clear();
        self.begun = false;
    }

    fn arguments(&mut self, call: &Call, fragment: String) {
        self.events.push(OutputEvent::ToolCallArguments { index: call.index, fragment });
    }

    fn broken(&mut self, call: &Call) {
        self.counts.broken += 1;
        self.events.push(OutputEvent::ToolCallBroken { index: call.index });
        let mut rest = call.written.as_str();
        while let Some((range, _)) = find_marker(rest) {
            self.text(&rest[..range.start]);
            rest = &rest[range.end..];
        }
        self.text(rest);
    }

    /// Removes the first `len` bytes of the buffer.
    fn take(&mut self, len: usize) -> String {
        let rest = self.buffer.split_off(len);
        std::mem::replace(&mut self.buffer, rest)
    }
}

/// What a text begins with, where a tag such as `<function=NAME>` is expected.
enum Tag<'a> {
    Found {
        name: &'a str,
        len: usize,
    },
    /// The beginning of one, or nothing yet.
    Unfinished,
    Other,
}

fn tag<'a>(text: &'a str, open: &str) -> Tag<'a> {
    let Some(rest) = text.strip_prefix(open) else {
        return if starts(open, text) { Tag::Unfinished } else { Tag::Other };
    };
    match rest.find(['>', '<', '\n']) {
        Some(end) if rest[end..].starts_with('>') && !rest[..end].trim().is_empty() && end <= MAX_NAME => {
            Tag::Found { name: rest[..end].trim(), len: open.len() + end + 1 }
        }
        None if rest.len() <= MAX_NAME => Tag::Unfinished,
        _ => Tag::Other,
    }
}
