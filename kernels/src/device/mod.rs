//! The machine that runs the device code: a CUDA GPU, or in tests the CPU.

mod cuda;
#[cfg(has_host_device)]
mod faults;
mod gpus;
#[cfg(has_host_device)]
mod host;
mod pinned;
mod watch;

use std::sync::Arc;

#[cfg(has_host_device)]
pub use faults::Fault;
pub use gpus::{DeviceInfo, DeviceProblem, Selector, available, find, list};
pub(crate) use pinned::{Lane, Pinned};
pub use watch::{Card, card, driver_version};

/// Why the device can't go on: which call failed and the driver's words. Sticky.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct DeviceError {
    /// What was tried.
    pub call: String,
    /// Why it failed.
    pub reason: String,
}

/// Where a program runs and memory lies. Calls are done, or failed, on return, except copies on a queue.
pub(crate) trait Api: Send + Sync {
    fn describe(&self) -> String;
    /// Compute capability, of a GPU.
    fn capability(&self) -> Option<(i32, i32)> {
        None
    }
    /// What tells one version of the device code from another.
    fn code(&self) -> u64 {
        0
    }
    fn blocks(&self) -> u32;
    fn shared_bytes(&self) -> usize;
    fn allocate(&self, bytes: usize) -> Result<u64, DeviceError>;
    fn free(&self, address: u64);
    fn fill_zero(&self, address: u64, bytes: usize) -> Result<(), DeviceError>;
    fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;
    /// `counter` is a word that is zero between launches.
    fn run(&self, ops: u64, count: u32, table: u64, counter: u64) -> Result<(), DeviceError>;
    fn synchronize(&self) -> Result<(), DeviceError>;
    /// See [`Device::map_tiles`].
    fn map_tiles(&self, _: u64, _: usize) -> Result<Option<TileMap>, DeviceError> {
        Ok(None)
    }
    fn free_bytes(&self) -> Result<usize, DeviceError>;
    /// Bytes that opening the device took, where that is known.
    fn context_bytes(&self) -> Option<usize>;
    fn shows_display(&self) -> bool {
        false
    }
    /// Host memory that copies run from at full speed and that the device can read in place.
    fn allocate_pinned(&self, bytes: usize) -> Result<PinnedAddress, DeviceError>;
    fn free_pinned(&self, address: PinnedAddress);
    /// The queue that programs run in, one after the other.
    fn program_queue(&self) -> u64;
    /// A queue of copies that run beside everything else.
    fn create_queue(&self) -> Result<u64, DeviceError>;
    fn destroy_queue(&self, queue: u64);
    /// Begins to copy `bytes` of pinned memory; they must stay as they are until the queue was waited for.
    fn enqueue_upload(&self, queue: u64, address: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Begins to copy into pinned memory.
    ///
    /// # Safety
    /// `bytes` must not be used until the queue was waited for.
    unsafe fn enqueue_download(&self, queue: u64, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;
    fn wait_for_queue(&self, queue: u64) -> Result<(), DeviceError>;
    /// Whether the state of the step that begins is to be spoilt, for tests.
    #[cfg(has_host_device)]
    fn spoils_step(&self) -> bool {
        false
    }
}

/// What a GPU is told of tiles that it copies, in its own form: a `CUtensorMap`.
pub(crate) type TileMap = [u64; 16];

/// Where pinned memory lies, for the host and for the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedAddress {
    host: *mut u8,
    device: u64,
    bytes: usize,
}

/// A handle to a device; clones are the same device.
#[derive(Clone)]
pub struct Device(Arc<dyn Api>);

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.describe())
    }
}

impl Device {
    /// Opens a CUDA GPU and loads the device code.
    ///
    /// # Errors
    /// Why there is no such GPU or why it can't be used.
    pub fn cuda(selector: &Selector) -> Result<Self, DeviceProblem> {
        Ok(Self(Arc::new(cuda::Cuda::open(selector)?)))
    }

    /// Opens what `selector` names.
    ///
    /// # Errors
    /// Why there is no such device or why it can't be used.
    pub fn open(selector: &Selector) -> Result<Self, DeviceProblem> {
        match selector {
            #[cfg(has_host_device)]
            Selector::Emulated(fault) => {
                let device = Self::host(3, 100 << 10);
                Ok(fault.iter().fold(device, |device, fault| device.with_fault(fault.clone())))
            }
            gpu => Self::cuda(gpu),
        }
    }

    /// The CPU, running the device code with this many blocks and bytes of shared memory. Only for tests.
    #[cfg(has_host_device)]
    #[must_use]
    pub fn host(blocks: u32, shared_bytes: usize) -> Self {
        Self(Arc::new(host::Host::new(blocks, shared_bytes)))
    }

    /// This device, but something goes wrong. Only for tests.
    #[cfg(has_host_device)]
    #[must_use]
    pub fn with_fault(self, fault: Fault) -> Self {
        Self(Arc::new(faults::Faulty::new(self.0, fault)))
    }

    /// A line for people.
    #[must_use]
    pub fn describe(&self) -> String {
        self.0.describe()
    }

    /// Compute capability, of a GPU; the emulated device has none.
    pub(crate) fn capability(&self) -> Option<(i32, i32)> {
        self.0.capability()
    }

    /// What tells one version of the device code from another.
    pub(crate) fn code(&self) -> u64 {
        self.0.code()
    }

    /// Blocks of a launch.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.0.blocks()
    }

    /// Bytes of shared memory of a block.
    #[must_use]
    pub fn shared_bytes(&self) -> usize {
        self.0.shared_bytes()
    }

    /// Bytes that can still be allocated.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn free_bytes(&self) -> Result<usize, DeviceError> {
        self.0.free_bytes()
    }

    #[cfg(has_host_device)]
    pub(crate) fn spoils_step(&self) -> bool {
        self.0.spoils_step()
    }

    /// Bytes that opening the device took (context and kernels), where that could be seen.
    #[must_use]
    pub fn context_bytes(&self) -> Option<usize> {
        self.0.context_bytes()
    }

    /// Whether a display is shown by it.
    #[must_use]
    pub fn shows_display(&self) -> bool {
        self.0.shows_display()
    }

    /// Allocates memory, filled with zeros.
    ///
    /// # Errors
    /// When there is not enough.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        let address = self.0.allocate(bytes.max(ALIGNMENT))?;
        let buffer = Buffer { memory: Arc::new(Memory { device: self.clone(), address }), address, bytes };
        self.0.fill_zero(address, bytes.max(ALIGNMENT))?;
        Ok(buffer)
    }

    /// Allocates memory for buffers of these sizes, in one piece, filled with zeros.
    ///
    /// # Errors
    /// When there is not enough.
    pub fn allocate_together(&self, sizes: &[usize]) -> Result<Vec<Buffer>, DeviceError> {
        let whole = self.allocate(together(sizes.iter().copied()))?;
        let mut address = whole.address;
        let part = |&bytes: &usize| {
            let part = Buffer { memory: whole.memory.clone(), address, bytes };
            address += bytes.next_multiple_of(ALIGNMENT) as u64;
            part
        };
        Ok(sizes.iter().map(part).collect())
    }

    /// Allocates memory and copies `bytes` into it.
    ///
    /// # Errors
    /// When there is not enough, or the copy fails.
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer, DeviceError> {
        let buffer = self.allocate(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// The map of tiles of `bytes` from `address` on, by which the device copies them; `None` where it needs none.
    ///
    /// # Errors
    /// When the driver makes none of it.
    pub(crate) fn map_tiles(&self, address: u64, bytes: usize) -> Result<Option<TileMap>, DeviceError> {
        self.0.map_tiles(address, bytes)
    }

    /// Starts `count` ops of a program, after whatever was started before.
    ///
    /// # Errors
    /// When the launch fails, or a kernel that was started before.
    pub(crate) fn start(&self, ops: u64, count: u32, table: u64, counter: u64) -> Result<(), DeviceError> {
        self.0.run(ops, count, table, counter)
    }

    /// Waits for all that was started.
    ///
    /// # Errors
    /// When a kernel fails.
    pub(crate) fn finish(&self) -> Result<(), DeviceError> {
        self.0.synchronize()
    }
}

/// What the addresses of buffers are multiples of.
pub(crate) const ALIGNMENT: usize = 256;

/// Bytes of one piece of memory for buffers of these sizes.
pub(crate) fn together(sizes: impl Iterator<Item = usize>) -> usize {
    sizes.map(|bytes| bytes.next_multiple_of(ALIGNMENT)).sum()
}

/// Memory of a device, freed with its last buffer.
#[derive(Debug)]
struct Memory {
    device: Device,
    address: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.device.0.free(self.address);
    }
}

/// A part of a device's memory.
#[derive(Debug)]
pub struct Buffer {
    memory: Arc<Memory>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Where it lies, for the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn check(&self, call: &str, offset: usize, bytes: usize) -> Result<u64, DeviceError> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(self.address + offset as u64);
        }
        Err(DeviceError {
            call: call.into(),
            reason: format!("{bytes} bytes at {offset} are outside a buffer of {}", self.bytes),
        })
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// When they don't fit or the copy fails.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let address = self.check("copy to the device", offset, bytes.len())?;
        self.memory.device.0.upload(address, bytes)
    }

    /// Copies from `offset` into `bytes`.
    ///
    /// # Errors
    /// When they are not there or the copy fails.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let address = self.check("copy from the device", offset, bytes.len())?;
        self.memory.device.0.download(address, bytes)
    }

    /// Sets `bytes` at `offset` to zero.
    ///
    /// # Errors
    /// When they are not there or the device fails.
    pub fn clear(&self, offset: usize, bytes: usize) -> Result<(), DeviceError> {
        let address = self.check("clear", offset, bytes)?;
        self.memory.device.0.fill_zero(address, bytes)
    }
}
