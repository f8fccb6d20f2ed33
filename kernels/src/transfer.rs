//! Copies between the device and ordinary host memory at the speed of the bus: in pieces through pinned memory, several at a time.
//!
//! A copy from memory that may be paged out goes through the driver's own staging, on one thread; what is saved of a conversation
//! is large and others wait meanwhile.

use std::sync::Mutex;

use crate::device::{Buffer, Device, DeviceError, Lane};

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// Pieces under way, each with a thread: the host's share of the work, memory that is new to it included, is the larger one.
const LANES: usize = 8;

/// Pinned memory and queues for copies.
#[derive(Debug)]
pub(crate) struct Transfer {
    lanes: Vec<Lane>,
}

/// A range of a device's buffer, and as many bytes of the host's.
struct Piece<'a, Host> {
    buffer: &'a Buffer,
    offset: usize,
    host: Host,
}

impl Transfer {
    pub(crate) fn new(device: &Device) -> Result<Self, DeviceError> {
        Ok(Self { lanes: (0..LANES).map(|_| Lane::new(device, PIECE)).collect::<Result<_, _>>()? })
    }

    /// Copies from the device: of each part the buffer, the offset in it, and where it goes.
    pub(crate) fn read<'a>(
        &mut self,
        parts: impl Iterator<Item = (&'a Buffer, usize, &'a mut [u8])>,
    ) -> Result<(), DeviceError> {
        let pieces = parts.flat_map(|(buffer, offset, host)| {
            let pieces = host.chunks_mut(PIECE).enumerate();
            pieces.map(move |(i, host)| Piece { buffer, offset: offset + i * PIECE, host })
        });
        self.each(pieces.collect(), |lane, piece| lane.receive(piece.buffer, piece.offset, piece.host))
    }

    /// Copies to the device: of each part the buffer, the offset in it, and what goes there.
    pub(crate) fn write<'a>(
        &mut self,
        parts: impl Iterator<Item = (&'a Buffer, usize, &'a [u8])>,
    ) -> Result<(), DeviceError> {
        let pieces = parts.flat_map(|(buffer, offset, host)| {
            let pieces = host.chunks(PIECE).enumerate();
            pieces.map(move |(i, host)| Piece { buffer, offset: offset + i * PIECE, host })
        });
        self.each(pieces.collect(), |lane, piece| {
            lane.staging()?[..piece.host.len()].copy_from_slice(piece.host);
            lane.send(piece.buffer, piece.offset, piece.host.len())
        })
    }

    /// Gives every piece to a lane that is free; returns when all copies have ended.
    fn each<Host: Send>(
        &mut self,
        pieces: Vec<Piece<'_, Host>>,
        copy: impl Fn(&mut Lane, Piece<'_, Host>) -> Result<(), DeviceError> + Sync,
    ) -> Result<(), DeviceError> {
        let lanes = pieces.len().min(LANES);
        let waiting = Mutex::new(pieces);
        let work = |lane: &mut Lane| {
            loop {
                let piece = waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
                let Some(piece) = piece else { return lane.wait() };
                copy(lane, piece)?;
            }
        };
        let Some((first, others)) = self.lanes[..lanes].split_first_mut() else { return Ok(()) };
        std::thread::scope(|scope| {
            let workers: Vec<_> = others.iter_mut().map(|lane| scope.spawn(|| work(lane))).collect();
            let mine = work(first);
            let panicked = || DeviceError { call: "copy".into(), reason: "a thread has panicked".into() };
            workers.into_iter().fold(mine, |done, worker| done.and(worker.join().map_err(|_| panicked())?))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    #[cfg(has_host_device)]
    fn every_byte_arrives_both_ways() {
        let device = Device::host(1, 1 << 10);
        let sizes = [1, PIECE - 1, PIECE, 3 * PIECE + 5];
        let buffers: Vec<Buffer> = sizes.iter().map(|&bytes| device.allocate(bytes + 7).unwrap()).collect();
        let sent: Vec<Vec<u8>> =
            sizes.iter().map(|&bytes| (0..bytes).map(|i| (i * 31 + i / 251 + bytes) as u8).collect()).collect();
        let mut transfer = Transfer::new(&device).unwrap();
        transfer.write(buffers.iter().zip(&sent).map(|(buffer, bytes)| (buffer, 7, &bytes[..]))).unwrap();
        let mut plain: Vec<Vec<u8>> = sizes.iter().map(|&bytes| vec![0; bytes]).collect();
        for (buffer, bytes) in buffers.iter().zip(&mut plain) {
            buffer.read(7, bytes).unwrap();
        }
        assert!(plain == sent);
        let mut received: Vec<Vec<u8>> = sizes.iter().map(|&bytes| vec![0xff; bytes]).collect();
        transfer.read(buffers.iter().zip(&mut received).map(|(buffer, bytes)| (buffer, 7, &mut bytes[..]))).unwrap();
        assert!(received == sent);
        let error = transfer.read(std::iter::once((&buffers[0], 8, &mut [0; 9][..]))).unwrap_err();
        assert_eq!(error.to_string(), "copy from the device: 9 bytes at 8 are outside a buffer of 8");
    }
}
