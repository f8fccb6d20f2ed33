//! GGUF version 3: a checked, mapped view of a model file.
//!
//! Opening a file checks everything that its header claims before anything is used or allocated: lengths and counts
//! against the file's size, names, types, shapes, and that the tensors lie inside the file, aligned and apart. What the
//! numbers mean for a model is checked in [`crate::model`].

mod cursor;
mod error;
mod parse;
mod value;

pub use error::{GgufError, Problem};
pub use value::{FromValue, Value, ValueType};

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::quant::TensorType;

/// A GGUF file whose header, metadata and tensor table have been checked.
#[derive(Debug)]
pub struct GgufFile {
    name: String,
    source: Source,
    alignment: u64,
    metadata: BTreeMap<String, Value>,
    /// Sorted by name.
    tensors: Vec<TensorInfo>,
}

#[derive(Debug)]
enum Source {
    Mapped(Mmap),
    Memory(Cow<'static, [u8]>),
}

impl AsRef<[u8]> for Source {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Memory(bytes) => bytes,
        }
    }
}

/// A tensor's entry in the file's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Unique in the file.
    pub name: String,
    /// Elements in each dimension, the contiguous one first, filled up with ones; none is 0.
    pub dims: [u64; 4],
    /// How its numbers are coded.
    pub ty: StoredType,
    /// Its bytes in the file. For a type of unknown block size only the start is known, and the range is empty.
    pub bytes: Range<usize>,
}

impl TensorInfo {
    /// All elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The dimensions without the ones that fill them up.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        used(&self.dims)
    }
}

fn used(dims: &[u64]) -> &[u64] {
    &dims[..dims.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1)]
}

/// A shape for people: `256 x 768`, ones at the end left out.
#[must_use]
pub fn shape(dims: &[u64]) -> String {
    used(dims).iter().map(u64::to_string).collect::<Vec<_>>().join(" x ")
}

/// A tensor's type: one that the engine computes with, or another that the format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoredType {
    /// The engine computes with it.
    Known(TensorType),
    /// Name of a type that the engine does not read.
    Other(&'static str),
}

impl StoredType {
    /// The type with this number, if the format has one.
    #[must_use]
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        const OTHERS: [(u32, &str); 20] = [
            (9, "Q8_1"),
            (15, "Q8_K"),
            (16, "IQ2_XXS"),
            (17, "IQ2_XS"),
            (18, "IQ3_XXS"),
            (19, "IQ1_S"),
            (21, "IQ3_S"),
            (22, "IQ2_S"),
            (24, "I8"),
            (25, "I16"),
            (26, "I32"),
            (27, "I64"),
            (28, "F64"),
            (29, "IQ1_M"),
            (34, "TQ1_0"),
            (35, "TQ2_0"),
            (39, "MXFP4"),
            (40, "NVFP4"),
            (41, "Q1_0"),
            (42, "Q2_0"),
        ];
        let other = || OTHERS.iter().find(|other| other.0 == id).map(|other| Self::Other(other.1));
        TensorType::from_ggml_id(id).map(Self::Known).or_else(other)
    }
}

impl std::fmt::Display for StoredType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Known(ty) => ty.name(),
            Self::Other(name) => name,
        })
    }
}

impl GgufFile {
    /// Maps and checks a file. It must not be written to or truncated while it is in use: replace a model by renaming
    /// another file over it.
    ///
    /// # Errors
    /// [`GgufError`] names the file and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let name = path.display().to_string();
        let map = map(path).map_err(|problem| GgufError { file: name.clone(), problem })?;
        Self::parse(name, Source::Mapped(map))
    }

    /// Checks a file that is in memory already. `name` stands for its path in messages.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn from_bytes(name: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self, GgufError> {
        Self::parse(name.to_owned(), Source::Memory(bytes.into()))
    }

    fn parse(name: String, source: Source) -> Result<Self, GgufError> {
        match parse::parse(source.as_ref()) {
            Ok(parse::Contents { alignment, metadata, tensors }) => {
                Ok(Self { name, source, alignment, metadata, tensors })
            }
            Err(problem) => Err(GgufError { file: name, problem }),
        }
    }

    /// The file's path, or the name that it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Every byte of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.source.as_ref()
    }

    /// Asks the system to read a part of a mapped file from the disk, and doesn't wait for it.
    pub fn read_ahead(&self, bytes: std::ops::Range<usize>) {
        if let Source::Mapped(map) = &self.source {
            // Only a hint: without it the bytes come as they are touched.
            let _refused = map.advise_range(memmap2::Advice::WillNeed, bytes.start, bytes.len());
        }
    }

    /// BLAKE3 hash of every byte; takes about a second for 10 GB in memory.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        blake3::Hasher::new().update_rayon(self.bytes()).finalize().into()
    }

    /// `general.alignment`: tensors start at multiples of it.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Every metadata key and value, by name.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Every tensor, by name.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.binary_search_by(|t| t.name.as_str().cmp(name)).ok().map(|i| &self.tensors[i])
    }

    /// The value of `key` as a `T`: any unsigned or signed integer type (whatever the width in the file), `f32`, `bool`,
    /// `&str`, or a `Vec` of these.
    ///
    /// # Errors
    /// [`Problem::MissingKey`], or [`Problem::KeyType`] with both types.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.get_opt(key)?
            .ok_or_else(|| self.error(Problem::MissingKey { key: key.to_owned(), expected: T::expected() }))
    }

    /// As [`GgufFile::get`], `None` when the file has no such key.
    ///
    /// # Errors
    /// [`Problem::KeyType`] with both types.
    pub fn get_opt<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        T::from_value(value, self.bytes()).map(Some).ok_or_else(|| {
            self.error(Problem::KeyType { key: key.to_owned(), expected: T::expected(), found: value.to_string() })
        })
    }

    /// Elements of `key`, `None` if it is missing or no array.
    #[must_use]
    pub fn array_len(&self, key: &str) -> Option<usize> {
        match self.metadata.get(key) {
            Some(Value::Array { count, .. }) => Some(*count),
            _ => None,
        }
    }

    fn error(&self, problem: Problem) -> GgufError {
        GgufError { file: self.name.clone(), problem }
    }
}

fn map(path: &Path) -> Result<Mmap, Problem> {
    // Asked before it is opened: opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(Problem::NotAFile);
    }
    let file = File::open(path)?;
    // SAFETY: the map is read-only and private to this value. That nobody writes to the file is asked of the user (see
    // `open`); every offset into the map is checked against its length, which does not change.
    Ok(unsafe { Mmap::map(&file) }?)
}

#[cfg(test)]
mod tests;
