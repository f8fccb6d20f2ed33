//! Damaged and malicious model files: none panics, hangs, or allocates beyond its size.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/gguf.rs"]
mod gguf;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gguf::{Gguf, Meta, Shape};
use openjet_engine::gguf::GgufFile;
use openjet_engine::inspect::Inspection;
use openjet_engine::model::{Block, Matrix, Mixer, Model};
use openjet_engine::quant::dequantize_row;

/// Counts what the current thread holds. Tests run on threads of their own, and loading uses no others.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    MOST.set(MOST.get().max(HELD.get()));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the same as the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` holds at once, beyond those held before.
fn most_held<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let result = work();
    (result, (MOST.get() - before) as usize)
}

/// What a file may cost in memory if it is smaller than that.
const LEAST: usize = 64 << 10;

/// What became of a file.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Refused,
    Loaded,
}

/// Opens and loads a file, and uses what was loaded. `case` names it in messages.
fn attempt(case: &str, bytes: Vec<u8>) -> Outcome {
    let size = bytes.len();
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (loaded, held) = most_held(|| {
            let file = Arc::new(GgufFile::from_bytes(case, bytes).ok()?);
            Some((Model::load(file.clone()).ok(), file))
        });
        assert!(held <= size.max(LEAST), "{case}: {held} bytes held for a file of {size}");
        let Some((model, file)) = loaded else { return Outcome::Refused };
        let inspection = Inspection::of(&file);
        // A model may load whose tokenizer does not.
        assert!(model.is_some() || !inspection.runnable, "{case}");
        let Some(model) = model else { return Outcome::Refused };
        use_model(&model);
        Outcome::Loaded
    }));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{case}: took {took:?}");
    outcome.unwrap_or_else(|_| panic!("{case}: panicked"))
}

/// Reads the ends of everything that a backend reads.
fn use_model(model: &Model) {
    let config = &model.config;
    assert!(config.heads.is_multiple_of(config.kv_heads) && config.value_heads.is_multiple_of(config.key_heads));
    assert_eq!(config.rope_freqs.len(), config.rope_dims / 2);
    let mut matrices = vec![&model.embedding, &model.output];
    model.blocks.iter().for_each(|block| block_matrices(block, &mut matrices));
    if let Some(head) = &model.draft_head {
        matrices.extend([&head.join, &head.embedding, &head.output]);
        block_matrices(&head.block, &mut matrices);
    }
    for matrix in matrices {
        let mut row = vec![0.0; matrix.cols];
        dequantize_row(matrix.ty, matrix.row(0), &mut row);
        dequantize_row(matrix.ty, matrix.row(matrix.rows - 1), &mut row);
    }
}

fn block_matrices<'a>(block: &'a Block, matrices: &mut Vec<&'a Matrix>) {
    matrices.extend([&block.ffn_gate, &block.ffn_up, &block.ffn_down]);
    match &block.mixer {
        Mixer::Attention(layer) => matrices.extend([&layer.q, &layer.k, &layer.v, &layer.output]),
        Mixer::DeltaNet(layer) => {
            matrices.extend([&layer.qkv, &layer.gate, &layer.alpha, &layer.beta, &layer.output]);
        }
    }
}

/// Plain deterministic numbers (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Damages `bytes`, whose header is the first `header` bytes, in a way that `seed` chooses.
fn damage(bytes: &mut Vec<u8>, header: usize, seed: u64) -> String {
    let mut random = Random(seed);
    let at = random.below(header - 8);
    let kind = seed % 8;
    match kind {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => bytes.truncate(random.below(header)),
        2 => {
            for _ in 0..=random.below(8) {
                let bit = random.below(8);
                bytes[random.below(header)] ^= 1 << bit;
            }
        }
        3 => {
            let huge = [u64::MAX, 1 << 63, i64::MAX as u64, 1 << 40, 1 << 32, 0][random.below(6)];
            bytes[at..at + 8].copy_from_slice(&huge.to_le_bytes());
        }
        4 => {
            let small = random.below(64) as u32;
            bytes[at..at + 4].copy_from_slice(&small.to_le_bytes());
        }
        5 => drop(bytes.drain(at..at + 1 + random.below(header - at - 1))),
        6 => {
            let copy = bytes[at..at + 1 + random.below(header - at - 1)].to_vec();
            bytes.splice(at..at, copy);
        }
        _ => {
            let other = random.below(header - 8);
            for i in 0..8 {
                bytes.swap(at + i, other + i);
            }
        }
    }
    format!("seed {seed}, kind {kind} at {at}")
}

#[test]
fn damaged_small_files_are_refused_or_right() {
    let file = Gguf::model(&Shape::SMALL, false);
    let (bytes, header) = (file.bytes(), file.header().0.len());
    assert!(attempt("undamaged", bytes.clone()) == Outcome::Loaded);
    let mut loaded = 0;
    for seed in 0..2000 {
        let mut bytes = bytes.clone();
        let case = damage(&mut bytes, header, seed);
        loaded += usize::from(attempt(&case, bytes) == Outcome::Loaded);
    }
    // Some damage is harmless (a letter of a token); most is not.
    assert!((1..1000).contains(&loaded), "{loaded} of 2000 were loaded");
}

#[test]
fn damaged_real_files_are_refused_or_right() {
    let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/openjet-tiny-Q4_K_M.gguf")).unwrap();
    let first_tensor = GgufFile::from_bytes("", bytes.clone()).unwrap();
    let header = first_tensor.tensors().iter().map(|tensor| tensor.bytes.start).min().unwrap();
    // The tensors' table is its last part, a small one; damage that alone as often as the whole.
    for seed in 0..200 {
        let mut bytes = bytes.clone();
        let case = if seed % 2 == 0 {
            damage(&mut bytes, header, seed / 2)
        } else {
            let mut table = bytes.split_off(header - 7000);
            let case = damage(&mut table, 7000, seed / 2);
            bytes.append(&mut table);
            case
        };
        attempt(&case, bytes);
    }
}

/// A file of nothing but small entries costs the most memory for its size.
#[test]
fn many_small_entries_stay_in_proportion() {
    let mut file = Gguf::model(&Shape::SMALL, false);
    for i in 0..20_000 {
        file.metadata.push((format!("{i:x}"), Meta::Raw(0, vec![0])));
    }
    let bytes = file.bytes();
    let size = bytes.len();
    let (file, held) = most_held(|| GgufFile::from_bytes("keys", bytes).unwrap());
    assert!(held < 6 * size, "{held} bytes for {size}");
    assert_eq!(file.metadata().count(), 20_000 + 26);

    let mut file = Gguf::model(&Shape::SMALL, false);
    // Every block of a made-up model misses everything.
    file.set("qwen35.block_count", Meta::U32(20_000));
    for i in 0..20_000 {
        file.add(&format!("{i:x}"), &[1], gguf::F32);
    }
    let bytes = file.bytes();
    let size = bytes.len();
    let start = Instant::now();
    let (result, held) = most_held(|| Model::load(Arc::new(GgufFile::from_bytes("tensors", bytes).unwrap())));
    assert!(held < 6 * size, "{held} bytes for {size}");
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(result.unwrap_err().problems.len(), 100);
}

#[test]
fn a_pipe_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let error = GgufFile::open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("is not a regular file"), "{error}");
    let error = GgufFile::open(std::path::Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(error, "/dev/zero: is not a regular file");
}
