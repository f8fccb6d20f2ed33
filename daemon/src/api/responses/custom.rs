//! The text of a call of a custom tool, out of the JSON that the call's arguments are, while they come.

/// The one parameter of a custom tool.
pub(super) const INPUT: &str = "input";

/// How its arguments begin, as the parser of calls writes them.
const BEGIN: &str = "{\"input\": \"";

/// Takes the text out of `{"input": "TEXT"}`.
#[derive(Clone, Debug, Default)]
pub(super) struct InputDecoder {
    place: Place,
    /// What is not decided on yet.
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Before,
    Inside,
    After,
    /// The arguments are others; all of them are the text.
    Other,
}

impl InputDecoder {
    /// The text in the next piece of the arguments.
    pub(super) fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        if self.place == Place::Before {
            if let Some(rest) = self.held.strip_prefix(BEGIN) {
                self.held = rest.to_owned();
                self.place = Place::Inside;
            } else if !BEGIN.starts_with(&self.held) {
                self.place = Place::Other;
            }
        }
        match self.place {
            Place::Before => String::new(),
            Place::Inside => self.inside(),
            Place::After => {
                self.held.clear();
                String::new()
            }
            Place::Other => std::mem::take(&mut self.held),
        }
    }

    fn inside(&mut self) -> String {
        let bytes = self.held.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let len = match bytes[at] {
                b'"' => {
                    self.place = Place::After;
                    break;
                }
                b'\\' if bytes.get(at + 1) == Some(&b'u') => 6,
                b'\\' => 2,
                _ => 1,
            };
            if at + len > bytes.len() {
                break;
            }
            at += len;
        }
        let rest = self.held.split_off(at);
        let whole = std::mem::replace(&mut self.held, rest);
        if self.place == Place::After {
            self.held.clear();
        }
        serde_json::from_str(&format!("\"{whole}\"")).unwrap_or(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_comes_out_however_it_is_cut() {
        let text = "*** Begin\n\t\"日本\" \\ \u{1} é";
        let arguments = format!("{{\"input\": {}}}", serde_json::Value::from(text));
        let cuts: Vec<usize> = arguments.char_indices().map(|(at, _)| at).chain([arguments.len()]).collect();
        for &a in &cuts {
            for &b in cuts.iter().filter(|&&b| b >= a) {
                let mut decoder = InputDecoder::default();
                let pieces = [&arguments[..a], &arguments[a..b], &arguments[b..]];
                let out: String = pieces.iter().map(|piece| decoder.push(piece)).collect();
                assert_eq!(out, text, "{pieces:?}");
            }
        }
    }

    #[test]
    fn other_arguments_are_the_text_themselves() {
        let mut decoder = InputDecoder::default();
        let out: String = ["{\"pa", "tch\": 1", "}"].iter().map(|piece| decoder.push(piece)).collect();
        assert_eq!(out, "{\"patch\": 1}");
    }
}
