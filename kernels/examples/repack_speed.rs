//! Measures how fast one core brings weights of each type into the device's order.
//!
//! `cargo run --release -p openjet-kernels --example repack_speed`
#![allow(clippy::print_stdout, reason = "this is a program that prints a table")]

use std::error::Error;
use std::time::Instant;

use openjet_engine::quant::TensorType;
use openjet_kernels::repack::{TILE_ROWS, repack, repacked_bytes};

const ROWS: usize = 2048;
const COLUMNS: usize = 5120;

fn main() -> Result<(), Box<dyn Error>> {
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    println!("type    GB/s of the device's bytes, one core");
    for ty in
        [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K, TensorType::Q8_0, TensorType::Q4_0, TensorType::F16]
    {
        let from: Vec<u8> = (0..ROWS * ty.row_bytes(COLUMNS)).map(|i| ((i * 31) >> 3) as u8).collect();
        let mut to = vec![0; repacked_bytes(ty, ROWS, COLUMNS)];
        let mut once = || one.install(|| repack(ty, &from, COLUMNS, 0..ROWS / TILE_ROWS, &mut to));
        once();
        let (started, mut rounds) = (Instant::now(), 0);
        while started.elapsed().as_secs_f64() < 0.5 {
            once();
            rounds += 1;
        }
        let bytes = rounds as f64 * repacked_bytes(ty, ROWS, COLUMNS) as f64;
        println!("{:6}  {:.2}", ty.name(), bytes / started.elapsed().as_secs_f64() / 1e9);
    }
    Ok(())
}
