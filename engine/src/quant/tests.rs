#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use safetensors::SafeTensors;

const GOLDEN: &[u8] = include_bytes!("../../tests/fixtures/golden/blocks.safetensors");

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn decode_row(ty: TensorType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.block_bytes() * ty.block_elements()];
    dequantize_row(ty, bytes, &mut out);
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn block_formats_match_golden_bit_for_bit() {
    let golden = SafeTensors::deserialize(GOLDEN).unwrap();
    for ty in TensorType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        let bytes = golden.tensor(&format!("{ty}.bytes")).unwrap();
        let values = floats(golden.tensor(&format!("{ty}.values")).unwrap().data());
        assert_eq!(bytes.shape()[1], ty.block_bytes(), "{ty}");
        assert_eq!(bits(&decode_row(ty, bytes.data())), bits(&values), "{ty}");
        // The same at an odd address: blocks of a mapped file need not be aligned for their scales.
        let mut shifted = vec![0];
        shifted.extend_from_slice(bytes.data());
        assert_eq!(bits(&decode_row(ty, &shifted[1..])), bits(&values), "{ty} unaligned");
    }
}

#[test]
fn float_rows_match_arithmetic() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (h, v) in (0..=u16::MAX).zip(decode_row(TensorType::F16, &halves)) {
        let (sign, exponent, fraction) = (h >> 15, i32::from(h >> 10 & 31), f32::from(h & 1023));
        let magnitude = match exponent {
            0 => fraction * 2f32.powi(-24),
            31 if fraction == 0.0 => f32::INFINITY,
            31 => f32::NAN,
            e => (1.0 + fraction / 1024.0) * 2f32.powi(e - 15),
        };
        let expected = if sign == 1 { -magnitude } else { magnitude };
        assert!(v == expected || v.is_nan() && expected.is_nan(), "{h:#06x}: {v} for {expected}");
    }
    for (h, v) in (0..=u16::MAX).zip(decode_row(TensorType::BF16, &halves)) {
        let expected = f32::from_bits(u32::from(h) << 16);
        assert!(v.to_bits() == expected.to_bits() || v.is_nan() && expected.is_nan(), "{h:#06x}");
    }
    let values = [0.0, -0.0, 1.5, -3.25e-39, f32::MAX, f32::NEG_INFINITY];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(bits(&decode_row(TensorType::F32, &bytes)), bits(&values));
}

#[test]
fn ids_and_sizes_agree_with_blocks() {
    for ty in TensorType::ALL {
        assert_eq!(TensorType::from_ggml_id(ty.ggml_id()), Some(ty));
        assert_eq!(ty.row_bytes(512), 512 / ty.block_elements() * ty.block_bytes());
    }
    assert_eq!(TensorType::from_ggml_id(16), None);
    assert_eq!(size_of::<k::Q4_K>(), TensorType::Q4_K.block_bytes());
}

#[test]
#[should_panic(expected = "143 bytes of Q4_K are not 256 elements")]
fn a_short_row_is_refused() {
    dequantize_row(TensorType::Q4_K, &[0; 143], &mut [0.0; 256]);
}

/// Values for the quantisers: a plain sequence with both signs and no symmetry.
fn sample(seed: u32) -> [f32; 32] {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    std::array::from_fn(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 4_194_304.0 - 1.7
    })
}

#[test]
fn quantised_blocks_come_back_within_half_a_step() {
    for seed in 0..200 {
        let x = sample(seed);
        let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        for (ty, block, step) in [
            (TensorType::Q8_0, quantize_q8_0(&x).to_vec(), largest / 127.0),
            (TensorType::Q4_0, quantize_q4_0(&x).to_vec(), largest / 8.0),
        ] {
            for (x, y) in x.iter().zip(decode_row(ty, &block)) {
                // Half a step, the scale's f16 rounding (2^-11 of the value), and at q4_0 the missing 16th level.
                let clipped = if ty == TensorType::Q4_0 { step / 2.0 } else { 0.0 };
                assert!((x - y).abs() <= step / 2.0 + clipped + largest / 2000.0, "{ty}: {x} became {y}");
            }
        }
    }
}

#[test]
fn quantisers_follow_the_definition() {
    // d = 1 in both, so that the codes can be read off.
    let mut x = [0.0; 32];
    x[..6].copy_from_slice(&[127.0, -127.0, 0.5, -0.5, 2.49, -2.5]);
    let block = quantize_q8_0(&x);
    assert_eq!(block[..2], f16::from_f32(1.0).to_le_bytes());
    assert_eq!(block[2..9].iter().map(|q| q.cast_signed()).collect::<Vec<_>>(), [127, -127, 1, -1, 2, -3, 0]);

    let mut x = [0.0; 32];
    x[..5].copy_from_slice(&[-8.0, 8.0, 7.4, -0.5, -0.51]);
    x[16] = 3.0;
    let block = quantize_q4_0(&x);
    assert_eq!(block[..2], f16::from_f32(1.0).to_le_bytes());
    assert_eq!(block[2..8], [0xb0, 0x8f, 0x8f, 0x88, 0x87, 0x88]);

    assert_eq!(quantize_q8_0(&[0.0; 32]), [0; 34]);
    assert!(decode_row(TensorType::Q4_0, &quantize_q4_0(&[0.0; 32])).iter().all(|&v| v == 0.0));
}
