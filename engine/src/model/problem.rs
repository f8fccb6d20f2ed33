//! Why a file can't be run.

use crate::gguf;

/// A model that can't be run, with everything that is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {}", summary(problems))]
pub struct ModelError {
    /// Path of the file.
    pub file: String,
    /// At least one; the most telling first.
    pub problems: Vec<ModelProblem>,
}

fn summary(problems: &[ModelProblem]) -> String {
    match problems {
        [] => "can't be run".into(),
        [only] => only.to_string(),
        [first, rest @ ..] => {
            let (n, s) = (rest.len(), if rest.len() == 1 { "" } else { "s" });
            format!("{first} (and {n} more problem{s}; `openjetctl inspect` lists all)")
        }
    }
}

/// One reason why a file can't be run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ModelProblem {
    #[error("architecture {found:?} {note}")]
    Architecture { found: String, note: &'static str },
    #[error("is part {part} of a model split into {count} files; join them with `llama-gguf-split --merge` first")]
    Split { part: u64, count: u64 },
    #[error(
        "holds a draft head only, without the model's trunk; use the whole model's file, which may include the head"
    )]
    DraftOnly,
    #[error(transparent)]
    Header(gguf::Problem),
    #[error("key {key:?} is {found}, expected {expected}")]
    Value { key: String, found: String, expected: String },
    #[error("key {key:?} is set, but OpenJet does not implement it")]
    UnknownKey { key: String },
    #[error("tensor {tensor:?} is missing, expected shape {expected}")]
    MissingTensor { tensor: String, expected: String },
    #[error("tensor {tensor:?} has shape {found}, expected {expected}")]
    Shape { tensor: String, found: String, expected: String },
    #[error("tensor {tensor:?} has type {found}, expected {expected}")]
    Type { tensor: String, found: String, expected: &'static str },
    #[error(
        "tensor {tensor:?} scales another tensor, which OpenJet does not implement; use a file of another quantisation"
    )]
    Companion { tensor: String },
}

/// Collects problems; a hostile file can't make it collect without end.
#[derive(Debug, Default)]
pub(super) struct Problems(pub(super) Vec<ModelProblem>);

impl Problems {
    const MOST: usize = 100;

    /// No more are taken: it is of no use to look for them.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= Self::MOST
    }

    pub(super) fn push(&mut self, problem: ModelProblem) {
        if !self.is_full() {
            self.0.push(problem);
        }
    }
}
