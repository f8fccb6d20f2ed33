//! Sizes of the models that can be written.

/// Widths and counts, as in a model file's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) blocks: usize,
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) vocab: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    /// The embedding is the head too.
    pub(crate) tied: bool,
    /// The draft head has a head of its own.
    pub(crate) own_draft_head: bool,
}

/// Width of an attention head.
pub(crate) const HEAD_DIM: usize = 256;
/// Width of a `DeltaNet` head.
pub(crate) const STATE_DIM: usize = 128;
/// Every fourth block is attention.
pub(crate) const INTERVAL: usize = 4;

/// The 27B: 17.8 GB.
pub(crate) const REAL_27B: Shape = Shape {
    name: "synthetic-27b",
    blocks: 64,
    hidden: 5120,
    ffn: 17408,
    vocab: 248_320,
    heads: 24,
    kv_heads: 4,
    key_heads: 16,
    value_heads: 48,
    tied: false,
    own_draft_head: true,
};

/// One of the same kind for tests, 15 MB.
pub(crate) const TINY: Shape = Shape {
    name: "synthetic-tiny",
    blocks: 4,
    hidden: 512,
    ffn: 1024,
    vocab: 4096,
    heads: 4,
    kv_heads: 2,
    key_heads: 2,
    value_heads: 6,
    tied: false,
    own_draft_head: true,
};

/// The dense sizes of the family, the largest first.
pub(crate) const FAMILY: [Shape; 5] = [
    Shape { name: "27B", own_draft_head: false, ..REAL_27B },
    Shape { name: "9B", blocks: 32, hidden: 4096, ffn: 12_288, heads: 16, value_heads: 32, ..SMALLER },
    Shape { name: "4B", blocks: 32, hidden: 2560, ffn: 9216, heads: 16, value_heads: 32, tied: true, ..SMALLER },
    Shape { name: "2B", blocks: 24, hidden: 2048, ffn: 6144, heads: 8, kv_heads: 2, tied: true, ..SMALLER },
    Shape { name: "0.8B", blocks: 24, hidden: 1024, ffn: 3584, heads: 8, kv_heads: 2, tied: true, ..SMALLER },
];

/// What the smaller sizes have in common.
const SMALLER: Shape = Shape {
    name: "",
    blocks: 0,
    hidden: 0,
    ffn: 0,
    vocab: 248_320,
    heads: 0,
    kv_heads: 4,
    key_heads: 16,
    value_heads: 16,
    tied: false,
    own_draft_head: false,
};

impl Shape {
    pub(crate) fn is_attention(&self, block: usize) -> bool {
        block == self.blocks || (block + 1).is_multiple_of(INTERVAL)
    }

    pub(crate) fn inner(&self) -> usize {
        self.value_heads * STATE_DIM
    }

    pub(crate) fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * STATE_DIM
    }

    /// Whether a block's more sensitive matrices have 6 bits: the usual rule for files of mixed types.
    pub(crate) fn six_bits(&self, block: usize) -> bool {
        let n = self.blocks + 1;
        block < n / 8 || block >= 7 * n / 8 || (block - n / 8) % 3 == 2
    }
}
