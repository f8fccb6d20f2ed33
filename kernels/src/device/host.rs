//! The device code on the CPU: see `cuda/host/shim.h`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Api, DeviceError, PinnedAddress};

const HEADER: usize = 256;

/// Memory that it pretends to have, and the pieces that it is given out in, as a GPU's.
const MEMORY: usize = 64 << 30;
const PIECE: usize = 2 << 20;

pub(super) struct Host {
    blocks: u32,
    shared_bytes: usize,
    used: AtomicUsize,
}

unsafe extern "C" {
    fn openjet_host_run(ops: u64, count: u32, table: u64, counter: u64, smem_bytes: i32, blocks: u32);
}

/// The layout of an allocation: a header that keeps its length, then the bytes.
fn layout(bytes: usize) -> Result<Layout, DeviceError> {
    let error = |_| DeviceError { call: "allocate".into(), reason: format!("{bytes} bytes are too many") };
    Layout::from_size_align(bytes + HEADER, HEADER).map_err(error)
}

fn allocate(bytes: usize) -> Result<u64, DeviceError> {
    // SAFETY: the layout has a size above zero.
    let start = unsafe { alloc_zeroed(layout(bytes)?) };
    if start.is_null() {
        return Err(DeviceError { call: "allocate".into(), reason: format!("no room for {bytes} bytes") });
    }
    // SAFETY: the allocation begins with HEADER bytes, aligned for a usize.
    unsafe { start.cast::<usize>().write(bytes) };
    Ok(start as u64 + HEADER as u64)
}

/// What an allocation takes: small ones share a piece.
fn taken(bytes: usize) -> usize {
    if bytes < PIECE / 2 { bytes } else { bytes.next_multiple_of(PIECE) }
}

/// Frees what `allocate` gave, and returns its length.
fn free(address: u64) -> usize {
    let start = (address - HEADER as u64) as *mut u8;
    // SAFETY: `address` came from `allocate`, so its header holds the length, and it is freed once.
    unsafe {
        let bytes = start.cast::<usize>().read();
        if let Ok(layout) = layout(bytes) {
            dealloc(start, layout);
        }
        bytes
    }
}

impl Host {
    pub(super) fn new(blocks: u32, shared_bytes: usize) -> Self {
        Self { blocks, shared_bytes, used: AtomicUsize::new(0) }
    }
}

impl Api for Host {
    fn describe(&self) -> String {
        format!("the CPU in place of a GPU, {} blocks", self.blocks)
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DeviceError> {
        let address = allocate(bytes)?;
        self.used.fetch_add(taken(bytes), Ordering::Relaxed);
        Ok(address)
    }

    fn free(&self, address: u64) {
        self.used.fetch_sub(taken(free(address)), Ordering::Relaxed);
    }

    fn fill_zero(&self, address: u64, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: `Buffer` checks that the range lies in one allocation.
        unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes) };
        Ok(())
    }

    fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: `Buffer` checks that the range lies in one allocation; `bytes` is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn run(&self, ops: u64, count: u32, table: u64, counter: u64) -> Result<(), DeviceError> {
        // SAFETY: the program was built from this device's own addresses; it is what the GPU would run.
        unsafe { openjet_host_run(ops, count, table, counter, self.shared_bytes as i32, self.blocks) };
        Ok(())
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn free_bytes(&self) -> Result<usize, DeviceError> {
        Ok(MEMORY.saturating_sub(self.used.load(Ordering::Relaxed)))
    }

    fn context_bytes(&self) -> Option<usize> {
        Some(0)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<PinnedAddress, DeviceError> {
        let device = allocate(bytes)?;
        Ok(PinnedAddress { host: device as *mut u8, device, bytes })
    }

    fn free_pinned(&self, address: PinnedAddress) {
        free(address.device);
    }

    fn program_queue(&self) -> u64 {
        0
    }

    fn create_queue(&self) -> Result<u64, DeviceError> {
        Ok(0)
    }

    fn destroy_queue(&self, _: u64) {}

    fn enqueue_upload(&self, _: u64, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.upload(address, bytes)
    }

    unsafe fn enqueue_download(&self, _: u64, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.download(address, bytes)
    }

    fn wait_for_queue(&self, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}
