//! The pre-tokenizer: cuts text into the pieces within which tokens are merged.

use std::iter;

use regex::Regex;

/// A known way of cutting.
#[derive(Debug)]
pub(super) struct Splitter(Regex);

impl Splitter {
    /// The names that [`Splitter::new`] knows.
    pub(super) const NAMES: [&'static str; 2] = ["qwen35", "qwen2"];

    /// The pattern called `name` in `tokenizer.ggml.pre`; `None` if it is not known.
    ///
    /// In words, at each place the first that matches: an English contraction; letters (and marks), with one other
    /// character before them; one digit; other characters, with a space before and newlines after them; white space up to
    /// its last newline; white space, but for its last character where a word follows.
    pub(super) fn new(name: &str) -> Option<Self> {
        let pattern = match name {
            "qwen35" => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            }
            "qwen2" => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            }
            _ => return None,
        };
        Regex::new(pattern).ok().map(Self)
    }

    /// The pieces of `text` in order. Together they are the whole text. Takes time linear in it.
    pub(super) fn split<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut start = 0;
        iter::from_fn(move || {
            let found = self.0.find_at(text, start)?;
            let end = found.end() - given_back(&text[start..found.end()], found.end() == text.len());
            let piece = &text[start..end];
            start = end;
            Some(piece)
        })
    }
}

/// Bytes of the match that belong to the next piece. The original pattern ends in `\s+(?!\S)|\s+`; the look-ahead makes
/// white space before a word give back its last character, unless that is all there is. Only that alternative yields a
/// match that ends in white space other than a newline.
fn given_back(matched: &str, at_end: bool) -> usize {
    match matched.chars().next_back() {
        Some(last)
            if !at_end && last.is_whitespace() && !matches!(last, '\r' | '\n') && matched.len() > last.len_utf8() =>
        {
            last.len_utf8()
        }
        _ => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces<'a>(splitter: &'a Splitter, text: &'a str) -> Vec<&'a str> {
        splitter.split(text).collect()
    }

    #[test]
    fn known_cuts() {
        let s = Splitter::new("qwen35").unwrap();
        for (text, expected) in [
            ("I'LL don't", vec!["I", "'LL", " don", "'t"]),
            ("a  b   c", vec!["a", " ", " b", "  ", " c"]),
            ("x \n \n  y", vec!["x", " \n \n", " ", " y"]),
            ("a   ", vec!["a", "   "]),
            ("a\u{3000}\u{a0}1", vec!["a", "\u{3000}", "\u{a0}", "1"]),
            ("12 +=;\r\n\r\nz", vec!["1", "2", " +=;\r\n\r\n", "z"]),
            ("a नमस्ते", vec!["a", " नमस्ते"]),
            ("", vec![]),
        ] {
            assert_eq!(pieces(&s, text), expected, "{text:?}");
        }
        // Without marks among the letters a mark ends a word or begins one.
        assert_eq!(pieces(&Splitter::new("qwen2").unwrap(), "नमस्ते"), ["नमस", "\u{94d}त", "\u{947}"]);
        assert!(Splitter::new("llama-bpe").is_none());
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_text(text in r"(\PC|[ \t\r\n]{1,4}|\p{M}|'s){0,40}") {
            for name in Splitter::NAMES {
                let s = Splitter::new(name).unwrap();
                prop_assert_eq!(pieces(&s, &text).concat(), text.as_str());
                prop_assert!(s.split(&text).all(|p| !p.is_empty()));
            }
        }
    }
}
