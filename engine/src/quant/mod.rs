//! Block formats: how a tensor's bytes become numbers, and the two formats that the key-value pool is written in.
//!
//! Every value is formed by separate roundings of product and sum, never by a fused multiply-add, so that all machines
//! get the same bits.

mod float;
mod iq4;
mod k;
mod legacy;
mod quantize;

pub use quantize::{quantize_q4_0, quantize_q8_0};

use half::f16;
use multiversion::multiversion;

/// The types of tensor that the engine computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[allow(non_camel_case_types, missing_docs, reason = "these are the formats' own names")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

impl TensorType {
    /// All types.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    /// Name, id in GGUF files, elements and bytes of a block.
    const fn facts(self) -> (&'static str, u32, usize, usize) {
        match self {
            Self::F32 => ("F32", 0, 1, 4),
            Self::F16 => ("F16", 1, 1, 2),
            Self::BF16 => ("BF16", 30, 1, 2),
            Self::Q4_0 => ("Q4_0", 2, 32, 18),
            Self::Q4_1 => ("Q4_1", 3, 32, 20),
            Self::Q5_0 => ("Q5_0", 6, 32, 22),
            Self::Q5_1 => ("Q5_1", 7, 32, 24),
            Self::Q8_0 => ("Q8_0", 8, 32, 34),
            Self::Q2_K => ("Q2_K", 10, 256, 84),
            Self::Q3_K => ("Q3_K", 11, 256, 110),
            Self::Q4_K => ("Q4_K", 12, 256, 144),
            Self::Q5_K => ("Q5_K", 13, 256, 176),
            Self::Q6_K => ("Q6_K", 14, 256, 210),
            Self::IQ4_NL => ("IQ4_NL", 20, 32, 18),
            Self::IQ4_XS => ("IQ4_XS", 23, 256, 136),
        }
    }

    /// The format's usual name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// Number of the type in GGUF files.
    #[must_use]
    pub const fn ggml_id(self) -> u32 {
        self.facts().1
    }

    /// The type with this number in GGUF files, if the engine computes with it.
    #[must_use]
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.ggml_id() == id)
    }

    /// Elements in a block; rows are whole blocks.
    #[must_use]
    pub const fn block_elements(self) -> usize {
        self.facts().2
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// Bytes of a row of `elements`, which must be whole blocks.
    #[must_use]
    pub const fn row_bytes(self, elements: usize) -> usize {
        elements / self.block_elements() * self.block_bytes()
    }

    /// Plain numbers without blocks.
    #[must_use]
    pub const fn is_float(self) -> bool {
        self.block_elements() == 1
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Decodes `bytes`, whole blocks of type `ty`, into `out`, one f32 for each element.
///
/// # Panics
/// If `out` is not whole blocks or `bytes` is not its size in type `ty`.
pub fn dequantize_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert!(
        out.len().is_multiple_of(ty.block_elements()) && bytes.len() == ty.row_bytes(out.len()),
        "{} bytes of {ty} are not {} elements",
        bytes.len(),
        out.len()
    );
    match ty {
        TensorType::F32 => float::decode_f32(bytes, out),
        TensorType::F16 => float::decode_f16(bytes, out),
        TensorType::BF16 => float::decode_bf16(bytes, out),
        TensorType::Q4_0 => decode::<32, legacy::Q4_0>(bytes, out),
        TensorType::Q4_1 => decode::<32, legacy::Q4_1>(bytes, out),
        TensorType::Q5_0 => decode::<32, legacy::Q5_0>(bytes, out),
        TensorType::Q5_1 => decode::<32, legacy::Q5_1>(bytes, out),
        TensorType::Q8_0 => decode::<32, legacy::Q8_0>(bytes, out),
        TensorType::Q2_K => decode::<256, k::Q2_K>(bytes, out),
        TensorType::Q3_K => decode::<256, k::Q3_K>(bytes, out),
        TensorType::Q4_K => decode::<256, k::Q4_K>(bytes, out),
        TensorType::Q5_K => decode::<256, k::Q5_K>(bytes, out),
        TensorType::Q6_K => decode::<256, k::Q6_K>(bytes, out),
        TensorType::IQ4_NL => decode::<32, iq4::IQ4_NL>(bytes, out),
        TensorType::IQ4_XS => decode::<256, iq4::IQ4_XS>(bytes, out),
    }
}

/// A block of `N` elements, as it lies in a file.
trait Block<const N: usize>: bytemuck::AnyBitPattern {
    /// Decodes the block. Must be `#[inline(always)]`, so that it is compiled for each target of [`decode`].
    fn decode(&self, out: &mut [f32; N]);
}

#[multiversion(targets("x86_64+avx2+f16c"))]
fn decode<const N: usize, B: Block<N>>(bytes: &[u8], out: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    for (block, out) in blocks.iter().zip(out.as_chunks_mut().0) {
        block.decode(out);
    }
}

/// A half-precision number at any address, little-endian.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(transparent)]
struct Half([u8; 2]);

impl Half {
    #[inline(always)]
    fn get(self) -> f32 {
        f16::from_le_bytes(self.0).to_f32()
    }
}

#[cfg(test)]
mod tests;
