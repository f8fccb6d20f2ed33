//! Devices that fail on purpose, for tests of what happens then.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Api, DeviceError, PinnedAddress, TileMap};

/// What goes wrong with a device, and when. Counts begin at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This allocation fails: out of memory.
    Allocation(u64),
    /// This launch fails; the device goes on.
    Launch(u64),
    /// The device is lost at this launch: it and every call after it fails.
    Lost(u64),
    /// Before this step, the recurrent state of the first slot in it turns into NaN.
    NotFinite(u64),
}

impl FromStr for Fault {
    type Err = String;

    /// `allocation:N`, `launch:N`, `lost:N` or `nan:N`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no fault; faults are allocation:N, launch:N, lost:N and nan:N");
        let (kind, at) = text.split_once(':').ok_or_else(bad)?;
        let at = at.parse().map_err(|_| bad())?;
        match kind {
            "allocation" => Ok(Self::Allocation(at)),
            "launch" => Ok(Self::Launch(at)),
            "lost" => Ok(Self::Lost(at)),
            "nan" => Ok(Self::NotFinite(at)),
            _ => Err(bad()),
        }
    }
}

pub(super) struct Faulty {
    device: Arc<dyn Api>,
    fault: Fault,
    allocations: AtomicU64,
    launches: AtomicU64,
    steps: AtomicU64,
    lost: AtomicBool,
}

impl Faulty {
    pub(super) fn new(device: Arc<dyn Api>, fault: Fault) -> Self {
        Self { device, fault, allocations: 0.into(), launches: 0.into(), steps: 0.into(), lost: false.into() }
    }

    fn alive(&self, call: &str) -> Result<(), DeviceError> {
        if self.lost.load(Ordering::Relaxed) {
            let reason = "the GPU is lost (injected)".into();
            return Err(DeviceError { call: call.to_owned(), reason });
        }
        Ok(())
    }
}

impl Api for Faulty {
    fn describe(&self) -> String {
        self.device.describe()
    }

    fn blocks(&self) -> u32 {
        self.device.blocks()
    }

    fn shared_bytes(&self) -> usize {
        self.device.shared_bytes()
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DeviceError> {
        let call = format!("allocate {bytes} bytes on the GPU");
        self.alive(&call)?;
        if self.fault == Fault::Allocation(self.allocations.fetch_add(1, Ordering::Relaxed)) {
            return Err(DeviceError { call, reason: "out of memory (injected)".into() });
        }
        self.device.allocate(bytes)
    }

    fn free(&self, address: u64) {
        self.device.free(address);
    }

    fn fill_zero(&self, address: u64, bytes: usize) -> Result<(), DeviceError> {
        self.alive("clear GPU memory")?;
        self.device.fill_zero(address, bytes)
    }

    fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.alive("copy to the GPU")?;
        self.device.upload(address, bytes)
    }

    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.alive("copy from the GPU")?;
        self.device.download(address, bytes)
    }

    fn run(&self, ops: u64, count: u32, table: u64, counter: u64) -> Result<(), DeviceError> {
        let launch = self.launches.fetch_add(1, Ordering::Relaxed);
        if self.fault == Fault::Lost(launch) {
            self.lost.store(true, Ordering::Relaxed);
        }
        self.alive("launch a step")?;
        if self.fault == Fault::Launch(launch) {
            return Err(DeviceError { call: "launch a step".into(), reason: "launch failed (injected)".into() });
        }
        self.device.run(ops, count, table, counter)
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.alive("wait for the GPU")?;
        self.device.synchronize()
    }

    fn map_tiles(&self, address: u64, bytes: usize) -> Result<Option<TileMap>, DeviceError> {
        self.alive("describe tiles to the GPU")?;
        self.device.map_tiles(address, bytes)
    }

    fn free_bytes(&self) -> Result<usize, DeviceError> {
        self.alive("ask for free GPU memory")?;
        self.device.free_bytes()
    }

    fn context_bytes(&self) -> Option<usize> {
        self.device.context_bytes()
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<PinnedAddress, DeviceError> {
        self.device.allocate_pinned(bytes)
    }

    fn free_pinned(&self, address: PinnedAddress) {
        self.device.free_pinned(address);
    }

    fn program_queue(&self) -> u64 {
        self.device.program_queue()
    }

    fn create_queue(&self) -> Result<u64, DeviceError> {
        self.device.create_queue()
    }

    fn destroy_queue(&self, queue: u64) {
        self.device.destroy_queue(queue);
    }

    fn enqueue_upload(&self, queue: u64, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.alive("copy to the GPU")?;
        self.device.enqueue_upload(queue, address, bytes)
    }

    unsafe fn enqueue_download(&self, queue: u64, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.alive("copy from the GPU")?;
        // SAFETY: what the caller has promised.
        unsafe { self.device.enqueue_download(queue, address, bytes) }
    }

    fn wait_for_queue(&self, queue: u64) -> Result<(), DeviceError> {
        self.device.wait_for_queue(queue)
    }

    fn spoils_step(&self) -> bool {
        self.fault == Fault::NotFinite(self.steps.fetch_add(1, Ordering::Relaxed))
    }
}
