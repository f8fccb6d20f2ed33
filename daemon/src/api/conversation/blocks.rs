//! A whole answer, in the order in which the model wrote its parts.

use crate::api::writer::Delta;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Thinking.
    Reasoning(String),
    /// Text for the reader.
    Content(String),
    /// A call.
    Call {
        /// The function.
        name: String,
        /// JSON of an object.
        arguments: String,
    },
}

/// Puts an answer's pieces together.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    blocks: Vec<Block>,
    /// Where each call stands among the blocks.
    calls: Vec<usize>,
}

impl Blocks {
    /// Adds the next pieces.
    pub fn extend(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            self.push(delta);
        }
    }

    fn push(&mut self, delta: Delta) {
        match (self.blocks.last_mut(), delta) {
            (Some(Block::Reasoning(all)), Delta::Reasoning(text))
            | (Some(Block::Content(all)), Delta::Content(text)) => {
                all.push_str(&text);
            }
            (_, Delta::Reasoning(text)) => self.blocks.push(Block::Reasoning(text)),
            (_, Delta::Content(text)) => self.blocks.push(Block::Content(text)),
            (_, Delta::ToolCall { name, .. }) => {
                self.calls.push(self.blocks.len());
                self.blocks.push(Block::Call { name, arguments: String::new() });
            }
            (_, Delta::Arguments { index, piece }) => {
                let block = self.calls.get(index).and_then(|&at| self.blocks.get_mut(at));
                if let Some(Block::Call { arguments, .. }) = block {
                    arguments.push_str(&piece);
                }
            }
            (_, Delta::Broken { .. }) => {
                // A call breaks before anything follows it: it is the last block.
                self.blocks.pop();
            }
        }
    }

    /// The parts, those without a text left out.
    #[must_use]
    pub fn into_vec(self) -> Vec<Block> {
        let empty = |block: &Block| match block {
            Block::Reasoning(text) | Block::Content(text) => text.is_empty(),
            Block::Call { .. } => false,
        };
        self.blocks.into_iter().filter(|block| !empty(block)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_call_becomes_text_in_its_place() {
        let mut blocks = Blocks::default();
        blocks.extend(vec![
            Delta::Reasoning("a".into()),
            Delta::Reasoning("b".into()),
            Delta::ToolCall { index: 0, name: "f".into() },
            Delta::Arguments { index: 0, piece: "{}".into() },
            Delta::ToolCall { index: 1, name: "g".into() },
            Delta::Arguments { index: 1, piece: "{\"x\": ".into() },
            Delta::Broken { index: 1 },
            Delta::Content("<function=g>".into()),
            Delta::Content("c".into()),
        ]);
        let expected = [
            Block::Reasoning("ab".into()),
            Block::Call { name: "f".into(), arguments: "{}".into() },
            Block::Content("<function=g>c".into()),
        ];
        assert_eq!(blocks.into_vec(), expected);
    }
}
