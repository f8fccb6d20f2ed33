//! Host memory that a device reaches by itself: in place, or by copies that run beside other work.

use super::{Buffer, Device, DeviceError, PinnedAddress};

/// Host memory that is never paged out and that the device can read where it lies.
#[derive(Debug)]
pub(crate) struct Pinned {
    device: Device,
    address: PinnedAddress,
}

// SAFETY: it owns its memory, which may be used from any thread.
unsafe impl Send for Pinned {}
// SAFETY: as above; what it points at is only changed through `&mut self`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates `bytes` of it, filled with zeros.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        let address = device.0.allocate_pinned(bytes.max(1))?;
        let mut pinned = Self { device: device.clone(), address };
        pinned.bytes_mut().fill(0);
        Ok(pinned)
    }

    /// Where the device reads it.
    pub(crate) fn address(&self) -> u64 {
        self.address.device
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is `bytes` long, initialised, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address.host, self.address.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.host, self.address.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.device.0.free_pinned(self.address);
    }
}

/// A staging buffer with a queue of copies: of its own, or the programs'.
#[derive(Debug)]
pub(crate) struct Lane {
    staging: Pinned,
    queue: u64,
    own: bool,
}

impl Lane {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        let staging = Pinned::new(device, bytes)?;
        Ok(Self { queue: device.0.create_queue()?, staging, own: true })
    }

    /// One whose copies take their turn among the programs.
    pub(crate) fn of_programs(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self { staging: Pinned::new(device, bytes)?, queue: device.0.program_queue(), own: false })
    }

    /// The staging buffer, once the copy before is done.
    pub(crate) fn staging(&mut self) -> Result<&mut [u8], DeviceError> {
        self.wait()?;
        Ok(self.staging.bytes_mut())
    }

    /// Begins to copy the first `bytes` of the staging buffer.
    pub(crate) fn send(&mut self, to: &Buffer, offset: usize, bytes: usize) -> Result<(), DeviceError> {
        let address = to.check("copy to the device", offset, bytes)?;
        self.staging.device.0.enqueue_upload(self.queue, address, &self.staging.bytes()[..bytes])
    }

    /// Copies from a buffer through the staging buffer.
    pub(crate) fn receive(&mut self, from: &Buffer, offset: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let address = from.check("copy from the device", offset, to.len())?;
        self.wait()?;
        let staging = &mut self.staging.bytes_mut()[..to.len()];
        // SAFETY: nothing else uses the staging buffer until the queue was waited for, which is next.
        unsafe { from.memory.device.0.enqueue_download(self.queue, address, staging)? };
        self.wait()?;
        to.copy_from_slice(&self.staging.bytes()[..to.len()]);
        Ok(())
    }

    /// Copies parts of buffers, offset and length of each, one behind the other into the staging buffer. Returns how many bytes came.
    pub(crate) fn fetch<'a>(
        &mut self,
        parts: impl Iterator<Item = (&'a Buffer, usize, usize)>,
    ) -> Result<usize, DeviceError> {
        self.wait()?;
        let end = self.begin_fetch(parts)?;
        self.wait()?;
        Ok(end)
    }

    /// Begins to; what was begun before has ended. [`Self::fetched`] has it when the queue was waited for.
    pub(crate) fn begin_fetch<'a>(
        &mut self,
        parts: impl Iterator<Item = (&'a Buffer, usize, usize)>,
    ) -> Result<usize, DeviceError> {
        let mut end = 0;
        for (from, offset, bytes) in parts {
            let address = from.check("copy from the device", offset, bytes)?;
            let room = self.staging.address.bytes;
            let place = self.staging.bytes_mut().get_mut(end..end + bytes).ok_or_else(|| DeviceError {
                call: "copy from the device".into(),
                reason: format!("{bytes} bytes at {end} are outside a staging buffer of {room}"),
            })?;
            // SAFETY: nothing else uses the staging buffer until the queue was waited for, which is next, or by the next user.
            unsafe { from.memory.device.0.enqueue_download(self.queue, address, place)? };
            end += bytes;
        }
        Ok(end)
    }

    /// What [`Self::fetch`] brought.
    pub(crate) fn fetched(&self) -> &[u8] {
        self.staging.bytes()
    }

    /// Waits for the copy that was begun.
    pub(crate) fn wait(&mut self) -> Result<(), DeviceError> {
        self.staging.device.0.wait_for_queue(self.queue)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The staging buffer is freed after this, also when the copy has failed: nothing is in flight then.
        let _failed = self.wait();
        if self.own {
            self.staging.device.0.destroy_queue(self.queue);
        }
    }
}
