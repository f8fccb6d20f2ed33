//! What an answer is held to: a grammar for its text or its tool calls, and a limit to its thinking.
//!
//! A [`Constraint`] follows the tokens that were chosen and says, for each row of a step, which tokens may come next. Rows
//! of drafts have masks too, so that drafts and constraints go together. Where only one continuation is possible it is
//! offered as a draft.

mod calls;
mod grammar;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;

pub use calls::{CallsError, calls_grammar};
pub use grammar::{Answer, Grammar, GrammarError, Grammars};

/// What a constraint knows of the vocabulary.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Tokens in it.
    pub size: usize,
    /// Tokens that end a text; the first one ends an answer that its grammar says is over.
    pub end_tokens: Vec<u32>,
    /// `</think>`, if it is a token.
    pub end_think: Option<u32>,
    /// `<tool_call>`, if it is a token.
    pub tool_call: Option<u32>,
    /// The empty line that models write after their thinking, if it is a token.
    pub blank: Option<u32>,
    /// What closes the thinking from within it: a newline, `</think>`, an empty line.
    pub close_thinking: Vec<u32>,
}

/// What is held to a grammar.
#[derive(Clone, Debug)]
pub enum Hold {
    /// Nothing.
    Nothing,
    /// All that follows the thinking.
    Answer(Grammar),
    /// Each tool call, from its `<tool_call>` on. Other text is free.
    Calls(Grammar),
}

/// Follows one answer. Clones follow it independently from there.
#[derive(Clone)]
pub struct Constraint {
    vocabulary: Arc<Vocabulary>,
    hold: Hold,
    /// Tokens of thinking that are left, if they are limited.
    budget: Option<usize>,
    phase: Phase,
    /// Follows the grammar, where one is being followed.
    matcher: Option<Matcher>,
    error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The model thinks.
    Thinking,
    /// The thinking is being closed by these tokens.
    Closing(VecDeque<u32>),
    /// The thinking has just ended: an empty line may come before what is held.
    Lead,
    /// The grammar is followed.
    Held,
    /// Any text, until a tool call begins.
    Free,
}

/// The tokens that one row allows, as a bit set; `None` for all.
type Mask = Option<Vec<u32>>;

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("phase", &self.phase).field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl Constraint {
    /// A constraint for an answer that begins within the thinking if `in_thinking`, of which at most `budget` tokens may be
    /// thinking. `None` if nothing is constrained.
    #[must_use]
    pub fn new(vocabulary: Arc<Vocabulary>, hold: Hold, in_thinking: bool, budget: Option<usize>) -> Option<Self> {
        let budget = budget.filter(|_| in_thinking && vocabulary.end_think.is_some());
        if budget.is_none() && matches!(hold, Hold::Nothing) {
            return None;
        }
        let mut new = Self { vocabulary, hold, budget, phase: Phase::Thinking, matcher: None, error: None };
        // Thinking that has no end of its own can't be waited for.
        if !in_thinking || new.vocabulary.end_think.is_none() {
            new.end_thinking(true);
        } else if budget == Some(0) {
            new.close_thinking();
        }
        Some(new)
    }

    /// Why the answer can't go on, if it can't.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Tokens that must come next, up to `limit` of them: good drafts.
    pub fn forced(&mut self, limit: usize) -> Vec<u32> {
        match (&self.phase, &mut self.matcher) {
            (Phase::Closing(tokens), _) => tokens.iter().copied().take(limit).collect(),
            (Phase::Held, Some(matcher)) if !matcher.is_stopped() => {
                let mut tokens = matcher.compute_ff_tokens();
                tokens.truncate(limit);
                tokens
            }
            _ => Vec::new(),
        }
    }

    /// For the row of the newest token and of each draft, which tokens may follow. Drafts that can't be accepted are cut off,
    /// and those after one that begins or ends what is held. Empty if every token may follow every row.
    pub fn masks(&mut self, drafts: &mut Vec<u32>) -> Vec<Mask> {
        match self.phase.clone() {
            Phase::Free => {
                let trigger = self.vocabulary.tool_call;
                let end = drafts.iter().position(|&token| Some(token) == trigger);
                drafts.truncate(end.unwrap_or(drafts.len()));
                Vec::new()
            }
            Phase::Thinking => self.thinking_masks(drafts),
            Phase::Closing(tokens) => {
                let same = drafts.iter().zip(&tokens).take_while(|(draft, token)| draft == token).count();
                // The row after the last one belongs to the next phase.
                drafts.truncate(same.min(tokens.len().saturating_sub(1)));
                tokens.iter().take(drafts.len() + 1).map(|&token| Some(self.only(&[token]))).collect()
            }
            Phase::Lead => {
                drafts.truncate(if drafts.first().copied() == self.vocabulary.blank { 0 } else { drafts.len() });
                let mut masks = self.held_masks(drafts);
                if let (Some(Some(first)), Some(blank)) = (masks.first_mut(), self.vocabulary.blank) {
                    set(first, blank);
                }
                masks
            }
            Phase::Held => self.held_masks(drafts),
        }
    }

    /// A token was chosen. End tokens are not told.
    pub fn accept(&mut self, token: u32) {
        match &mut self.phase {
            Phase::Free if Some(token) == self.vocabulary.tool_call => self.begin_held(token),
            Phase::Free => {}
            Phase::Closing(tokens) => {
                tokens.pop_front();
                if tokens.is_empty() {
                    self.end_thinking(true);
                }
            }
            Phase::Thinking if Some(token) == self.vocabulary.end_think => self.end_thinking(false),
            // A call ends the thinking before it.
            Phase::Thinking if Some(token) == self.vocabulary.tool_call && !matches!(self.hold, Hold::Nothing) => {
                self.begin_held(token);
            }
            Phase::Thinking => {
                self.budget = self.budget.map(|left| left.saturating_sub(1));
                if self.budget == Some(0) {
                    self.close_thinking();
                }
            }
            Phase::Lead => {
                self.phase = Phase::Held;
                if Some(token) != self.vocabulary.blank || self.allows(token) {
                    self.consume(token);
                }
            }
            Phase::Held => self.consume(token),
        }
    }

    fn close_thinking(&mut self) {
        self.budget = None;
        self.phase = Phase::Closing(self.vocabulary.close_thinking.iter().copied().collect());
    }

    /// `clean`: the empty line after the thinking is written already.
    fn end_thinking(&mut self, clean: bool) {
        self.budget = None;
        self.phase = match &self.hold {
            Hold::Answer(grammar) => {
                self.matcher = Some(grammar.matcher());
                if clean { Phase::Held } else { Phase::Lead }
            }
            Hold::Nothing | Hold::Calls(_) => Phase::Free,
        };
    }

    /// What is held begins with `token`.
    fn begin_held(&mut self, token: u32) {
        if let Hold::Answer(grammar) | Hold::Calls(grammar) = &self.hold {
            self.matcher = Some(grammar.matcher());
            self.phase = Phase::Held;
            self.consume(token);
        }
    }

    fn allows(&mut self, token: u32) -> bool {
        self.matcher.as_mut().is_some_and(|matcher| matcher.validate_tokens(&[token]).is_ok_and(|n| n == 1))
    }

    fn consume(&mut self, token: u32) {
        let Some(matcher) = &mut self.matcher else { return };
        if let Err(error) = matcher.consume_token(token) {
            self.error.get_or_insert(format!("the answer left its grammar: {error}"));
        } else if matcher.is_stopped() && matches!(self.hold, Hold::Calls(_)) {
            self.matcher = None;
            self.phase = Phase::Free;
        }
    }

    fn thinking_masks(&self, drafts: &mut Vec<u32>) -> Vec<Mask> {
        let Vocabulary { end_think, tool_call, end_tokens, .. } = &*self.vocabulary;
        let ends = drafts.iter().position(|&token| Some(token) == *end_think || Some(token) == *tool_call);
        drafts
            .truncate(ends.unwrap_or(drafts.len()).min(self.budget.map_or(usize::MAX, |left| left.saturating_sub(1))));
        let Hold::Answer(grammar) = &self.hold else { return Vec::new() };
        // What is to come must come: the text can't end before, nor can a call begin where none may.
        let mut mask = vec![u32::MAX; self.vocabulary.size.div_ceil(32)];
        end_tokens.iter().for_each(|&token| clear(&mut mask, token));
        if let Some(token) = tool_call.filter(|&token| !grammar.begins_with(token)) {
            clear(&mut mask, token);
        }
        let out = drafts.iter().position(|&token| !has(&mask, token));
        drafts.truncate(out.unwrap_or(drafts.len()));
        vec![Some(mask); drafts.len() + 1]
    }

    fn held_masks(&mut self, drafts: &mut Vec<u32>) -> Vec<Mask> {
        let mut masks = Vec::with_capacity(drafts.len() + 1);
        let mut consumed = 0;
        loop {
            let mask = self.mask();
            let next = drafts.get(consumed).copied().filter(|&token| has(&mask, token));
            masks.push(Some(mask));
            let Some((token, matcher)) = next.zip(self.matcher.as_mut()) else { break };
            let is_end = self.vocabulary.end_tokens.contains(&token);
            if is_end || matcher.consume_token(token).is_err() {
                break;
            }
            consumed += 1;
            // What follows a call is not held, so its last token is left to be chosen.
            if matcher.is_stopped() && matches!(self.hold, Hold::Calls(_)) {
                drafts.truncate(consumed - 1);
                break;
            }
        }
        drafts.truncate(consumed);
        if consumed > 0 {
            let rolled_back = self.matcher.as_mut().map(|matcher| matcher.rollback(consumed));
            if let Some(Err(error)) = rolled_back {
                self.error.get_or_insert(format!("the grammar can't be followed: {error}"));
            }
        }
        masks
    }

    /// What may follow now. Never empty.
    fn mask(&mut self) -> Vec<u32> {
        let words = self.vocabulary.size.div_ceil(32);
        let mask = self.matcher.as_mut().map(Matcher::compute_mask_or_eos);
        match mask {
            Some(Ok(mask)) if !mask.is_zero() => {
                let mut mask = mask.as_slice().to_vec();
                mask.resize(words, 0);
                mask
            }
            failed => {
                let reason =
                    failed.and_then(Result::err).map_or_else(|| "nothing may follow".to_owned(), |e| e.to_string());
                self.error.get_or_insert(format!("the grammar can't be followed: {reason}"));
                self.only(&self.vocabulary.end_tokens)
            }
        }
    }

    fn only(&self, tokens: &[u32]) -> Vec<u32> {
        let mut mask = vec![0; self.vocabulary.size.div_ceil(32)];
        tokens.iter().for_each(|&token| set(&mut mask, token));
        mask
    }
}

fn set(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

fn clear(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word &= !(1 << (token % 32));
    }
}

fn has(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}
