//! The chat template: messages to the prompt.

use std::error::Error as _;
use std::fmt::{self, Write as _};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde_json::{Map, Value as Json};

use super::guard::{Guard, strings};
use super::tokenizer::{Matcher, Tokenizer};
use super::{TokenKind, python};

/// What one rendering may cost: about this many instructions, or 64 times as many bytes.
const FUEL: u64 = 10_000_000;

/// Deepest nesting of macros and loops.
const RECURSION: usize = 64;

/// What a template is given.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Messages in the API's form, the arguments of tool calls as objects.
    pub messages: Vec<Json>,
    /// Tools in the API's form; `None` leaves the template's variable undefined.
    pub tools: Option<Vec<Json>>,
    /// End in the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Let the model think before it answers; `None` for the template's own choice.
    pub enable_thinking: Option<bool>,
    /// How much to think, for templates that know of it.
    pub reasoning_effort: Option<String>,
    /// Further variables (`chat_template_kwargs`). They go before `enable_thinking` and `reasoning_effort`, but can't
    /// replace messages, tools or `add_generation_prompt`.
    pub kwargs: Map<String, Json>,
}

/// A rendered and encoded conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Where the second message begins in `tokens`, if messages begin with the token that the generation prompt begins with.
    pub system_until: Option<usize>,
    /// Where the generation prompt begins in `tokens`, if it was asked for and begins with a token of its own.
    pub generation_prompt_at: Option<usize>,
    /// The generation prompt leaves a `<think>` open: what is generated starts as reasoning.
    pub in_thinking: bool,
}

/// Why there is no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TemplateError {
    /// The model file's template is no Jinja.
    #[error("the chat template can't be read: {message} (line {line})")]
    Syntax { message: String, line: usize },
    /// The model file's template writes control tokens that could not be told from a user's text.
    #[error("the chat template writes control tokens, but no character tells all of them from user-defined tokens")]
    NoMark,
    /// The template itself refuses the messages.
    #[error("{0}")]
    Raised(String),
    /// The template fails on the messages.
    #[error("the chat template fails on these messages: {message} (line {line} of the template)")]
    Failed { message: String, line: usize },
    /// The template works for too long.
    #[error("the chat template takes too many steps; send fewer messages")]
    TooLong,
    /// A field of the request can't be used.
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
}

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Finds user-defined tokens and the control tokens that hold the mark.
    matcher: Matcher,
    mark: char,
    bos: String,
    eos: String,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("mark", &self.mark).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a template for a vocabulary.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] or [`TemplateError::NoMark`].
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let texts = |kind| {
            let tokens = tokenizer.of_kind(kind);
            tokens.map(|(_, bytes)| std::str::from_utf8(bytes).unwrap_or_default()).collect::<Vec<_>>()
        };
        let mut written = texts(TokenKind::Control);
        written.retain(|token| source.contains(token));
        let mark = match Guard::mark(&written, &texts(TokenKind::UserDefined)) {
            Some(mark) => mark,
            None if written.is_empty() => '|',
            None => return Err(TemplateError::NoMark),
        };
        let marked = tokenizer.of_kind(TokenKind::Control);
        let marked = marked.filter(|(_, bytes)| std::str::from_utf8(bytes).is_ok_and(|text| text.contains(mark)));
        let matcher = Matcher::new(tokenizer.of_kind(TokenKind::UserDefined).chain(marked));
        let matcher = matcher.map_err(|e| TemplateError::Failed { message: e.to_string(), line: 0 })?;
        let text = |id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
        Ok(Self {
            environment: environment(source)?,
            matcher,
            mark,
            bos: tokenizer.bos().map(text).unwrap_or_default(),
            eos: text(tokenizer.eos()),
        })
    }

    /// The text of a conversation, as the template renders it.
    ///
    /// # Errors
    /// [`TemplateError`], for the caller to hand on as a bad request.
    pub fn text(&self, chat: &Chat) -> Result<String, TemplateError> {
        let guard = self.guard(chat);
        Ok(guard.reveal(&self.render(chat, guard, chat.add_generation_prompt)?).into_owned())
    }

    /// The prompt of a conversation. Spellings of control tokens in strings of the request become ordinary text; the
    /// template's own become control tokens.
    ///
    /// # Errors
    /// [`TemplateError`], for the caller to hand on as a bad request.
    pub fn prompt(&self, chat: &Chat, tokenizer: &Tokenizer) -> Result<Prompt, TemplateError> {
        let guard = self.guard(chat);
        let text = self.render(chat, guard, chat.add_generation_prompt)?;
        let history = match chat.add_generation_prompt {
            true => Some(self.render(chat, guard, false)?).filter(|history| text.starts_with(history)),
            false => None,
        };
        let generation_prompt = history.as_ref().map_or("", |history| &text[history.len()..]);
        let in_thinking = match (generation_prompt.rfind("<think>"), generation_prompt.rfind("</think>")) {
            (Some(open), Some(close)) => open > close,
            (open, None) => open.is_some(),
            (None, Some(_)) => false,
        };
        let mark = history.map(|history| history.len());
        let (tokens, generation_prompt_at) =
            tokenizer.encode_with(&self.matcher, &text, |part| guard.reveal(part), mark);
        let opening = generation_prompt_at.map(|at| tokens[at]);
        let system_until = opening.and_then(|opening| {
            let begins = tokens.iter().enumerate().filter(|&(_, &token)| token == opening);
            begins.map(|(at, _)| at).nth(1)
        });
        Ok(Prompt { tokens, system_until, generation_prompt_at, in_thinking })
    }

    fn guard(&self, chat: &Chat) -> Guard {
        let values = chat.messages.iter().chain(chat.tools.iter().flatten()).chain(chat.kwargs.values());
        let names = chat.kwargs.keys().chain(&chat.reasoning_effort).map(String::as_str);
        Guard::new(self.mark, values.flat_map(strings).chain(names))
    }

    fn render(&self, chat: &Chat, guard: Guard, add_generation_prompt: bool) -> Result<String, TemplateError> {
        let list = |items: &[Json]| Value::from(items.iter().map(|item| guard.value(item)).collect::<Vec<_>>());
        let mut variables = vec![
            ("messages", list(&chat.messages)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(&self.bos)),
            ("eos_token", Value::from(&self.eos)),
        ];
        let fixed = variables.len() + 1;
        variables.extend(chat.tools.as_ref().map(|tools| ("tools", list(tools))));
        variables.extend(chat.enable_thinking.map(|on| ("enable_thinking", Value::from(on))));
        let effort = chat.reasoning_effort.as_ref();
        variables.extend(effort.map(|effort| ("reasoning_effort", guard.value(&Json::from(effort.as_str())))));
        for (name, value) in &chat.kwargs {
            if variables.iter().take(fixed).any(|(fixed, _)| fixed == name) || name == "tools" {
                let message = format!("{name:?} can't be given here");
                return Err(TemplateError::Invalid { field: "chat_template_kwargs".into(), message });
            }
            variables.push((name, guard.value(value)));
        }
        // Of several values for a name the last one counts.
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(Value::from_pairs(variables)));
        rendered.map_err(|e| failure(&e, guard))
    }
}

/// Name of the only template in the environment; messages of the library mention it.
const NAME: &str = "chat_template";

/// The engine as the templates' authors run theirs: blocks are trimmed, undefined values print nothing.
fn environment(source: &str) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let syntax = |e: Error| TemplateError::Syntax { message: describe(&e), line: e.line().unwrap_or_default() };
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(syntax)?);
    environment.set_formatter(print);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.add_filter("tojson", python::tojson);
    environment.add_function("strftime_now", |format: &str| python::strftime_now(format));
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Exception(message)))
    });
    environment.add_template_owned(NAME, source.to_owned()).map_err(syntax)?;
    Ok(environment)
}

/// Prints a value as it is. The library counts a value's bytes only once it is printed, which for nested lists that share
/// their parts may be never; this counts them on the way.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    struct Counted<'a, 'o>(&'a mut Output<'o>, &'a State<'a, 'a>);
    impl fmt::Write for Counted<'_, '_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.1.consume_fuel(1 + text.len() as u64 / 64).map_err(|_| fmt::Error)?;
            self.0.write_str(text)
        }
    }
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(Error::from);
    }
    let printed = write!(Counted(out, state), "{value}");
    state.consume_fuel(0)?;
    printed.map_err(Error::from)
}

/// What a template raises.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Exception(String);

/// The library's error for people.
fn describe(e: &Error) -> String {
    match e.detail() {
        Some(detail) => format!("{}: {detail}", e.kind()),
        None => e.kind().to_string(),
    }
}

fn failure(e: &Error, guard: Guard) -> TemplateError {
    // A macro's error comes wrapped in its caller's: the innermost says most.
    let mut innermost = e;
    let mut source = e.source();
    while let Some(cause) = source {
        if let Some(Exception(message)) = cause.downcast_ref() {
            return TemplateError::Raised(guard.reveal(message).into_owned());
        }
        innermost = cause.downcast_ref().unwrap_or(innermost);
        source = cause.source();
    }
    if innermost.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooLong;
    }
    let message = guard.reveal(&describe(innermost)).into_owned();
    TemplateError::Failed { message, line: innermost.line().unwrap_or_default() }
}
