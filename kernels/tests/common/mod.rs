//! What the tests of device code share: the device, random weights of every type, exact references.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    dead_code,
    unreachable_pub,
    missing_docs
)]

pub mod engine;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use openjet_engine::gguf::GgufFile;
use openjet_engine::model::Model;
use openjet_engine::quant::{TensorType, dequantize_row};
use openjet_kernels::device::{Buffer, Device, Selector};
use openjet_kernels::program::DeviceMatrix;
use openjet_kernels::repack::{WeightType, repack, repack_pair, repacked_bytes, repacked_pair_bytes};

/// Files stand in the repository, or in $OPENJET_FIXTURES when the test binary was carried to another machine.
pub fn fixture(path: &str) -> PathBuf {
    let root = std::env::var_os("OPENJET_FIXTURES")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from);
    root.join(path)
}

pub fn model(name: &str) -> Arc<Model> {
    let folder = if name == "openjet-tiny-Q4_K_M" { "assets" } else { "engine/tests/fixtures/models" };
    let path = fixture(&format!("{folder}/{name}.gguf"));
    Arc::new(Model::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap())
}

/// The GPU where there is one, else the device code on the CPU.
pub fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE
        .get_or_init(|| match Device::cuda(&Selector::First) {
            Ok(device) => {
                println!("running on {}", device.describe());
                device
            }
            Err(problem) => {
                println!("no GPU ({problem}): running the device code on the CPU");
                host(3, 100 << 10)
            }
        })
        .clone()
}

#[cfg(target_arch = "x86_64")]
pub fn host(blocks: u32, shared: usize) -> Device {
    Device::host(blocks, shared)
}

pub fn on_gpu() -> bool {
    device().shared_bytes() > 0 && !device().describe().starts_with("the CPU")
}

/// A small generator of test numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
    /// Uniform in -1 .. 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn vector(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

fn each<const N: usize>(bytes: &mut [u8], f: impl FnMut(&mut [u8; N])) {
    bytes.as_chunks_mut::<N>().0.iter_mut().for_each(f);
}

/// Bytes of a matrix of `rows` x `columns` with random integers and sensible scales.
pub fn random_weights(ty: TensorType, rows: usize, columns: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..rows * ty.row_bytes(columns)).map(|_| random.next() as u8).collect();
    let small = |random: &mut Random, scale: f32| f16::from_f32((0.5 + random.unit().abs()) * scale).to_le_bytes();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let halves: &[(usize, f32)] = match ty {
            TensorType::Q4_0 | TensorType::Q5_0 => &[(0, 0.05)],
            TensorType::Q4_1 | TensorType::Q5_1 => &[(0, 0.05), (2, 0.4)],
            TensorType::Q8_0 | TensorType::IQ4_NL => &[(0, 0.005)],
            TensorType::Q2_K => &[(80, 0.02), (82, 0.02)],
            TensorType::Q3_K => &[(108, 0.005)],
            TensorType::Q4_K | TensorType::Q5_K => &[(0, 0.001), (2, 0.005)],
            TensorType::Q6_K => &[(208, 0.0005)],
            TensorType::IQ4_XS => &[(0, 0.0005)],
            TensorType::F16 | TensorType::BF16 | TensorType::F32 => &[],
        };
        for &(at, scale) in halves {
            block[at..at + 2].copy_from_slice(&small(random, scale));
        }
    }
    match ty {
        TensorType::F16 => each(&mut bytes, |b: &mut [u8; 2]| *b = f16::from_f32(random.unit()).to_le_bytes()),
        TensorType::BF16 => each(&mut bytes, |b: &mut [u8; 2]| *b = bf16::from_f32(random.unit()).to_le_bytes()),
        TensorType::F32 => each(&mut bytes, |b: &mut [u8; 4]| *b = random.unit().to_le_bytes()),
        _ => {}
    }
    bytes
}

/// The matrix in f32, row by row.
pub fn decoded(ty: TensorType, bytes: &[u8], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows * columns];
    for (row, out) in bytes.chunks_exact(ty.row_bytes(columns)).zip(out.chunks_exact_mut(columns)) {
        dequantize_row(ty, row, out);
    }
    out
}

/// Repacks and uploads.
pub fn upload(device: &Device, ty: TensorType, bytes: &[u8], rows: usize, columns: usize) -> (Buffer, DeviceMatrix) {
    let mut out = vec![0xa5; repacked_bytes(ty, rows, columns)];
    repack(ty, bytes, columns, 0..rows.div_ceil(16), &mut out);
    let buffer = device.upload(&out).unwrap();
    let matrix = DeviceMatrix { address: buffer.address(), ty: WeightType::of(ty), rows, columns, paired: false };
    (buffer, matrix)
}

/// Repacks and uploads two matrices as a pair.
pub fn upload_pair(
    device: &Device,
    ty: TensorType,
    both: [&[u8]; 2],
    rows: usize,
    columns: usize,
) -> (Buffer, DeviceMatrix) {
    let mut out = vec![0xa5; repacked_pair_bytes(ty, rows, columns)];
    repack_pair(ty, both, columns, 0..rows.div_ceil(8), &mut out);
    let buffer = device.upload(&out).unwrap();
    let matrix = DeviceMatrix { address: buffer.address(), ty: WeightType::of(ty), rows, columns, paired: true };
    (buffer, matrix)
}

pub fn upload_f32(device: &Device, numbers: &[f32]) -> Buffer {
    device.upload(bytemuck::cast_slice(numbers)).unwrap()
}

pub fn upload_u32(device: &Device, numbers: &[u32]) -> Buffer {
    device.upload(bytemuck::cast_slice(numbers)).unwrap()
}

pub fn download_f32(buffer: &Buffer) -> Vec<f32> {
    let mut out = vec![0.0f32; buffer.len() / 4];
    buffer.read(0, bytemuck::cast_slice_mut(&mut out)).unwrap();
    out
}

/// A table whose header says nothing but `rows` and a draft depth.
pub fn plain_table(device: &Device, rows: u32, draft_depth: u32) -> Buffer {
    upload_u32(device, &[rows, 0, 8, 8, 8, draft_depth, 0, 0])
}

/// What a matmul's input keeps of a row: halves over a power of two for each 256 columns.
pub fn rounded_to_halves(row: &[f32]) -> Vec<f32> {
    row.chunks(256)
        .flat_map(|part| {
            let largest = part.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            let exponent = if largest == 0.0 { 8 } else { ((largest.to_bits() >> 23) as i32 - 127).clamp(-52, 68) };
            let scale = f32::from_bits(((exponent - 8 + 127) as u32) << 23);
            part.iter().map(|v| f16::from_f32(v / scale).to_f32() * scale).collect::<Vec<_>>()
        })
        .collect()
}

/// `|a - b| / |b|` over all numbers; infinite where a number is not finite.
pub fn relative_error(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    if a.iter().any(|v| !v.is_finite()) {
        return f64::INFINITY;
    }
    let (mut difference, mut norm) = (0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        difference += (f64::from(a) - b).powi(2);
        norm += b * b;
    }
    (difference / norm.max(1e-300)).sqrt()
}
