//! Sizes of the models that can be written.

/// Widths and counts, as in a model file's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) blocks: usize,
    pub(super) hidden: usize,
    pub(super) ffn: usize,
    pub(super) vocab: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
}

/// Width of an attention head.
pub(super) const HEAD_DIM: usize = 256;
/// Width of a `DeltaNet` head.
pub(super) const STATE_DIM: usize = 128;
/// Every fourth block is attention.
pub(super) const INTERVAL: usize = 4;

/// The 27B: 17.8 GB.
pub(super) const REAL_27B: Shape = Shape {
    name: "synthetic-27b",
    blocks: 64,
    hidden: 5120,
    ffn: 17408,
    vocab: 248_320,
    heads: 24,
    kv_heads: 4,
    key_heads: 16,
    value_heads: 48,
};

/// One of the same kind for tests, 15 MB.
pub(super) const TINY: Shape = Shape {
    name: "synthetic-tiny",
    blocks: 4,
    hidden: 512,
    ffn: 1024,
    vocab: 4096,
    heads: 4,
    kv_heads: 2,
    key_heads: 2,
    value_heads: 6,
};

impl Shape {
    pub(super) fn is_attention(&self, block: usize) -> bool {
        block == self.blocks || (block + 1).is_multiple_of(INTERVAL)
    }

    pub(super) fn inner(&self) -> usize {
        self.value_heads * STATE_DIM
    }

    pub(super) fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * STATE_DIM
    }

    /// Whether a block's more sensitive matrices have 6 bits: the usual rule for files of mixed types.
    pub(super) fn six_bits(&self, block: usize) -> bool {
        let n = self.blocks + 1;
        block < n / 8 || block >= 7 * n / 8 || (block - n / 8) % 3 == 2
    }
}
