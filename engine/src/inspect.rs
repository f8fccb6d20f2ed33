//! What is in a model file, and whether the engine can run it: a report for people and programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::gguf::{FromValue, GgufFile, StoredType, TensorInfo};
use crate::model::{ARCHITECTURE, Model, ModelConfig};
use crate::text::{ChatTemplate, Tokenizer, TokenizerSpec};

/// A report on a GGUF file that could be read, whatever model it holds.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// Path of the file.
    pub file: String,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// `general.name`.
    pub name: Option<String>,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// The engine can run it.
    pub runnable: bool,
    /// Every reason why it can't.
    pub problems: Vec<String>,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Bytes of all tensors whose type the engine reads.
    pub tensor_bytes: u64,
    /// How the tensors are coded, most bytes first.
    pub types: Vec<TypeUsage>,
    /// Sizes and constants, if they could be read and agree with each other.
    pub config: Option<ModelConfig>,
    /// What the file says of its tokenizer.
    pub tokenizer: TokenizerFacts,
    /// Tensors that the model has no use for; empty if it can't be run.
    pub unused_tensors: Vec<String>,
    /// Every tensor, by name.
    pub tensors: Vec<TensorFacts>,
}

/// Tensors of one type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeUsage {
    /// Name of the type.
    #[serde(rename = "type")]
    pub ty: String,
    /// How many tensors have it.
    pub tensors: u64,
    /// Their numbers.
    pub parameters: u64,
    /// Their bytes; 0 for a type that the engine does not read.
    pub bytes: u64,
}

/// One tensor.
#[derive(Clone, Debug, Serialize)]
pub struct TensorFacts {
    /// Its name.
    pub name: String,
    /// Elements in each dimension, the contiguous one first.
    pub shape: Vec<u64>,
    /// Name of its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// Where its bytes start in the file.
    pub offset: u64,
    /// Its bytes; 0 for a type that the engine does not read.
    pub bytes: u64,
}

/// What a file says of its tokenizer. A key of a wrong type is left out.
#[derive(Clone, Debug, Serialize)]
pub struct TokenizerFacts {
    /// `tokenizer.ggml.model`.
    pub model: Option<String>,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Tokens in the vocabulary.
    pub tokens: Option<u64>,
    /// Merges.
    pub merges: Option<u64>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// Characters of the chat template.
    pub chat_template: Option<u64>,
}

impl Inspection {
    /// Looks at a file.
    #[must_use]
    pub fn of(file: &Arc<GgufFile>) -> Self {
        let loaded = Model::load(file.clone());
        let (mut problems, unused_tensors) = match loaded {
            Ok(model) => (Vec::new(), model.unused_tensors),
            Err(error) => (error.problems.iter().map(ToString::to_string).collect(), Vec::new()),
        };
        // A model of another kind has another tokenizer, too, which needs no mention.
        if text(file, "general.architecture").as_deref() == Some(ARCHITECTURE) {
            problems.extend(text_problem(file));
        }
        let tensors: Vec<_> = file
            .tensors()
            .iter()
            .map(|tensor| TensorFacts {
                name: tensor.name.clone(),
                shape: tensor.shape().to_vec(),
                ty: tensor.ty.to_string(),
                offset: tensor.bytes.start as u64,
                bytes: tensor.bytes.len() as u64,
            })
            .collect();
        Self {
            file: file.name().to_owned(),
            file_bytes: file.bytes().len() as u64,
            name: text(file, "general.name"),
            architecture: text(file, "general.architecture"),
            runnable: problems.is_empty(),
            problems,
            parameters: file.tensors().iter().map(TensorInfo::elements).fold(0, u64::saturating_add),
            tensor_bytes: tensors.iter().map(|tensor| tensor.bytes).sum(),
            types: types(file),
            config: ModelConfig::read(file).ok(),
            tokenizer: TokenizerFacts::of(file),
            unused_tensors,
            tensors,
        }
    }
}

impl TokenizerFacts {
    fn of(file: &GgufFile) -> Self {
        let count = |key| file.array_len(key).map(|n| n as u64);
        Self {
            model: text(file, "tokenizer.ggml.model"),
            pre: text(file, "tokenizer.ggml.pre"),
            tokens: count("tokenizer.ggml.tokens"),
            merges: count("tokenizer.ggml.merges"),
            eos: value(file, "tokenizer.ggml.eos_token_id"),
            bos: value(file, "tokenizer.ggml.bos_token_id"),
            chat_template: value::<&str>(file, "tokenizer.chat_template").map(|t| t.chars().count() as u64),
        }
    }
}

/// Why texts can't be turned into tokens and back, or conversations into texts.
fn text_problem(file: &GgufFile) -> Option<String> {
    let spec = match TokenizerSpec::from_gguf(file) {
        Ok(spec) => spec,
        Err(error) => return Some(error.problem.to_string()),
    };
    let tokenizer = match Tokenizer::new(&spec) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return Some(error.to_string()),
    };
    spec.chat_template.and_then(|source| ChatTemplate::new(source, &tokenizer).err()).map(|error| error.to_string())
}

fn value<'a, T: FromValue<'a>>(file: &'a GgufFile, key: &str) -> Option<T> {
    file.get_opt(key).ok().flatten()
}

fn text(file: &GgufFile, key: &str) -> Option<String> {
    value::<&str>(file, key).map(str::to_owned)
}

fn types(file: &GgufFile) -> Vec<TypeUsage> {
    let mut by_type: BTreeMap<StoredType, TypeUsage> = BTreeMap::new();
    for tensor in file.tensors() {
        let usage = by_type.entry(tensor.ty).or_insert_with(|| TypeUsage {
            ty: tensor.ty.to_string(),
            tensors: 0,
            parameters: 0,
            bytes: 0,
        });
        usage.tensors += 1;
        usage.parameters = usage.parameters.saturating_add(tensor.elements());
        usage.bytes += tensor.bytes.len() as u64;
    }
    let mut types: Vec<_> = by_type.into_values().collect();
    types.sort_by_key(|usage| std::cmp::Reverse(usage.bytes));
    types
}
