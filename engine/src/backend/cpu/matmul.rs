//! A weight matrix times the rows of a step: every weight row is decoded once and used for all of them.

use rayon::prelude::*;

use super::simd::{dot, dot4};
use crate::model::Matrix;
use crate::quant::{TensorType, dequantize_row, quantize_q8_0};

/// Weight rows that one task works on.
const TASK_ROWS: usize = 32;
/// Below this many multiplications a matrix is not worth splitting over threads.
const SERIAL_LIMIT: usize = 1 << 15;

/// `y[r][o] = sum_i w[o][i] x[r][i]` for activations `x` (rows x `w.cols`); returns rows x `w.rows`.
pub(super) fn matmul(w: &Matrix, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / w.cols;
    if rows == 0 {
        return Vec::new();
    }
    let rounded = w.rounds_inputs.then(|| round_to_8_bits(x));
    let x = rounded.as_deref().unwrap_or(x);
    let mut by_output = vec![0f32; rows * w.rows];
    let task = |(t, out): (usize, &mut [f32])| {
        let mut weights = vec![0f32; 4 * w.cols];
        outputs(w, x, t * TASK_ROWS, out, &mut weights);
    };
    let size = rows * TASK_ROWS;
    if rows * w.rows * w.cols < SERIAL_LIMIT {
        by_output.chunks_mut(size).enumerate().for_each(task);
    } else {
        by_output.par_chunks_mut(size).enumerate().for_each(task);
    }
    if rows == 1 { by_output } else { transpose(&by_output, w.rows, rows) }
}

/// Fills `out` (weight rows from `first` x activation rows).
fn outputs(w: &Matrix, x: &[f32], first: usize, out: &mut [f32], weights: &mut [f32]) {
    let rows = x.len() / w.cols;
    let count = out.len() / rows;
    for g in (0..count).step_by(4) {
        let n = (count - g).min(4);
        for i in 0..n {
            dequantize_row(w.ty, w.row(first + g + i), &mut weights[i * w.cols..(i + 1) * w.cols]);
        }
        let (a, rest) = weights.split_at(w.cols);
        let (b, rest) = rest.split_at(w.cols);
        let (c, d) = rest.split_at(w.cols);
        for (r, x) in x.chunks_exact(w.cols).enumerate() {
            if n == 4 {
                for (i, y) in dot4([a, b, c, d], x).into_iter().enumerate() {
                    out[(g + i) * rows + r] = y;
                }
            } else {
                for (i, row) in [a, b, c].into_iter().take(n).enumerate() {
                    out[(g + i) * rows + r] = dot(row, x);
                }
            }
        }
    }
}

/// What 8 bits in blocks of 32 keep of activations.
fn round_to_8_bits(x: &[f32]) -> Vec<f32> {
    let mut rounded = vec![0f32; x.len()];
    for (x, rounded) in x.as_chunks::<32>().0.iter().zip(rounded.chunks_exact_mut(32)) {
        dequantize_row(TensorType::Q8_0, &quantize_q8_0(x), rounded);
    }
    rounded
}

fn transpose(by_output: &[f32], outputs: usize, rows: usize) -> Vec<f32> {
    let mut y = vec![0f32; rows * outputs];
    y.par_chunks_mut(outputs).enumerate().for_each(|(r, y)| {
        for (o, y) in y.iter_mut().enumerate() {
            *y = by_output[o * rows + r];
        }
    });
    y
}
