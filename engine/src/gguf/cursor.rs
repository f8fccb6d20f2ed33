//! Reading forward through bytes that nobody vouches for.

use std::fmt::Display;
use std::ops::Range;

use super::Problem;

/// A place in a file. Every reader takes a name of what it reads, for messages.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The range of the next `len` bytes, which are there.
    pub(super) fn range(&mut self, len: u64, place: &dyn Display) -> Result<Range<usize>, Problem> {
        match usize::try_from(len) {
            Ok(len) if len <= self.left() => {
                let start = self.at;
                self.at += len;
                Ok(start..self.at)
            }
            _ => Err(Problem::Truncated { place: place.to_string(), at: self.at, needed: len, left: self.left() }),
        }
    }

    fn array<const N: usize>(&mut self, place: &dyn Display) -> Result<[u8; N], Problem> {
        let range = self.range(N as u64, place)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    pub(super) fn u32(&mut self, place: &dyn Display) -> Result<u32, Problem> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, place: &dyn Display) -> Result<u64, Problem> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// A count of entries of at least `least` bytes each, which the rest of the file can hold.
    pub(super) fn count(&mut self, least: u64, place: &dyn Display) -> Result<u64, Problem> {
        let count = self.u64(place)?;
        let needed = u128::from(count) * u128::from(least);
        if needed > self.left() as u128 {
            return Err(Problem::Count { place: place.to_string(), count, needed, left: self.left() });
        }
        Ok(count)
    }

    /// A string, which is UTF-8; the cursor then stands at its end.
    pub(super) fn string(&mut self, place: &dyn Display) -> Result<&'a str, Problem> {
        let len = self.u64(place)?;
        let range = self.range(len, place)?;
        std::str::from_utf8(&self.bytes[range]).map_err(|_| Problem::Utf8 { place: place.to_string() })
    }
}
