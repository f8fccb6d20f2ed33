//! What can be wrong with a GGUF file.

use super::shape;

/// A file that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct GgufError {
    /// Path of the file.
    pub file: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Problem {
    #[error("can't be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("is not a regular file")]
    NotAFile,
    #[error("is not a GGUF file: it begins with \"{}\" instead of \"GGUF\"", found.escape_ascii())]
    Magic { found: Vec<u8> },
    #[error("is a big-endian GGUF file; OpenJet reads little-endian ones")]
    BigEndian,
    #[error("has GGUF version {found}, OpenJet reads version 3; convert the model again with current tools")]
    Version { found: u32 },
    #[error("ends too early: {place} needs {needed} bytes at byte {at}, but the file has only {left} more")]
    Truncated { place: String, at: usize, needed: u64, left: usize },
    #[error("{place} claims {count} entries, which need at least {needed} bytes, but the file has only {left} more")]
    Count { place: String, count: u64, needed: u128, left: usize },
    #[error("{place} is not UTF-8")]
    Utf8 { place: String },
    #[error("key {key:?} has value type {found}, the format has 0 to 12")]
    ValueType { key: String, found: u32 },
    #[error("key {key:?} is an array of arrays, which OpenJet does not read")]
    NestedArray { key: String },
    #[error("key {key:?} is a bool of value {found}, expected 0 or 1")]
    Bool { key: String, found: u8 },
    #[error("key {key:?} is there twice")]
    DuplicateKey { key: String },
    #[error("key \"general.alignment\" is {found}, expected a power of two from 1 to 65536")]
    Alignment { found: String },
    #[error("tensor {tensor:?} is there twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor:?} has {found} dimensions, expected 1 to 4")]
    Dimensions { tensor: String, found: u32 },
    #[error("tensor {tensor:?} has shape {}, which is empty or too large for any file", shape(dims))]
    Shape { tensor: String, dims: Vec<u64> },
    #[error("tensor {tensor:?} has type {found}, which is no type that OpenJet knows of")]
    TensorType { tensor: String, found: u32 },
    #[error("tensor {tensor:?} of type {ty} has rows of {found} elements, expected a multiple of {block}")]
    Blocks { tensor: String, ty: &'static str, found: u64, block: usize },
    #[error("tensor {tensor:?} begins at offset {found}, expected a multiple of {alignment}")]
    Offset { tensor: String, found: u64, alignment: u64 },
    #[error(
        "tensor {tensor:?} needs bytes {start} to {end}, but the file has {len}; was it downloaded or copied completely?"
    )]
    Outside { tensor: String, start: u128, end: u128, len: usize },
    #[error("tensors {first:?} and {second:?} overlap at byte {at}")]
    Overlap { first: String, second: String, at: usize },
    #[error("key {key:?} is missing, expected {expected}")]
    MissingKey { key: String, expected: String },
    #[error("key {key:?} is {found}, expected {expected}")]
    KeyType { key: String, expected: String, found: String },
}
