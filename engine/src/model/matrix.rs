//! Matrices that stay in their file.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

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
    file: Arc<dyn AsRef<[u8]> + Send + Sync>,
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
    pub(super) fn new(
        name: String,
        ty: TensorType,
        cols: usize,
        file: Arc<dyn AsRef<[u8]> + Send + Sync>,
        range: Range<usize>,
    ) -> Self {
        Self { name, ty, rows: range.len() / ty.row_bytes(cols), cols, file, range }
    }

    /// All rows' bytes, one after the other without padding.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &(*self.file).as_ref()[self.range.clone()]
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols)
    }

    /// Bytes of row `r`.
    #[must_use]
    pub fn row(&self, r: usize) -> &[u8] {
        let n = self.row_bytes();
        &self.bytes()[r * n..(r + 1) * n]
    }
}
