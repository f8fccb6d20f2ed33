//! Measures how fast weight rows are decoded: elements a nanosecond for each type, rows of 5,120 elements from a buffer
//! that does not fit the caches.
//!
//! `cargo run --release -p openjet-engine --example dequantize_speed`

#![allow(clippy::print_stdout, reason = "its purpose")]

use std::hint::black_box;
use std::time::Instant;

use openjet_engine::quant::{TensorType, dequantize_row};

const COLS: usize = 5120;
const ROWS: usize = 4096;
const ROUNDS: usize = 5;

fn main() {
    let mut out = vec![0.0; COLS];
    for ty in TensorType::ALL {
        let row = ty.row_bytes(COLS);
        let bytes: Vec<u8> = (0..ROWS * row).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let best = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                for row in bytes.chunks_exact(row) {
                    dequantize_row(ty, black_box(row), &mut out);
                    black_box(&mut out);
                }
                start.elapsed()
            })
            .min()
            .unwrap_or_default();
        println!("{ty:7} {:6.2} elements/ns", (ROWS * COLS) as f64 / best.as_nanos() as f64);
    }
}
