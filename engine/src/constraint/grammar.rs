//! Grammars over a model's vocabulary, compiled by `llguidance`.

use std::fmt;
use std::sync::{Arc, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::Vocabulary;
use crate::text::{ControlTokens, TokenKind, Tokenizer};

/// What a whole answer can be held to.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// JSON that this schema describes.
    Json {
        /// The schema.
        schema: Value,
        /// Leave out what the schema says and can't be held to.
        lenient: bool,
    },
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// Text of this grammar, in the Lark dialect of `llguidance`.
    Lark(String),
}

/// A grammar that can't be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(pub String);

/// Compiles grammars for one vocabulary.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocabulary: Arc<Vocabulary>,
    /// Made at the first use: it takes a while for a large vocabulary.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
}

/// A compiled grammar.
#[derive(Clone)]
pub struct Grammar(Matcher);

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

impl Grammar {
    /// Follows the grammar from its beginning.
    pub(super) fn matcher(&self) -> Matcher {
        self.0.clone()
    }

    /// Whether a text of it may begin with `token`.
    #[must_use]
    pub fn begins_with(&self, token: u32) -> bool {
        self.matcher().validate_tokens(&[token]).is_ok_and(|n| n == 1)
    }
}

impl Grammars {
    /// Grammars over the vocabulary of `tokenizer`.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let single = |text: &str| match tokenizer.encode(text, ControlTokens::Match)[..] {
            [token] => Some(token),
            _ => None,
        };
        let vocabulary = Vocabulary {
            size: tokenizer.vocab_size(),
            end_tokens: tokenizer.end_tokens().to_vec(),
            end_think: tokenizer.added_token("</think>"),
            tool_call: tokenizer.added_token("<tool_call>"),
            blank: single("\n\n"),
            close_thinking: tokenizer.encode("\n</think>\n\n", ControlTokens::Match),
        };
        Self { tokenizer, vocabulary: Arc::new(vocabulary), factory: OnceLock::new() }
    }

    /// The vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> Arc<Vocabulary> {
        self.vocabulary.clone()
    }

    /// Compiles what a whole answer is held to. With `calls`, a grammar as [`super::calls_grammar`] writes it, tool calls may
    /// stand in the answer's place.
    ///
    /// # Errors
    /// [`GrammarError`] says what is wrong with it.
    pub fn answer(&self, answer: &Answer, calls: Option<&str>) -> Result<Grammar, GrammarError> {
        let grammar = match (answer, calls) {
            (Answer::Lark(grammar), None) => TopLevelGrammar::from_lark(grammar.clone()),
            _ => {
                let start = if calls.is_some() { "answer | calls" } else { "answer" };
                let text = answer_rule(answer);
                TopLevelGrammar::from_lark(format!("start: {start}\n{text}\n{}", calls.unwrap_or_default()))
            }
        };
        self.compile(grammar)
    }

    /// Compiles tool calls: one, or `many` after each other.
    ///
    /// # Errors
    /// [`GrammarError`] says what is wrong with it.
    pub fn calls(&self, calls: &str, many: bool) -> Result<Grammar, GrammarError> {
        let start = if many { "calls" } else { "call" };
        self.compile(TopLevelGrammar::from_lark(format!("start: {start}\n{calls}")))
    }

    fn compile(&self, grammar: TopLevelGrammar) -> Result<Grammar, GrammarError> {
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        let matcher = Matcher::new(factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(GrammarError(brief(&error))),
            None => Ok(Grammar(matcher)),
        }
    }

    fn factory(&self) -> Result<ParserFactory, GrammarError> {
        let environment: TokEnv = Arc::new(Environment::new(self.tokenizer.clone()));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|e| GrammarError(e.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(factory)
    }
}

/// The part of the library's message that is about the grammar.
fn brief(error: &str) -> String {
    error.lines().take(12).collect::<Vec<_>>().join("\n")
}

fn answer_rule(answer: &Answer) -> String {
    match answer {
        Answer::Json { schema, lenient } => {
            // A space, or a new line and its indentation: white space may not go on for ever, as it would with small models.
            let options = json!({ "whitespace_pattern": r" |\n[ \t]{0,24}", "lenient": lenient });
            format!("answer: %json {}", super::calls::with_options(schema, &options))
        }
        Answer::Regex(regex) => format!("answer: ANSWER\nANSWER: /{}/", super::calls::escape_regex(regex)),
        Answer::Lark(grammar) => format!("answer: %lark {{\n{grammar}\n}}"),
    }
}

/// The vocabulary as the library reads it. Added tokens are no text there: a grammar has to name them, so that none comes to
/// stand within a string.
struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl Environment {
    fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id);
            match tokenizer.kind(id) {
                TokenKind::Normal => bytes.to_vec(),
                _ if bytes.is_empty() => Vec::new(),
                _ => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
            }
        };
        let size = tokenizer.vocab_size() as u32;
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, tokenizer.eos()), &words);
        Self { tokenizer, trie }
    }
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.tokenizer.encode(text, ControlTokens::AsText),
            Err(_) => self.trie.greedy_tokenize(bytes),
        }
    }
}
