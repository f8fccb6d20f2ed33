//! Byte-level BPE: text to token ids, and token ids to bytes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};
use unicode_normalization::{UnicodeNormalization, is_nfc};

use super::segments::Segments;
use super::spec::{TokenKind, TokenizerError, TokenizerSpec};
use super::split::Splitter;
use super::{alphabet, vocabulary::Vocabulary};

/// Texts of control tokens that end a text in every file of the family, besides the file's own end token.
const END_TOKENS: [&str; 5] = ["<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"];

/// What becomes of the spelling of a control token (`<|im_end|>`) in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTokens {
    /// It is that token: raw prompts, and what a template itself writes.
    Match,
    /// It is text like any other: whatever a user typed into a message.
    AsText,
}

/// A model's tokenizer. User-defined tokens (`<think>`, `<tool_call>`) are matched in every text.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    bpe: BPE,
    splitter: Splitter,
    segments: Segments,
    /// User-defined tokens, longest first at each place.
    user_defined: Matcher,
    /// User-defined and control tokens.
    added: Matcher,
    eos: u32,
    bos: Option<u32>,
    end_tokens: Vec<u32>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.vocabulary.len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds and checks a tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError`] for a file that does not hold a whole byte-level BPE vocabulary.
    pub fn new(spec: &TokenizerSpec<'_>) -> Result<Self, TokenizerError> {
        if spec.model != "gpt2" {
            return Err(TokenizerError::Model { found: spec.model.into() });
        }
        let splitter = Splitter::new(spec.pre)
            .ok_or_else(|| TokenizerError::Pre { found: spec.pre.into(), known: Splitter::NAMES.into() })?;
        let vocabulary = Vocabulary::new(&spec.tokens, &spec.token_types)?;
        let tokens = vocabulary.len();
        let eos = [("tokenizer.ggml.eos_token_id", Some(spec.eos)), ("tokenizer.ggml.bos_token_id", spec.bos)];
        for (key, id) in eos {
            if let Some(id) = id.filter(|&id| id as usize >= tokens) {
                return Err(TokenizerError::SpecialId { key, id, tokens });
            }
        }
        let bpe = build_bpe(spec, &vocabulary)?;
        let user_defined = Matcher::new(vocabulary.of_kind(TokenKind::UserDefined))?;
        let control = vocabulary.of_kind(TokenKind::Control);
        let end_tokens =
            control.filter(|(id, text)| *id == spec.eos || END_TOKENS.iter().any(|t| t.as_bytes() == *text));
        let mut end_tokens: Vec<u32> = end_tokens.map(|(id, _)| id).collect();
        if !end_tokens.contains(&spec.eos) {
            end_tokens.push(spec.eos);
        }
        let added =
            Matcher::new(vocabulary.of_kind(TokenKind::UserDefined).chain(vocabulary.of_kind(TokenKind::Control)))?;
        let segments = Segments::new();
        Ok(Self { vocabulary, bpe, splitter, segments, user_defined, added, eos: spec.eos, bos: spec.bos, end_tokens })
    }

    /// Token ids of `text`. Nothing is put before or after it. Any string can be encoded.
    #[must_use]
    pub fn encode(&self, text: &str, control: ControlTokens) -> Vec<u32> {
        let matcher = match control {
            ControlTokens::Match => &self.added,
            ControlTokens::AsText => &self.user_defined,
        };
        self.encode_with(matcher, text, Cow::Borrowed, None).0
    }

    /// Token ids of `text`: what `matcher` finds, and between it what `reveal` makes of the rest. Also the place among the
    /// ids of the added token that begins at byte `mark` of `text`, if one does.
    pub(super) fn encode_with<'a>(
        &self,
        matcher: &Matcher,
        text: &'a str,
        reveal: impl Fn(&'a str) -> Cow<'a, str>,
        mark: Option<usize>,
    ) -> (Vec<u32>, Option<usize>) {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut marked = None;
        let mut start = 0;
        for (range, id) in matcher.find(text) {
            ids.extend_from_slice(&self.encode_ordinary(&reveal(&text[start..range.start])));
            if mark == Some(range.start) {
                marked = Some(ids.len());
            }
            ids.push(id);
            start = range.end;
        }
        ids.extend_from_slice(&self.encode_ordinary(&reveal(&text[start..])));
        (ids, marked)
    }

    /// Token ids of text without added tokens. They depend on nothing else, so a text that came before is not merged again.
    fn encode_ordinary(&self, text: &str) -> Arc<[u32]> {
        self.segments.get(text, || self.merge(text))
    }

    /// Normalises text without added tokens (NFC), cuts it into pieces, and merges piece by piece.
    fn merge(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let text: Cow<'_, str> = if is_nfc(text) { text.into() } else { text.nfc().collect::<String>().into() };
        let mut spelled = String::new();
        for piece in self.splitter.split(&text) {
            spelled.clear();
            spelled.extend(piece.bytes().map(|b| alphabet::CHARS[usize::from(b)]));
            // Merging fails only for characters that are no token, and every byte is one.
            let tokens = self.bpe.tokenize(&spelled).unwrap_or_default();
            ids.extend(tokens.into_iter().map(|token| token.id));
        }
        ids
    }

    /// Forgets the texts that it has encoded, which it keeps so as not to encode them again.
    pub fn forget(&self) {
        self.segments.clear();
    }

    /// Bytes of a token's text, none for an id outside the vocabulary. Single tokens need not be whole characters.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// What a token is; ids outside the vocabulary are unused.
    #[must_use]
    pub fn kind(&self, id: u32) -> TokenKind {
        self.vocabulary.kind(id)
    }

    /// The added token (control or user-defined) with exactly this text.
    #[must_use]
    pub fn added_token(&self, text: &str) -> Option<u32> {
        let kinds = [TokenKind::UserDefined, TokenKind::Control];
        let mut added = kinds.into_iter().flat_map(|kind| self.vocabulary.of_kind(kind));
        added.find(|(_, bytes)| *bytes == text.as_bytes()).map(|(id, _)| id)
    }

    /// Control or user-defined tokens, with their bytes.
    pub(super) fn of_kind(&self, kind: TokenKind) -> impl Iterator<Item = (u32, &[u8])> + Clone {
        self.vocabulary.of_kind(kind)
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that ends a turn.
    #[must_use]
    pub fn eos(&self) -> u32 {
        self.eos
    }

    /// The file's token for the beginning of a text, which only templates use.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The tokens that end a text: the file's own, and those that do in every file of the family.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }
}

/// Builds the library's model of the merges.
fn build_bpe(spec: &TokenizerSpec<'_>, vocabulary: &Vocabulary) -> Result<BPE, TokenizerError> {
    let mergeable = |id: u32| matches!(vocabulary.kind(id), TokenKind::Normal | TokenKind::UserDefined);
    let ids = spec.tokens.iter().zip(0_u32..).filter(|&(_, id)| mergeable(id));
    let ids: Vocab = ids.map(|(text, id)| ((*text).to_owned(), id)).collect();
    let longest = ids.keys().map(String::len).max().unwrap_or(0);
    let mut merges = Vec::with_capacity(spec.merges.len());
    for (rank, &text) in spec.merges.iter().enumerate() {
        match text.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                // The library takes it for granted that a merge is no longer than every token.
                if left.len() + right.len() > longest {
                    return Err(TokenizerError::MergeToken {
                        rank,
                        text: text.into(),
                        missing: left.to_owned() + right,
                    });
                }
                merges.push((left.to_owned(), right.to_owned()));
            }
            _ => return Err(TokenizerError::MergeForm { rank, text: text.into() }),
        }
    }
    let built = BPE::builder().vocab_and_merges(ids, merges).build();
    built.map_err(|e| unknown_merge(spec, mergeable).unwrap_or_else(|| TokenizerError::Build(e.to_string())))
}

/// The first merge of, or to, something that is no token.
fn unknown_merge(spec: &TokenizerSpec<'_>, mergeable: impl Fn(u32) -> bool) -> Option<TokenizerError> {
    let ids = spec.tokens.iter().zip(0_u32..).filter(|&(_, id)| mergeable(id));
    let tokens: HashSet<&str> = ids.map(|(text, _)| *text).collect();
    spec.merges.iter().enumerate().find_map(|(rank, &text)| {
        let (left, right) = text.split_once(' ')?;
        let merged = [left, right].concat();
        let missing = [left, right, &merged].into_iter().find(|part| !tokens.contains(part))?.to_owned();
        Some(TokenizerError::MergeToken { rank, text: text.into(), missing })
    })
}

/// Finds added tokens in a text: leftmost first, then longest.
#[derive(Debug)]
pub(super) struct Matcher {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Matcher {
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (u32, &'a [u8])>) -> Result<Self, TokenizerError> {
        let (ids, texts): (Vec<u32>, Vec<&[u8]>) = tokens.unzip();
        let builder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        Ok(Self { automaton: builder.map_err(|e| TokenizerError::Build(e.to_string()))?, ids })
    }

    fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (std::ops::Range<usize>, u32)> + 'a {
        self.automaton.find_iter(text).map(|found| (found.range(), self.ids[found.pattern().as_usize()]))
    }
}
