//! Where the ops run in these tests, and random inputs.

use bytemuck::Pod;
use openjet_kernels::device::{Buffer, Device, Selector};
use openjet_kernels::program::ProgramBuilder;

/// The device code on the CPU, or on a GPU. Keeps what it allocates.
pub(crate) struct Machine {
    gpu: Option<Device>,
    memory: Vec<Buffer>,
}

/// Index of an allocation.
#[derive(Clone, Copy)]
pub(crate) struct Memory(usize);

/// Shared memory of a block on the CPU: as small cards have it where the number of blocks is odd, else as large ones do. What an op
/// does at once depends on it, no bit of the result.
fn shared_bytes(blocks: u32) -> usize {
    if blocks % 2 == 1 { 99 << 10 } else { 227 << 10 }
}

impl Machine {
    /// The CPU, and the GPU where there is one.
    pub(crate) fn all() -> Vec<Self> {
        let mut machines = Vec::new();
        match Device::cuda(&Selector::First) {
            Ok(device) => machines.push(Self { gpu: Some(device), memory: Vec::new() }),
            Err(problem) => println!("skipped on the GPU: {problem}"),
        }
        // Where there is a GPU, the CPU would only take long.
        if machines.is_empty() {
            machines.push(Self { gpu: None, memory: Vec::new() });
        }
        machines
    }

    pub(crate) fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    fn device(&self, blocks: u32) -> Device {
        self.gpu.clone().unwrap_or_else(|| Device::host(blocks, shared_bytes(blocks)))
    }

    /// Memory of so many bytes, each 0xff: NaN to whoever reads it as floats.
    pub(crate) fn alloc(&mut self, bytes: usize) -> Memory {
        let bytes = bytes.max(4);
        self.memory.push(self.device(1).upload(&vec![0xff; bytes]).unwrap());
        Memory(self.memory.len() - 1)
    }

    pub(crate) fn floats(&mut self, n: usize) -> Memory {
        self.alloc(4 * n)
    }

    pub(crate) fn upload<T: Pod>(&mut self, data: &[T]) -> Memory {
        let memory = self.alloc(size_of_val(data));
        self.write(memory, data);
        memory
    }

    pub(crate) fn address(&self, memory: Memory) -> u64 {
        self.memory[memory.0].address()
    }

    pub(crate) fn write<T: Pod>(&mut self, to: Memory, data: &[T]) {
        self.memory[to.0].write(0, bytemuck::cast_slice(data)).unwrap();
    }

    pub(crate) fn read<T: Pod>(&mut self, from: Memory, n: usize) -> Vec<T> {
        let mut out = vec![T::zeroed(); n];
        self.memory[from.0].read(0, bytemuck::cast_slice_mut(&mut out)).unwrap();
        out
    }

    /// Runs a program; on the CPU with `blocks` blocks.
    pub(crate) fn run(&mut self, table: Memory, blocks: u32, write: impl FnOnce(&mut ProgramBuilder)) {
        let mut program = ProgramBuilder::default();
        write(&mut program);
        program.finish(&self.device(blocks)).unwrap().run(&self.memory[table.0]).unwrap();
    }
}

/// Splitmix64: inputs differ from call to call, and are the same from run to run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Roughly normal, mean 0 and variance 1.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum: f64 = (0..6).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum();
        ((sum - 3.0) * 2f64.sqrt()) as f32
    }

    pub(crate) fn normals(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| scale * self.normal()).collect()
    }
}

/// `|a - b| / |b|` over all numbers; infinite where one is not finite.
pub(crate) fn relative_error(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (mut difference, mut norm) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        if !a.is_finite() {
            return f64::INFINITY;
        }
        difference += (f64::from(*a) - b).powi(2);
        norm += b * b;
    }
    (difference / norm).sqrt()
}
