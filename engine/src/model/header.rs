//! Reading a model's sizes out of a file's metadata, with a problem noted for each that is missing or out of range.

use std::ops::RangeInclusive;

use super::problem::{ModelProblem, Problems};
use crate::gguf::{FromValue, GgufFile};

/// The architecture that the engine runs, which prefixes its keys.
pub const ARCHITECTURE: &str = "qwen35";

/// The keys of one file.
pub(super) struct Header<'a> {
    pub(super) file: &'a GgufFile,
    pub(super) problems: &'a mut Problems,
}

impl<'a> Header<'a> {
    /// Full name of the architecture's key `name`.
    pub(super) fn key(name: &str) -> String {
        format!("{ARCHITECTURE}.{name}")
    }

    /// A key that must be there.
    pub(super) fn required<T: FromValue<'a>>(&mut self, name: &str) -> Option<T> {
        let value = self.file.get(&Self::key(name));
        value.map_err(|error| self.problems.push(ModelProblem::Header(error.problem))).ok()
    }

    /// A key that may be missing: `Some(None)` then, `None` if it is there with a wrong type.
    pub(super) fn optional<T: FromValue<'a>>(&mut self, name: &str) -> Option<Option<T>> {
        let value = self.file.get_opt(&Self::key(name));
        value.map_err(|error| self.problems.push(ModelProblem::Header(error.problem))).ok()
    }

    /// A required size within `range`.
    pub(super) fn size(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<usize> {
        let size = self.required::<u64>(name)?;
        self.within(name, size, range)
    }

    /// A size within `range`, `default` if the key is missing.
    pub(super) fn size_or(&mut self, name: &str, default: u64, range: RangeInclusive<u64>) -> Option<usize> {
        let size = self.optional::<u64>(name)?.unwrap_or(default);
        self.within(name, size, range)
    }

    /// A required size that the file gives once, or for each of `blocks` blocks; then those of the blocks in `of` must be
    /// the same.
    pub(super) fn size_by_block(
        &mut self,
        name: &str,
        blocks: usize,
        of: impl Fn(usize) -> bool,
        range: RangeInclusive<u64>,
    ) -> Option<usize> {
        match self.file.array_len(&Self::key(name)) {
            None => return self.size(name, range),
            Some(found) if found != blocks => {
                return self.bad(name, format!("an array of {found}"), format!("{blocks} numbers, one for each block"));
            }
            Some(_) => {}
        }
        let sizes = self.required::<Vec<u64>>(name)?;
        let mut used = sizes.into_iter().enumerate().filter(|(block, _)| of(*block));
        let Some((_, size)) = used.next() else { return self.bad(name, "an empty array", "a number") };
        match used.find(|(_, other)| *other != size) {
            Some((block, other)) => {
                self.bad(name, format!("{other} in block {block}"), format!("{size} as in the blocks before"))
            }
            None => self.within(name, size, range),
        }
    }

    /// Notes that key `name` has a bad value.
    pub(super) fn bad<T>(
        &mut self,
        name: &str,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Option<T> {
        let (key, found, expected) = (Self::key(name), found.to_string(), expected.into());
        self.problems.push(ModelProblem::Value { key, found, expected });
        None
    }

    /// Notes that key `name` asks for something that the engine does not do.
    pub(super) fn unknown(&mut self, name: &str) {
        self.problems.push(ModelProblem::UnknownKey { key: Self::key(name) });
    }

    fn within(&mut self, name: &str, size: u64, range: RangeInclusive<u64>) -> Option<usize> {
        if range.contains(&size) {
            return Some(size as usize);
        }
        self.bad(name, size, format!("a number from {} to {}", range.start(), range.end()))
    }
}
