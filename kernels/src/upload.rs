//! Moves matrices from a file to where a device reads them: repacked piece by piece, with several pieces under way, so that
//! reading, repacking and copying happen at the same time.

use std::sync::Mutex;
use std::sync::mpsc;

use openjet_engine::model::Matrix;

use crate::device::{Buffer, Device, DeviceError, Lane};
use crate::repack::{TILE_ROWS, repack, repacked_bytes};

/// Bytes repacked and copied at a time.
const PIECE: usize = 16 << 20;

/// Pieces under way. Each is repacked by all cores; while one is copied and one waits for the disk, another has the cores.
const LANES: usize = 4;

/// Pieces that the disk reads ahead.
const AHEAD: usize = 8;

/// Host memory that an upload stages in, in bytes.
pub(crate) const STAGING: usize = LANES * PIECE;

/// Told of bytes done and bytes in all while weights are uploaded.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A matrix and where it goes.
pub(crate) struct Job<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) to: Destination<'a>,
}

/// Where repacked bytes go.
pub(crate) enum Destination<'a> {
    /// Onto the device.
    Device { buffer: &'a Buffer, offset: usize },
    /// Into host memory that the device reads, of just the right length.
    Host(&'a mut [u8]),
}

/// Lines of tiles of a matrix: 16 rows each.
struct Piece<'a> {
    matrix: &'a Matrix,
    lines: std::ops::Range<usize>,
    bytes: usize,
    to: Destination<'a>,
}

impl Piece<'_> {
    /// The piece's bytes in the file.
    fn read_ahead(&self) {
        let rows = self.lines.start * TILE_ROWS..(self.lines.end * TILE_ROWS).min(self.matrix.rows);
        self.matrix.read_ahead(rows);
    }

    fn repack(&self, out: &mut [u8]) {
        repack(self.matrix.ty, self.matrix.bytes(), self.matrix.cols, self.lines.clone(), out);
    }
}

/// Cuts jobs into pieces, in their order.
fn pieces(jobs: Vec<Job<'_>>) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for Job { matrix, mut to } in jobs {
        let all = matrix.rows.div_ceil(TILE_ROWS);
        let line = repacked_bytes(matrix.ty, matrix.rows, matrix.cols) / all.max(1);
        let step = (PIECE / line.max(1)).max(1);
        for first in (0..all).step_by(step) {
            let lines = first..(first + step).min(all);
            let bytes = lines.len() * line;
            let part = match &mut to {
                Destination::Device { buffer, offset } => {
                    Destination::Device { buffer, offset: *offset + first * line }
                }
                Destination::Host(rest) => {
                    let (part, more) = std::mem::take(rest).split_at_mut(bytes);
                    *rest = more;
                    Destination::Host(part)
                }
            };
            pieces.push(Piece { matrix, lines, bytes, to: part });
        }
    }
    pieces
}

/// Does all jobs; returns when the last copy has ended.
///
/// # Errors
/// The first failure. The destinations are not whole then.
pub(crate) fn upload(device: &Device, jobs: Vec<Job<'_>>, progress: Progress<'_>) -> Result<(), DeviceError> {
    let pieces = pieces(jobs);
    let total = pieces.iter().map(|piece| piece.bytes as u64).sum();
    let largest = pieces.iter().map(|piece| piece.bytes).max().unwrap_or_default();
    let lanes = (0..LANES.min(pieces.len())).map(|_| Lane::new(device, largest)).collect::<Result<Vec<_>, _>>()?;
    let ahead = pieces.len().min(AHEAD);
    pieces[..ahead].iter().for_each(Piece::read_ahead);
    // Taken from the end.
    let waiting = Mutex::new(pieces.into_iter().rev().collect::<Vec<_>>());
    let take = || {
        let mut waiting = waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let piece = waiting.pop();
        if let Some(next) = waiting.len().checked_sub(AHEAD).and_then(|at| waiting.get(at)) {
            next.read_ahead();
        }
        piece
    };
    let (moved, movements) = mpsc::channel();
    std::thread::scope(|scope| {
        let workers = lanes.into_iter().map(|mut lane| {
            let moved = moved.clone();
            let take = &take;
            scope.spawn(move || -> Result<(), DeviceError> {
                while let Some(mut piece) = take() {
                    if let Destination::Host(place) = &mut piece.to {
                        let place = std::mem::take(place);
                        piece.repack(place);
                    } else if let Destination::Device { buffer, offset } = piece.to {
                        piece.repack(&mut lane.staging()?[..piece.bytes]);
                        lane.send(buffer, offset, piece.bytes)?;
                    }
                    // Nobody listens any more only where another worker has panicked.
                    let _listened = moved.send(piece.bytes as u64);
                }
                lane.wait()
            })
        });
        let workers: Vec<_> = workers.collect();
        drop(moved);
        let mut done = 0;
        for bytes in movements {
            done += bytes;
            progress(done, total);
        }
        let panicked = || DeviceError { call: "upload".into(), reason: "a thread has panicked".into() };
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| panicked())?)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use openjet_engine::gguf::GgufFile;
    use openjet_engine::model::Model;

    use super::*;

    fn shipped() -> Model {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/openjet-tiny-Q4_K_M.gguf");
        Model::load(Arc::new(GgufFile::open(std::path::Path::new(path)).unwrap())).unwrap()
    }

    fn repacked(matrix: &Matrix) -> Vec<u8> {
        let mut out = vec![0; repacked_bytes(matrix.ty, matrix.rows, matrix.cols)];
        repack(matrix.ty, matrix.bytes(), matrix.cols, 0..matrix.rows.div_ceil(TILE_ROWS), &mut out);
        out
    }

    #[test]
    #[cfg(has_host_device)]
    fn every_byte_arrives_where_it_belongs() {
        let (device, model) = (Device::host(1, 1 << 10), shipped());
        let blocks = model.blocks.iter().flat_map(|block| [&block.ffn_up, &block.ffn_down]);
        let matrices: Vec<&Matrix> = blocks.collect();
        let sizes: Vec<usize> = matrices.iter().map(|m| repacked_bytes(m.ty, m.rows, m.cols)).collect();
        let buffers = device.allocate_together(&sizes).unwrap();
        let mut host = repacked(&model.embedding);
        let expected = host.clone();
        host.fill(0xff);
        let mut jobs = vec![Job { matrix: &model.embedding, to: Destination::Host(&mut host) }];
        let devices = matrices.iter().zip(&buffers);
        jobs.extend(devices.map(|(matrix, buffer)| Job { matrix, to: Destination::Device { buffer, offset: 0 } }));
        let mut last = (0, 0);
        upload(&device, jobs, &mut |done, total| {
            assert!(last.0 < done && done <= total);
            last = (done, total);
        })
        .unwrap();
        assert_eq!(last, ((sizes.iter().sum::<usize>() + expected.len()) as u64, last.0));
        assert!(host == expected);
        for (matrix, buffer) in matrices.iter().zip(&buffers) {
            let mut found = vec![0; buffer.len()];
            buffer.read(0, &mut found).unwrap();
            assert!(found == repacked(matrix), "{matrix:?}");
        }
    }

    #[test]
    fn large_matrices_go_in_pieces() {
        let model = shipped();
        let matrix = &model.output;
        let mut place = repacked(matrix);
        let whole = place.len();
        let cut = pieces(vec![Job { matrix, to: Destination::Host(&mut place) }]);
        assert_eq!(cut.iter().map(|piece| piece.bytes).sum::<usize>(), whole);
        assert!(cut.iter().all(|piece| piece.bytes <= PIECE));
        assert!(cut.windows(2).all(|pair| pair[0].lines.end == pair[1].lines.start));
    }
}
