//! The device code on the CPU: see `cuda/host/shim.h`.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use super::{Api, DeviceError};

const HEADER: usize = 256;

pub(super) struct Host {
    pub(super) blocks: u32,
    pub(super) shared_bytes: usize,
}

unsafe extern "C" {
    fn openjet_host_run(ops: u64, count: u32, table: u64, counter: u64, smem_bytes: i32, blocks: u32);
}

/// The layout of an allocation: a header that keeps its length, then the bytes.
fn layout(bytes: usize) -> Result<Layout, DeviceError> {
    let error = |_| DeviceError { call: "allocate".into(), reason: format!("{bytes} bytes are too many") };
    Layout::from_size_align(bytes + HEADER, HEADER).map_err(error)
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
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout(bytes)?) };
        if start.is_null() {
            return Err(DeviceError { call: "allocate".into(), reason: format!("no room for {bytes} bytes") });
        }
        // SAFETY: the allocation begins with HEADER bytes, aligned for a usize.
        unsafe { start.cast::<usize>().write(bytes) };
        Ok(start as u64 + HEADER as u64)
    }

    fn free(&self, address: u64) {
        let start = (address - HEADER as u64) as *mut u8;
        // SAFETY: `address` came from `allocate`, so its header holds the length, and it is freed once.
        unsafe {
            let bytes = start.cast::<usize>().read();
            if let Ok(layout) = layout(bytes) {
                dealloc(start, layout);
            }
        }
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
        Ok(usize::MAX)
    }
}
