//! Random numbers and the bits of quantised rows.

use half::f16;
use openjet_engine::quant::TensorType;

/// Elements of a block of the K types.
const SUPER_BLOCK: usize = 256;

/// Splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014), a stream for each row of
/// each tensor, so that rows can be made in any order.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64, tensor: u64, row: u64) -> Self {
        let mut random = Self(seed ^ tensor.wrapping_mul(0xA24B_AED4_963E_E407));
        let tensor = random.next();
        Self(tensor ^ row.wrapping_mul(0x9FB2_1C65_1E98_DF25))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// In [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box and Muller).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A row of random bits whose numbers have the standard deviation `deviation`, give or take half of it.
pub(super) fn random_row(ty: TensorType, columns: usize, deviation: f32, random: &mut Random, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + ty.row_bytes(columns), 0);
    random.fill(&mut out[start..]);
    // Found by experiment: the spread of a block's numbers for a scale of 1, and the offset that centres them.
    let (spread, centre, scale_at) = match ty {
        TensorType::Q4_K => (180.0, Some(7.5), 0),
        TensorType::Q5_K => (360.0, Some(15.5), 0),
        _ => (1350.0, None, 208),
    };
    let scale = deviation / spread;
    for block in out[start..].chunks_exact_mut(ty.block_bytes()) {
        block[scale_at..scale_at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        if let Some(centre) = centre {
            block[2..4].copy_from_slice(&f16::from_f32(scale * centre).to_le_bytes());
        }
    }
}

/// Codes numbers as `Q6_K`: 16 sub-blocks of 16, each scaled so that its largest number fits.
pub(super) fn quantize_q6_k(row: &[f32], out: &mut Vec<u8>) {
    let (blocks, _) = row.as_chunks::<SUPER_BLOCK>();
    for block in blocks {
        let wanted: [f32; 16] =
            std::array::from_fn(|i| block[16 * i..16 * i + 16].iter().fold(0f32, |m, x| m.max(x.abs())) / 31.0);
        let d = f16::from_f32((wanted.iter().copied().fold(0f32, f32::max) / 127.0).max(1e-7));
        let scales = wanted.map(|s| (s / d.to_f32()).round().clamp(1.0, 127.0));
        let q = |i: usize| {
            let q = (block[i] / (d.to_f32() * scales[i / 16])).round().clamp(-32.0, 31.0);
            (q as i8 + 32).cast_unsigned()
        };
        // Halves of 128 elements: 64 bytes of low nibbles for elements l, l + 64 and l + 32, l + 96, then 32 of high pairs.
        for half in 0..2 {
            for l in 0..64 {
                out.push(q(128 * half + l) & 15 | (q(128 * half + l + 64) & 15) << 4);
            }
        }
        for half in 0..2 {
            for l in 0..32 {
                out.push((0..4).map(|g| (q(128 * half + 32 * g + l) >> 4) << (2 * g)).sum());
            }
        }
        out.extend(scales.map(|s| (s as i8).cast_unsigned()));
        out.extend(d.to_le_bytes());
    }
}

/// A row of a `Q4_K` matrix that is 1 in one column and 0 elsewhere.
pub(super) fn unit_row_q4_k(columns: usize, one: usize, out: &mut Vec<u8>) {
    for block in 0..columns / SUPER_BLOCK {
        let mut bytes = [0u8; 144];
        // Scales of all sub-blocks are 63, offsets 0; the largest nibble is 15.
        bytes[..2].copy_from_slice(&f16::from_f32(1.0 / (15.0 * 63.0)).to_le_bytes());
        bytes[4..8].fill(0xff);
        bytes[12..16].fill(0x0f);
        if one / SUPER_BLOCK == block {
            let c = one % SUPER_BLOCK;
            bytes[16 + c / 64 * 32 + c % 32] = if c % 64 < 32 { 0x0f } else { 0xf0 };
        }
        out.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use openjet_engine::quant::dequantize_row;

    use super::*;

    #[test]
    fn coded_rows_come_back() {
        let mut random = Random::new(1, 2, 3);
        let row: Vec<f32> = (0..512).map(|_| random.normal() as f32).collect();
        let mut bytes = Vec::new();
        quantize_q6_k(&row, &mut bytes);
        let mut back = vec![0f32; 512];
        dequantize_row(TensorType::Q6_K, &bytes, &mut back);
        let error: f32 = row.iter().zip(&back).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / 512.0;
        assert!(error.sqrt() < 0.03, "{error}");

        let mut bytes = Vec::new();
        unit_row_q4_k(768, 600, &mut bytes);
        let mut back = vec![0f32; 768];
        dequantize_row(TensorType::Q4_K, &bytes, &mut back);
        for (i, x) in back.iter().enumerate() {
            assert!((x - f32::from(u8::from(i == 600))).abs() < 1e-3, "{i}: {x}");
        }
    }

    #[test]
    fn random_rows_have_the_wanted_spread() {
        for ty in [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K] {
            let mut bytes = Vec::new();
            random_row(ty, 16_384, 0.5, &mut Random::new(4, 5, 6), &mut bytes);
            let mut row = vec![0f32; 16_384];
            dequantize_row(ty, &bytes, &mut row);
            let deviation = (row.iter().map(|x| x * x).sum::<f32>() / 16_384.0).sqrt();
            assert!((0.3..0.8).contains(&deviation), "{ty:?}: {deviation}");
        }
    }
}
