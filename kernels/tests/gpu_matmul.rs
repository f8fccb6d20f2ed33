//! Embedding lookup, norms, packing and matmuls against exact references, for every type and number of rows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod common;
#[path = "gpu_matmul/inputs.rs"]
mod inputs;

use common::*;
use openjet_engine::quant::TensorType;
use openjet_kernels::device::{Buffer, Device};
use openjet_kernels::program::*;

/// Every type's tiles decode to the file's numbers, exactly (F32 to 2^-22).
#[test]
fn embedding_rows_are_the_files_numbers() {
    let device = device();
    let mut random = Random(7);
    for ty in TensorType::ALL {
        let (rows, columns) = (35, 512);
        let bytes = random_weights(ty, rows, columns, &mut random);
        let expected = decoded(ty, &bytes, rows, columns);
        let (_weights, matrix) = upload(&device, ty, &bytes, rows, columns);
        let tokens: Vec<u32> = (0..rows as u32).rev().collect();
        let (token_buffer, table) = (upload_u32(&device, &tokens), plain_table(&device, rows as u32, 0));
        let x = device.allocate(rows * columns * 4).unwrap();
        let mut program = ProgramBuilder::default();
        program.then(
            OpKind::Embed,
            EmbedArgs {
                weights: matrix.address,
                tokens: token_buffer.address(),
                rows: 0,
                x: x.address(),
                ty: matrix.ty as u32,
                width: columns as u32,
                stride: columns as u32,
                token_stride: 1,
            },
        );
        program.finish(&device).unwrap().run(&table).unwrap();
        let got = download_f32(&x);
        for (r, &token) in tokens.iter().enumerate() {
            for c in 0..columns {
                let (g, e) = (got[r * columns + c], expected[token as usize * columns + c]);
                let close = (g - e).abs() <= e.abs() * if ty == TensorType::F32 { 3e-7 } else { 6e-7 } + 1e-7;
                assert!(close, "{ty:?} row {token} column {c}: {g} instead of {e}");
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Case {
    ty: TensorType,
    outputs: usize,
    inputs: usize,
    rows: usize,
    splits: usize,
    /// Two matrices, and outputs that are silu of the first's times the second's.
    paired: bool,
}

impl Case {
    /// Rows of weights: of a pair, those of both matrices.
    fn weight_rows(&self) -> usize {
        self.outputs * if self.paired { 2 } else { 1 }
    }

    fn weights(&self, random: &mut Random) -> Vec<u8> {
        random_weights(self.ty, self.weight_rows(), self.inputs, random)
    }

    fn upload(&self, device: &Device, bytes: &[u8]) -> (Buffer, DeviceMatrix) {
        let Self { ty, outputs, inputs, .. } = *self;
        if !self.paired {
            return upload(device, ty, bytes, outputs, inputs);
        }
        let (gate, up) = bytes.split_at(bytes.len() / 2);
        upload_pair(device, ty, [gate, up], outputs, inputs)
    }
}

/// Numbers between the rows of y.
const GAP: usize = 5;

/// Packs rows and multiplies them by some matrices; returns each one's y, `splits` times 72 rows with gaps.
fn run(device: &Device, x: &[f32], rows: usize, matrices: &[(DeviceMatrix, usize)]) -> Vec<Buffer> {
    let inputs = matrices[0].0.columns;
    let table = plain_table(device, rows as u32, 0);
    let x = upload_f32(device, x);
    let fragments = device.allocate(fragment_bytes(72, inputs)).unwrap();
    let pack = PackArgs { from: InputRows::plain(x.address(), inputs), to: fragments.address(), rows: 0 };
    let mut args = MatmulArgs {
        x: fragments.address(),
        inputs: inputs as u32,
        jobs: matrices.len() as u32,
        ..MatmulArgs::default()
    };
    let buffers = matrices.iter().zip(&mut args.job).map(|((matrix, splits), job)| {
        let stride = matrix.rows + GAP;
        let y = device.allocate(splits * 72 * stride * 4).unwrap();
        y.write(0, &vec![0xff; y.len()]).unwrap();
        let split_stride = (72 * stride) as u64;
        *job = MatmulJob { stride: stride as u32, split_stride, ..matrix.job(y.address(), *splits, 72) };
        y
    });
    let buffers = buffers.collect();
    let mut program = ProgramBuilder::default();
    program.then(OpKind::Pack, pack).then(OpKind::Matmul, args);
    program.finish(device).unwrap().run(&table).unwrap();
    buffers
}

/// Runs pack and matmul, returns y summed over splits.
fn multiply(device: &Device, case: &Case, bytes: &[u8], x: &[f32]) -> Vec<f32> {
    let Case { outputs, rows, splits, .. } = *case;
    let (_weights, matrix) = case.upload(device, bytes);
    let y = download_f32(&run(device, x, rows, &[(matrix, splits)])[0]);
    let (stride, untouched) = (outputs + GAP, |v: &f32| v.to_bits() == u32::MAX);
    for split in y.chunks_exact(72 * stride) {
        let gaps = split.chunks_exact(stride).all(|row| row[outputs..].iter().all(untouched));
        assert!(gaps && split[rows * stride..].iter().all(untouched), "written where no output is");
    }
    let sum = |row, output| (0..splits).map(|s| y[(s * 72 + row) * stride + output]).sum();
    (0..rows * outputs).map(|i| sum(i / outputs, i % outputs)).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn reference(case: &Case, bytes: &[u8], x: &[f32]) -> Vec<f64> {
    let weights = decoded(case.ty, bytes, case.weight_rows(), case.inputs);
    x.chunks_exact(case.inputs)
        .flat_map(|row| {
            let row = rounded_to_halves(row);
            let dot = |w: &[f32]| w.iter().zip(&row).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            let products: Vec<f64> = weights.chunks_exact(case.inputs).map(dot).collect();
            if !case.paired {
                return products;
            }
            let (gate, up) = products.split_at(case.outputs);
            gate.iter().zip(up).map(|(&gate, up)| silu(gate) * up).collect()
        })
        .collect()
}

/// Products differ from exact ones of the rounded activations by f32 sums alone.
#[test]
fn products_are_exact_but_for_f32_sums() {
    let device = device();
    let mut random = Random(11);
    let mut worst: Vec<(TensorType, f64)> = Vec::new();
    for ty in TensorType::ALL {
        let mut worst_of_type = 0.0f64;
        for (rows, outputs, inputs, splits) in [
            (1, 48, 768, 1),
            (3, 6, 256, 1),
            (8, 40, 1280, 2),
            (16, 32, 512, 1),
            (17, 16, 768, 2),
            (33, 24, 512, 1),
            (72, 32, 768, 1),
        ] {
            let case = Case { ty, outputs, inputs, rows, splits, paired: false };
            let bytes = case.weights(&mut random);
            // Rows of very different size, and a trend that makes sums matter.
            let x: Vec<f32> = (0..rows * inputs)
                .map(|i| (random.unit() + 0.3) * [1.0, 1e-6, 3e5, 40.0][i / inputs % 4] * [1.0, 300.0][i / 256 % 2])
                .collect();
            let (got, expected) = (multiply(&device, &case, &bytes, &x), reference(&case, &bytes, &x));
            for (row, (got, expected)) in got.chunks_exact(outputs).zip(expected.chunks_exact(outputs)).enumerate() {
                let error = relative_error(got, expected);
                worst_of_type = worst_of_type.max(error);
                // The numbers of Q6_K times their scales are rounded to halves.
                let allowed = if ty == TensorType::Q6_K { 3e-4 } else { 4e-6 };
                assert!(
                    error < allowed,
                    "{ty:?} {rows} rows, {outputs} x {inputs}, {splits} splits: row {row} is off by {error:.1e}"
                );
            }
        }
        worst.push((ty, worst_of_type));
    }
    for (ty, error) in worst {
        println!("{:8} worst row error {error:.1e}", ty.name());
    }
}

/// Likewise what a pair makes of two products; outputs that fill no tile, too.
#[test]
fn pairs_are_silu_of_one_product_times_the_other() {
    let device = device();
    let mut random = Random(12);
    for ty in TensorType::ALL {
        let mut worst = 0.0f64;
        for (rows, outputs, inputs) in
            [(1, 40, 768), (8, 27, 512), (9, 27, 1280), (24, 40, 512), (25, 33, 768), (72, 27, 512)]
        {
            let case = Case { ty, outputs, inputs, rows, splits: 1, paired: true };
            let bytes = case.weights(&mut random);
            let x = random.vector(rows * inputs);
            let (got, expected) = (multiply(&device, &case, &bytes, &x), reference(&case, &bytes, &x));
            for (row, (got, expected)) in got.chunks_exact(outputs).zip(expected.chunks_exact(outputs)).enumerate() {
                let error = relative_error(got, expected);
                worst = worst.max(error);
                // The errors of two products, and few outputs that are large.
                let allowed = 3.0 * if ty == TensorType::Q6_K { 3e-4 } else { 4e-6 };
                assert!(error < allowed, "{ty:?} {rows} rows, {outputs} x {inputs}: row {row} is off by {error:.1e}");
            }
        }
        println!("{:8} worst row error {worst:.1e}", ty.name());
    }
}

/// Columns that are no multiple of 256 are padded with zeros.
#[test]
fn narrow_matrices_are_padded() {
    let device = device();
    let mut random = Random(13);
    for ty in [TensorType::Q8_0, TensorType::Q4_0, TensorType::F16, TensorType::F32, TensorType::BF16] {
        let case = Case { ty, outputs: 5, inputs: 352, rows: 2, splits: 1, paired: false };
        let bytes = case.weights(&mut random);
        let x = random.vector(case.rows * case.inputs);
        let error = relative_error(&multiply(&device, &case, &bytes, &x), &reference(&case, &bytes, &x));
        assert!(error < 3e-6, "{ty:?} is off by {error:.1e}");
    }
}

/// A row's bits do not depend on how many rows there are or where it stands, whichever variant of the code that selects.
#[test]
fn a_rows_bits_do_not_depend_on_its_company() {
    let device = device();
    let mut random = Random(17);
    for ty in
        [TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0, TensorType::Q5_K, TensorType::F32, TensorType::IQ4_XS]
    {
        for paired in [false, true] {
            assert_same_alone(&device, Case { ty, outputs: 40, inputs: 1280, rows: 1, splits: 1, paired }, &mut random);
        }
    }
    // So many outputs a block that shared memory holds the products of few rows' pieces, but of more rows only the outputs' sums.
    let inputs = if device.shared_bytes() > 200 << 10 { 5120 } else { 1280 };
    for ty in [TensorType::Q4_K, TensorType::Q6_K] {
        for paired in [false, true] {
            let outputs = device.blocks() as usize * 5 * if paired { 8 } else { 16 } - 3;
            assert_same_alone(&device, Case { ty, outputs, inputs, rows: 1, splits: 1, paired }, &mut random);
        }
    }
}

fn assert_same_alone(device: &Device, case: Case, random: &mut Random) {
    let Case { ty, outputs, inputs, paired, .. } = case;
    let bytes = case.weights(random);
    let row = random.vector(inputs);
    let mut alone: Option<Vec<u32>> = None;
    for (rows, at) in [(1, 0), (5, 4), (9, 8), (24, 11), (30, 29), (72, 40)] {
        let mut x = random.vector(rows * inputs);
        x[at * inputs..(at + 1) * inputs].copy_from_slice(&row);
        let y = multiply(device, &Case { rows, ..case }, &bytes, &x);
        let bits: Vec<u32> = y[at * outputs..(at + 1) * outputs].iter().map(|v| v.to_bits()).collect();
        let alone = alone.get_or_insert_with(|| bits.clone());
        assert_eq!(*alone, bits, "{ty:?}, {outputs} x {inputs}, paired: {paired}: row {at} of {rows}");
    }
}

/// The same bits from another number of blocks and another size of shared memory.
#[test]
fn bits_do_not_depend_on_the_device() {
    let mut random = Random(19);
    for (ty, paired) in [(TensorType::Q4_K, false), (TensorType::Q6_K, false), (TensorType::Q4_K, true)] {
        let case = Case { ty, outputs: 100, inputs: 2304, rows: 19, splits: 1, paired };
        let bytes = case.weights(&mut random);
        let x = random.vector(case.rows * case.inputs);
        let bits = |blocks, shared| {
            let y = multiply(&host(blocks, shared), &case, &bytes, &x);
            y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let first = bits(1, 220 << 10);
        assert_eq!(first, bits(2, 99 << 10), "{ty:?}");
        assert_eq!(first, bits(5, 140 << 10), "{ty:?}");
    }
}

/// What a pair leaves to be packed has the bits that its two matrices alone and the pack op's silu give, for decode rows and for a
/// prompt's.
#[test]
fn a_pair_is_what_its_matrices_make() {
    let device = device();
    let mut random = Random(37);
    let all = [TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0, TensorType::F32];
    for (prompt, rows, outputs, inputs) in
        [(false, 1, 40, 768), (false, 25, 28, 1280), (true, 64, 40, 512), (true, 130, 28, 768), (true, 5, 276, 256)]
    {
        for ty in all {
            let case = Case { ty, outputs, inputs, rows, splits: 1, paired: true };
            let bytes = case.weights(&mut random);
            let x = random.vector(rows * inputs);
            let (gate, up) = bytes.split_at(bytes.len() / 2);
            let (pair, gate, up) = (
                case.upload(&device, &bytes),
                upload(&device, ty, gate, outputs, inputs),
                upload(&device, ty, up, outputs, inputs),
            );
            let [paired, two] =
                [&[pair.1][..], &[gate.1, up.1]].map(|matrices| activated(&device, prompt, rows, &x, matrices));
            assert!(paired.0 == two.0, "{ty:?}, {rows} rows, {outputs} x {inputs}, prompt: {prompt}");
            // A prompt's rows and weights are rounded to halves otherwise; here it is the place of each number that counts.
            let error = relative_error(&paired.1, &reference(&case, &bytes, &x));
            assert!(error < 2e-3, "{ty:?}, {rows} rows, {outputs} x {inputs}, prompt: {prompt}: off by {error:.1e}");
        }
    }
}

/// Packs rows, multiplies them by a pair or by two matrices, and packs `silu(a) * b`. Returns the packed bytes, and of a pair the
/// numbers that were packed.
fn activated(device: &Device, prompt: bool, rows: usize, x: &[f32], matrices: &[DeviceMatrix]) -> (Vec<u8>, Vec<f32>) {
    let (outputs, inputs) = (matrices[0].rows, matrices[0].columns);
    let bytes = if prompt { prompt_row_bytes } else { fragment_bytes };
    let (pack, matmul) =
        if prompt { (OpKind::PackPrompt, OpKind::MatmulPrompt) } else { (OpKind::Pack, OpKind::Matmul) };
    let table = plain_table(device, rows as u32, 0);
    let x = upload_f32(device, x);
    let (input, output) =
        (device.allocate(bytes(rows, inputs)).unwrap(), device.allocate(bytes(rows, outputs)).unwrap());
    output.write(0, &vec![0; output.len()]).unwrap();
    let y = device.allocate(2 * rows * outputs * 4).unwrap();
    y.write(0, &vec![0xff; y.len()]).unwrap();
    let at = |i: usize| y.address() + (i * rows * outputs * 4) as u64;
    let mut args =
        MatmulArgs { x: input.address(), inputs: inputs as u32, jobs: matrices.len() as u32, ..MatmulArgs::default() };
    for (i, (matrix, job)) in matrices.iter().zip(&mut args.job).enumerate() {
        *job = matrix.job(at(i), 1, rows);
    }
    let products = if matrices.len() == 2 {
        InputRows { gate: at(0), gate_stride: outputs as u32, ..InputRows::plain(at(1), outputs) }
    } else {
        InputRows::plain(at(0), outputs)
    };
    let mut program = ProgramBuilder::default();
    program
        .then(pack, PackArgs { from: InputRows::plain(x.address(), inputs), to: input.address(), rows: 0 })
        .then(matmul, args)
        .then(pack, PackArgs { from: products, to: output.address(), rows: 0 });
    program.finish(device).unwrap().run(&table).unwrap();
    let mut packed = vec![0; output.len()];
    output.read(0, &mut packed).unwrap();
    let y = download_f32(&y);
    let (first, second) = y.split_at(rows * outputs);
    assert!(matrices.len() == 2 || second.iter().all(|v| v.to_bits() == u32::MAX), "written past the end");
    (packed, first.to_vec())
}
