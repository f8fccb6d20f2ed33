//! Sizes of the model whose ops are measured.

/// Widths and counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) vocab: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) delta_layers: usize,
    pub(crate) longest: usize,
}

/// The 27B.
pub(crate) const REAL: Shapes = Shapes {
    hidden: 5120,
    ffn: 17_408,
    vocab: 248_320,
    heads: 24,
    kv_heads: 4,
    key_heads: 16,
    value_heads: 48,
    delta_layers: 48,
    longest: 262_144,
};

/// One of the same kind that the device code on the CPU can run.
pub(crate) const TINY: Shapes = Shapes {
    hidden: 256,
    ffn: 512,
    vocab: 1024,
    heads: 2,
    kv_heads: 1,
    key_heads: 1,
    value_heads: 2,
    delta_layers: 2,
    longest: 1024,
};

impl Shapes {
    pub(crate) fn inner(&self) -> usize {
        self.value_heads * 128
    }

    pub(crate) fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * 128
    }

    /// Contexts from 1,024 tokens to the longest, doubling.
    pub(crate) fn contexts(&self) -> Vec<usize> {
        std::iter::successors(Some(1024), |n| Some(n * 2)).take_while(|&n| n <= self.longest).collect()
    }
}
