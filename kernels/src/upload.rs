//! Moves matrices from a file to where a device reads them: repacked piece by piece, with several pieces under way, so that
//! reading, repacking and copying happen at the same time.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc;

use openjet_engine::model::Matrix;

use crate::device::{Buffer, Device, DeviceError, Lane};
use crate::repack::{PAIR_ROWS, TILE_ROWS, repack, repack_pair, repacked_bytes, repacked_pair_bytes};

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

/// What becomes one matrix on the device.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// One of the file's.
    One(&'a Matrix),
    /// Two of one type and shape, as a pair.
    Pair([&'a Matrix; 2]),
}

impl<'a> Source<'a> {
    /// Two matrices as a pair, if they are alike.
    pub(crate) fn pair(a: &'a Matrix, b: &'a Matrix) -> Option<Self> {
        ((a.ty, a.rows, a.cols) == (b.ty, b.rows, b.cols)).then_some(Self::Pair([a, b]))
    }

    /// The matrix that says of which type and shape it is.
    pub(crate) fn first(self) -> &'a Matrix {
        let (Self::One(matrix) | Self::Pair([matrix, _])) = self;
        matrix
    }

    /// Bytes on the device.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::One(matrix) => repacked_bytes(matrix.ty, matrix.rows, matrix.cols),
            Self::Pair([matrix, _]) => repacked_pair_bytes(matrix.ty, matrix.rows, matrix.cols),
        }
    }

    /// Rows of each of its matrices that a line of tiles spans.
    fn line_rows(self) -> usize {
        if matches!(self, Self::One(_)) { TILE_ROWS } else { PAIR_ROWS }
    }

    /// Lines of tiles.
    fn lines(self) -> usize {
        self.first().rows.div_ceil(self.line_rows())
    }

    fn read_ahead(self, lines: &Range<usize>) {
        let end = (lines.end * self.line_rows()).min(self.first().rows);
        let rows = lines.start * self.line_rows()..end;
        match self {
            Self::One(matrix) => matrix.read_ahead(rows),
            Self::Pair(both) => both.into_iter().for_each(|matrix| matrix.read_ahead(rows.clone())),
        }
    }

    fn repack(self, lines: Range<usize>, out: &mut [u8]) {
        let Matrix { ty, cols, .. } = *self.first();
        match self {
            Self::One(matrix) => repack(ty, matrix.bytes(), cols, lines, out),
            Self::Pair(both) => repack_pair(ty, both.map(Matrix::bytes), cols, lines, out),
        }
    }
}

/// What is uploaded and where it goes.
pub(crate) struct Job<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) to: Destination<'a>,
}

/// Where repacked bytes go.
pub(crate) enum Destination<'a> {
    /// Onto the device.
    Device { buffer: &'a Buffer, offset: usize },
    /// Into host memory that the device reads, of just the right length.
    Host(&'a mut [u8]),
}

/// Lines of tiles.
struct Piece<'a> {
    source: Source<'a>,
    lines: Range<usize>,
    bytes: usize,
    to: Destination<'a>,
}

impl Piece<'_> {
    /// The piece's bytes in the file.
    fn read_ahead(&self) {
        self.source.read_ahead(&self.lines);
    }

    fn repack(&self, out: &mut [u8]) {
        self.source.repack(self.lines.clone(), out);
    }
}

/// Cuts jobs into pieces, in their order.
fn pieces(jobs: Vec<Job<'_>>) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for Job { source, mut to } in jobs {
        let all = source.lines();
        let line = source.bytes() / all.max(1);
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
            pieces.push(Piece { source, lines, bytes, to: part });
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

    fn repacked(source: Source<'_>) -> Vec<u8> {
        let mut out = vec![0; source.bytes()];
        source.repack(0..source.lines(), &mut out);
        out
    }

    #[test]
    #[cfg(has_host_device)]
    fn every_byte_arrives_where_it_belongs() {
        let (device, model) = (Device::host(1, 1 << 10), shipped());
        let blocks = model.blocks.iter();
        let sources = blocks.flat_map(|b| [Source::pair(&b.ffn_gate, &b.ffn_up).unwrap(), Source::One(&b.ffn_down)]);
        let sources: Vec<Source<'_>> = sources.collect();
        let sizes: Vec<usize> = sources.iter().map(|source| source.bytes()).collect();
        let buffers = device.allocate_together(&sizes).unwrap();
        let mut host = repacked(Source::One(&model.embedding));
        let expected = host.clone();
        host.fill(0xff);
        let mut jobs = vec![Job { source: Source::One(&model.embedding), to: Destination::Host(&mut host) }];
        let devices = sources.iter().zip(&buffers);
        jobs.extend(devices.map(|(&source, buffer)| Job { source, to: Destination::Device { buffer, offset: 0 } }));
        let mut last = (0, 0);
        upload(&device, jobs, &mut |done, total| {
            assert!(last.0 < done && done <= total);
            last = (done, total);
        })
        .unwrap();
        assert_eq!(last, ((sizes.iter().sum::<usize>() + expected.len()) as u64, last.0));
        assert!(host == expected);
        for (&source, buffer) in sources.iter().zip(&buffers) {
            let mut found = vec![0; buffer.len()];
            buffer.read(0, &mut found).unwrap();
            assert!(found == repacked(source), "{:?}", source.first());
        }
    }

    #[test]
    fn large_matrices_go_in_pieces() {
        let model = shipped();
        for source in [Source::One(&model.output), Source::Pair([&model.output; 2])] {
            let mut place = repacked(source);
            let whole = place.len();
            let cut = pieces(vec![Job { source, to: Destination::Host(&mut place) }]);
            assert_eq!(cut.iter().map(|piece| piece.bytes).sum::<usize>(), whole);
            assert!(cut.iter().all(|piece| piece.bytes <= PIECE));
            assert!(cut.windows(2).all(|pair| pair[0].lines.end == pair[1].lines.start));
        }
    }
}
