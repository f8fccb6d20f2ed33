//! Stop strings: the text ends before the first one, wherever token borders fall, and no part of one leaves.

/// Finds stop strings in text that comes in pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// The longest end of the text so far with which a stop string may begin; it has not left yet.
    held: String,
}

/// What may leave after a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Text that is in no stop string.
    pub text: String,
    /// The stop string that was found: nothing follows.
    pub stopped: Option<String>,
}

impl StopMatcher {
    /// Looks for `stops`, none of them empty.
    #[must_use]
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> Passed {
        if self.stops.is_empty() {
            return Passed { text: piece.to_owned(), stopped: None };
        }
        let mut text = std::mem::take(&mut self.held) + piece;
        // The one that is complete first, so that the borders of pieces make no difference.
        let found =
            self.stops.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| (at + stop.len(), at, stop))).min();
        if let Some((_, at, stop)) = found {
            text.truncate(at);
            return Passed { text, stopped: Some(stop.clone()) };
        }
        self.held = text.split_off(text.len() - self.may_begin(&text));
        Passed { text, stopped: None }
    }

    /// The text is over: what was held back is no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of `text` that is the beginning of a stop string.
    fn may_begin(&self, text: &str) -> usize {
        self.stops
            .iter()
            .filter_map(|stop| {
                let longest = text.len().min(stop.len() - 1);
                (1..=longest).rev().find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n]))
            })
            .max()
            // A stop string may begin in the middle of a character's bytes only if the text ends there, which it can't.
            .filter(|&n| text.is_char_boundary(text.len() - n))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The text that leaves when `text` comes in the given pieces, and whether it was stopped.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&s| s.to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            let passed = matcher.push(piece);
            out += &passed.text;
            if passed.stopped.is_some() {
                return (out, true);
            }
        }
        (out + &matcher.finish(), false)
    }

    #[test]
    fn every_split_gives_the_same() {
        for (stops, text, expected) in [
            (&["END"][..], "abcENDdef", ("abc", true)),
            (&["ENDING", "END!"], "abcENDIN G END!x", ("abcENDIN G ", true)),
            (&["\n\n", "日本"], "a\nb\n日木日本c", ("a\nb\n日木", true)),
            (&["aab"], "aaaab", ("aa", true)),
            (&["xyz"], "wxy", ("wxy", false)),
            (&["b", "abc"], "zabc", ("za", true)),
        ] {
            let borders: Vec<usize> = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
            for &a in &borders {
                for &b in borders.iter().filter(|&&b| b >= a) {
                    let (out, stopped) = run(stops, &[&text[..a], &text[a..b], &text[b..]]);
                    assert_eq!((out.as_str(), stopped), expected, "{text:?} split at {a}, {b}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_held_without_need() {
        let mut matcher = StopMatcher::new(vec!["END".to_owned()]);
        assert_eq!(matcher.push("abc").text, "abc");
        assert_eq!(matcher.push("dE").text, "d");
        assert_eq!(matcher.push("x").text, "Ex");
    }
}
