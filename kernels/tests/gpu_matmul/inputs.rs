//! What makes a matmul's input: residual addition and norms, gates, packing.

use crate::common::*;
use openjet_engine::quant::TensorType;
use openjet_kernels::program::*;

/// Residual addition, norm and activation.
#[test]
fn norm_and_activation() {
    let device = device();
    let mut random = Random(23);
    let (rows, width, splits) = (11usize, 768usize, 3usize);
    let x0 = random.vector(rows * width);
    let parts = random.vector(splits * 72 * width);
    let weight = random.vector(width);
    let (x, parts_buffer, weight_buffer) =
        (upload_f32(&device, &x0), upload_f32(&device, &parts), upload_f32(&device, &weight));
    let table = plain_table(&device, rows as u32, 0);
    let normed = device.allocate(rows * width * 4).unwrap();
    let mut program = ProgramBuilder::default();
    program.then(
        OpKind::Norm,
        NormArgs {
            x: x.address(),
            parts: parts_buffer.address(),
            weight: weight_buffer.address(),
            normed: normed.address(),
            fragments: 0,
            rows: 0,
            table: 0,
            last_x: 0,
            split_stride: (72 * width) as u64,
            splits: splits as u32,
            width: width as u32,
            stride: width as u32,
            part_stride: width as u32,
            normed_stride: width as u32,
            first_column_tile: 0,
            prompt: 0,
            second: 0,
            assign: 0,
            eps: 1e-6,
            squares: 0,
        },
    );
    program.finish(&device).unwrap().run(&table).unwrap();
    let mut sum = Vec::new();
    let mut expected = Vec::new();
    for r in 0..rows {
        let row: Vec<f64> = (0..width)
            .map(|c| {
                f64::from(x0[r * width + c])
                    + (0..splits).map(|s| f64::from(parts[(s * 72 + r) * width + c])).sum::<f64>()
            })
            .collect();
        let factor = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / width as f64 + 1e-6).sqrt();
        expected.extend(row.iter().zip(&weight).map(|(v, w)| v * factor * f64::from(*w)));
        sum.extend(row);
    }
    assert!(relative_error(&download_f32(&x), &sum) < 2e-7);
    assert!(relative_error(&download_f32(&normed), &expected) < 5e-7);
}

/// Rows that are divided by their root mean square in the matmul: the products, the residual stream, and each row's bits alone.
#[test]
fn rows_are_normalised_where_they_are_multiplied() {
    let device = device();
    let mut random = Random(31);
    let (width, outputs, splits) = (768usize, 48usize, 3usize);
    for (ty, rows) in
        [(TensorType::Q8_0, 1usize), (TensorType::Q4_K, 11), (TensorType::Q6_K, 24), (TensorType::F16, 72)]
    {
        let bytes = random_weights(ty, outputs, width, &mut random);
        let weights = decoded(ty, &bytes, outputs, width);
        let (_buffer, matrix) = upload(&device, ty, &bytes, outputs, width);
        // Rows of very different sizes.
        let x0: Vec<f32> =
            (0..rows * width).map(|i| random.vector(1)[0] * 10f32.powi((i / width % 7) as i32 - 3)).collect();
        let parts = random.vector(splits * 72 * width);
        let norm = random.vector(width);
        let run = |first: usize, rows: usize| {
            let x = upload_f32(&device, &x0[first * width..(first + rows) * width]);
            let parts: Vec<f32> = (0..splits)
                .flat_map(|s| {
                    let at = (s * 72 + first) * width;
                    let mut split = parts[at..at + rows * width].to_vec();
                    split.resize(72 * width, 0.0);
                    split
                })
                .collect();
            let (parts, norm) = (upload_f32(&device, &parts), upload_f32(&device, &norm));
            let table = plain_table(&device, rows as u32, 0);
            let fragments = device.allocate(fragment_bytes(72, width)).unwrap();
            let squares = device.allocate(72 * width.div_ceil(256) * 4).unwrap();
            let y = device.allocate(72 * outputs * 4).unwrap();
            let residual = NormArgs {
                x: x.address(),
                parts: parts.address(),
                weight: norm.address(),
                fragments: fragments.address(),
                squares: squares.address(),
                split_stride: (72 * width) as u64,
                splits: splits as u32,
                width: width as u32,
                stride: width as u32,
                part_stride: width as u32,
                ..NormArgs::default()
            };
            let job = matrix.job(y.address(), 1, 72);
            let none = MatmulJob::default();
            let multiply = MatmulArgs {
                x: fragments.address(),
                inputs: width as u32,
                jobs: 1,
                job: [job, none, none, none],
                squares: squares.address(),
                eps: 1e-6,
                ..MatmulArgs::default()
            };
            let mut program = ProgramBuilder::default();
            program.then(OpKind::Residual, residual).then(OpKind::Matmul, multiply);
            program.finish(&device).unwrap().run(&table).unwrap();
            (download_f32(&x), download_f32(&y)[..rows * outputs].to_vec())
        };
        let (sums, products) = run(0, rows);
        for row in 0..rows {
            let sum: Vec<f64> = (0..width)
                .map(|c| {
                    (0..splits)
                        .fold(f64::from(x0[row * width + c]), |v, s| v + f64::from(parts[(s * 72 + row) * width + c]))
                })
                .collect();
            assert!(relative_error(&sums[row * width..(row + 1) * width], &sum) < 2e-7, "{ty:?}, row {row} of {rows}");
            let factor = 1.0 / (sum.iter().map(|v| v * v).sum::<f64>() / width as f64 + 1e-6).sqrt();
            let input: Vec<f64> = sum.iter().zip(&norm).map(|(v, w)| v * factor * f64::from(*w)).collect();
            let expected: Vec<f64> = (weights.chunks_exact(width))
                .map(|w| w.iter().zip(&input).map(|(&w, v)| f64::from(w) * v).sum())
                .collect();
            let got = &products[row * outputs..(row + 1) * outputs];
            assert!(
                relative_error(got, &expected) < 4e-4,
                "{ty:?}, row {row} of {rows}: {}",
                relative_error(got, &expected)
            );
            let alone = run(row, 1).1;
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&alone), bits(got), "{ty:?}, row {row} of {rows}");
        }
    }
}

/// How rows become a matmul's input.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// By an op of its own.
    Packed,
    /// By the matmul.
    Itself,
    /// As a prompt's.
    Prompt,
}

/// Rows that are normed by heads and gated: the products, and the same bits whoever makes the input.
#[test]
fn inputs_are_normed_and_gated() {
    let device = device();
    let mut random = Random(37);
    let (outputs, splits) = (48usize, 2usize);
    for (ty, heads, rows) in [
        (TensorType::Q8_0, 9, 1usize),
        (TensorType::Q4_K, 10, 5),
        (TensorType::Q6_K, 10, 8),
        (TensorType::F16, 9, 3),
        (TensorType::Q4_K, 10, 70),
    ] {
        let width = heads * 128;
        let bytes = random_weights(ty, outputs, width, &mut random);
        let weights = decoded(ty, &bytes, outputs, width);
        let (_buffer, matrix) = upload(&device, ty, &bytes, outputs, width);
        let vectors = [random.vector(rows * width), random.vector(rows * 2 * width), random.vector(128)];
        let [x, gate, norm] = vectors.each_ref().map(|v| upload_f32(&device, v));
        for (normed, gated) in [(true, true), (false, true), (false, false)] {
            let from = InputRows {
                gate: if gated { gate.address() } else { 0 },
                norm: if normed { norm.address() } else { 0 },
                gate_stride: 2 * width as u32,
                eps: 1e-6,
                ..InputRows::plain(x.address(), width)
            };
            let run = |way: Way| {
                let table = plain_table(&device, rows as u32, 0);
                let room = fragment_bytes(72, width).max(prompt_row_bytes(rows, width));
                let (input, y) = (device.allocate(room).unwrap(), device.allocate(splits * 72 * outputs * 4).unwrap());
                let mut args = MatmulArgs { inputs: width as u32, jobs: 1, ..MatmulArgs::default() };
                args.job[0] = matrix.job(y.address(), splits, 72);
                let packed = MatmulArgs { x: input.address(), ..args };
                let pack = PackArgs { from, to: input.address(), rows: 0 };
                let mut program = ProgramBuilder::default();
                match way {
                    Way::Itself => program.then(OpKind::Matmul, MatmulArgs { from, ..args }),
                    Way::Packed => program.then(OpKind::Pack, pack).then(OpKind::Matmul, packed),
                    Way::Prompt => program.then(OpKind::PackPrompt, pack).then(OpKind::MatmulPrompt, packed),
                };
                program.finish(&device).unwrap().run(&table).unwrap();
                let y = download_f32(&y);
                (0..rows * outputs).map(|i| y[i] + y[72 * outputs + i]).collect::<Vec<f32>>()
            };
            let [data, gates, weight] = &vectors;
            let expected = (0..rows).flat_map(|r| {
                let row: Vec<f64> = data[r * width..(r + 1) * width].iter().map(|&v| f64::from(v)).collect();
                let input: Vec<f64> = (0..width)
                    .map(|c| {
                        let head = &row[c / 128 * 128..][..128];
                        let root = (head.iter().map(|v| v * v).sum::<f64>() / 128.0 + 1e-6).sqrt();
                        let v = if normed { row[c] / root * f64::from(weight[c % 128]) } else { row[c] };
                        let z = f64::from(gates[r * 2 * width + c]);
                        if gated { v * z / (1.0 + (-z).exp()) } else { v }
                    })
                    .collect();
                let dot = |w: &[f32]| w.iter().zip(&input).map(|(&w, v)| f64::from(w) * v).sum::<f64>();
                weights.chunks_exact(width).map(dot).collect::<Vec<f64>>()
            });
            let expected: Vec<f64> = expected.collect();
            let packed = run(Way::Packed);
            let what = format!("{ty:?}, {rows} rows, normed {normed}, gated {gated}");
            assert!(relative_error(&packed, &expected) < 5e-4, "{what}: {:.1e}", relative_error(&packed, &expected));
            if rows <= 8 {
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&run(Way::Itself)), bits(&packed), "{what}");
            }
            let error = relative_error(&run(Way::Prompt), &expected);
            assert!(error < 1e-3, "{what}, as a prompt's: {error:.1e}");
        }
    }
}
