//! States on their way to host memory, beside the steps that follow.

use std::sync::Arc;
use std::thread::JoinHandle;

use openjet_engine::backend::StateImage;

use crate::device::{Buffer, Device, DeviceError, Lane};

/// Brings states to host memory, one at a time: to pinned memory at the speed of the bus while steps wait, and from there, which
/// takes longer, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Outgoing {
    lane: Option<Lane>,
    copying: Option<JoinHandle<Lane>>,
}

impl Outgoing {
    /// For states of `bytes`.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self { lane: Some(Lane::new(device, bytes)?), copying: None })
    }

    /// An image of `head` and these parts of buffers, as they are now: offset and length.
    pub(crate) fn image<'a>(
        &mut self,
        head: [u8; 4],
        parts: impl Iterator<Item = (&'a Buffer, usize, usize)>,
    ) -> Result<Arc<StateImage>, DeviceError> {
        let mut lane = self.lane()?;
        let bytes = match lane.fetch(parts) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.lane = Some(lane);
                return Err(error);
            }
        };
        let (image, arrival) = StateImage::coming(head.len() + bytes);
        let copy = move || {
            let mut image = zeros(head.len() + bytes);
            image[..head.len()].copy_from_slice(&head);
            image[head.len()..].copy_from_slice(&lane.fetched()[..bytes]);
            arrival.arrive(Ok(image));
            lane
        };
        let thread = std::thread::Builder::new().name("states".into()).spawn(copy);
        self.copying = Some(thread.map_err(|error| failed(&error.to_string()))?);
        Ok(image)
    }

    /// The lane, once the copy before has ended.
    fn lane(&mut self) -> Result<Lane, DeviceError> {
        if let Some(copying) = self.copying.take() {
            return copying.join().map_err(|_| failed("the thread has panicked"));
        }
        self.lane.take().ok_or_else(|| failed("its memory was lost"))
    }
}

fn failed(reason: &str) -> DeviceError {
    DeviceError { call: "copy a state".into(), reason: reason.into() }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // The pinned memory is freed with the backend, not later.
        drop(self.lane());
    }
}

/// Zeros, in large pages where the system has them: what is written all at once would cost a fault for each small page.
pub(crate) fn zeros(bytes: usize) -> Vec<u8> {
    const PAGE: usize = 4096;
    let mut zeros = vec![0u8; bytes];
    let first = zeros.as_ptr().align_offset(PAGE);
    if let Some(range) = zeros.get_mut(first..) {
        // SAFETY: the range lies in the vector, and the advice changes nothing but how it is backed.
        let advised = unsafe {
            rustix::mm::madvise(range.as_mut_ptr().cast(), range.len() / PAGE * PAGE, rustix::mm::Advice::LinuxHugepage)
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "no large pages");
        }
    }
    zeros
}
