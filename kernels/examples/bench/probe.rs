//! What the card itself reaches: the rate at which it reads memory, and its tensor units.

use std::ffi::{CString, c_void};
use std::time::Instant;

use anyhow::{Context, Result};
use cudarc::driver::result::{self, stream::StreamKind};
use cudarc::driver::sys;
use openjet_bench::Spread;
use openjet_kernels::device::DeviceInfo;
use serde::Serialize;

use crate::ptx;

/// A card's limits.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Limits {
    /// Reading memory with 16-byte loads, GB/s.
    pub(crate) read_gb_s: f64,
    /// f16 products with f32 sums through `mma.sync`, TFLOP/s.
    pub(crate) mma_tflops: f64,
    /// The same through `wgmma`, where there is such.
    pub(crate) wgmma_tflops: Option<f64>,
}

impl Limits {
    /// The better of the tensor units' two.
    pub(crate) fn tflops(&self) -> f64 {
        self.wgmma_tflops.unwrap_or_default().max(self.mma_tflops)
    }
}

/// Bytes that are read again and again, far more than any cache; less where memory is short.
const READ_BYTES: usize = 16 << 30;
const THREADS: u32 = 512;
const RUNS: usize = 5;

struct Probe {
    stream: sys::CUstream,
    blocks: u32,
}

/// Measures a card that is open already.
pub(crate) fn measure(info: &DeviceInfo, sms: u32) -> Result<Limits> {
    let device = result::device::get(info.index as i32)?;
    // SAFETY: the device was just given by the driver. The context is the primary one, which is open and stays so.
    let context = unsafe { result::primary_ctx::retain(device)? };
    // SAFETY: the context was just retained.
    unsafe { result::ctx::set_current(context)? };
    let probe = Probe { stream: result::stream::create(StreamKind::NonBlocking)?, blocks: 2 * sms };
    let limits = Limits {
        read_gb_s: probe.read()?,
        mma_tflops: probe.multiply(&ptx::mma(), THREADS, THREADS / 32, ptx::MMA_FLOPS)?,
        wgmma_tflops: if info.capability == (9, 0) {
            // Two groups of four warps a block: a block's sums alone take 32 K registers.
            Some(probe.multiply(&ptx::wgmma(), 256, 2, ptx::WGMMA_FLOPS)?)
        } else {
            None
        },
    };
    // SAFETY: the stream and the context were made above and are released once.
    unsafe {
        result::stream::destroy(probe.stream)?;
        result::primary_ctx::release(device)?;
    }
    Ok(limits)
}

impl Probe {
    fn kernel(text: &str, name: &str) -> Result<sys::CUfunction> {
        let image = CString::new(text)?;
        // SAFETY: PTX, which ends with a zero byte. The module stays loaded until the program ends.
        let module = unsafe { result::module::load_data(image.as_ptr().cast::<c_void>()) };
        let module = module.context("the driver does not compile a probe's PTX")?;
        // SAFETY: the module was just loaded.
        Ok(unsafe { result::module::get_function(module, CString::new(name)?)? })
    }

    /// Seconds of one launch.
    fn time(&self, kernel: sys::CUfunction, threads: u32, arguments: &mut [*mut c_void]) -> Result<Spread> {
        let once = |arguments: &mut [*mut c_void]| -> Result<f64> {
            let started = Instant::now();
            // SAFETY: the arguments are the kernel's, in its order, and outlive the call; it is waited for.
            unsafe {
                result::launch_kernel(kernel, (self.blocks, 1, 1), (threads, 1, 1), 0, self.stream, arguments)?;
                result::stream::synchronize(self.stream)?;
            }
            Ok(started.elapsed().as_secs_f64())
        };
        once(arguments)?;
        let times = (0..RUNS).map(|_| once(arguments)).collect::<Result<Vec<_>>>()?;
        Ok(Spread::of(&times))
    }

    fn read(&self) -> Result<f64> {
        let kernel = Self::kernel(ptx::READ, "read")?;
        let free = result::mem_get_info()?.0;
        let round = self.blocks as usize * THREADS as usize * 64;
        let mut rounds = (READ_BYTES.min(free / 2) / round) as u32;
        let bytes = rounds as usize * round;
        // SAFETY: the memory is written before it is read, and freed once.
        unsafe {
            let mut memory = result::malloc_sync(bytes)?;
            result::memset_d8_sync(memory, 0x5a, bytes)?;
            let mut arguments = [
                (&raw mut memory).cast::<c_void>(),
                (&raw mut rounds).cast::<c_void>(),
                (&raw mut memory).cast::<c_void>(),
            ];
            let time = self.time(kernel, THREADS, &mut arguments);
            result::free_sync(memory)?;
            Ok(bytes as f64 / time?.median / 1e9)
        }
    }

    /// TFLOP/s of blocks in which `workers` (warps or groups of four) multiply.
    fn multiply(&self, text: &str, threads: u32, workers: u32, flops: f64) -> Result<f64> {
        let kernel = Self::kernel(text, "multiply")?;
        // SAFETY: one number that nobody reads, freed once.
        let mut out = unsafe { result::malloc_sync(4)? };
        let mut rounds: u32 = 1000;
        let mut time = |rounds: &mut u32| {
            let mut arguments = [(&raw mut *rounds).cast::<c_void>(), (&raw mut out).cast::<c_void>()];
            self.time(kernel, threads, &mut arguments)
        };
        // Long enough that the launch does not count, and that the clock settles.
        let short = time(&mut rounds)?.median;
        rounds = ((0.1 / short * f64::from(rounds)) as u32).clamp(1000, 10_000_000);
        let seconds = time(&mut rounds)?.median;
        // SAFETY: as above.
        unsafe { result::free_sync(out)? };
        let products = f64::from(self.blocks * workers) * f64::from(rounds) * ptx::PRODUCTS as f64;
        Ok(products * flops / seconds / 1e12)
    }
}
