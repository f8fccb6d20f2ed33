//! Matrices that stay in their file.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::gguf::GgufFile;
use crate::quant::TensorType;

/// A matrix in its file's own bits: `rows` outputs of `cols` inputs, `y[r] = sum_c W[r][c] x[c]`.
#[derive(Clone)]
pub struct Matrix {
    /// Name in the file.
    pub name: String,
    /// How a row's bytes are coded.
    pub ty: TensorType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The CPU backend rounds inputs to 8 bits in blocks of 32 first, as engines with integer kernels do. For comparisons only.
    pub rounds_inputs: bool,
    file: Arc<GgufFile>,
    /// Where the rows are in `file`.
    range: Range<usize>,
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}x{}", self.name, self.ty, self.rows, self.cols)
    }
}

impl Matrix {
    /// A matrix whose rows, each of `cols` elements in type `ty`, are the bytes `range` of `file`.
    pub(super) fn new(name: String, ty: TensorType, cols: usize, file: Arc<GgufFile>, range: Range<usize>) -> Self {
        Self { name, ty, rows: range.len() / ty.row_bytes(cols), cols, rounds_inputs: false, file, range }
    }

    /// All rows' bytes, one after the other without padding.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols)
    }

    /// Asks the system to read these rows from the disk, and doesn't wait for it. A mapped file is otherwise read a few pages
    /// at a time, as they are touched.
    pub fn read_ahead(&self, rows: Range<usize>) {
        let n = self.row_bytes();
        self.file.read_ahead(self.range.start + rows.start * n..self.range.start + rows.end * n);
    }

    /// Bytes of row `r`.
    #[must_use]
    pub fn row(&self, r: usize) -> &[u8] {
        let n = self.row_bytes();
        &self.bytes()[r * n..(r + 1) * n]
    }
}
