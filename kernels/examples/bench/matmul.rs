//! Products of weights and rows: the decode step's and the prompt's.

use anyhow::Result;
use openjet_engine::quant::TensorType;
use openjet_kernels::device::Buffer;
use openjet_kernels::program::{
    DeviceMatrix, InputRows, MatmulArgs, OpKind, PackArgs, fragment_bytes, prompt_row_bytes,
};
use openjet_kernels::repack::{TILE_ROWS, WeightType, repack, repacked_bytes};
use openjet_kernels::{PROMPT_ROWS, splits};

use crate::Bench;
use crate::common::{Random, plain_table, random_weights, upload_f32};
use crate::report::Measured;
use crate::shapes::Shapes;

/// Rows of a decode step: one agent to eight with eight drafts.
const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 24, 48, 72];
const PROMPT: [usize; 3] = [64, 256, PROMPT_ROWS];

/// Matrices that are multiplied with one input in one op.
struct Group {
    name: &'static str,
    outputs: Vec<usize>,
    inputs: usize,
    /// Its output goes to the residual stream, so the inputs are cut into runs.
    split: bool,
    /// Two matrices of so many outputs as a pair, whose silu the matmul applies.
    paired: bool,
}

impl Group {
    fn splits(&self) -> usize {
        if self.split { splits(self.outputs[0], self.inputs) } else { 1 }
    }

    /// Rows of the device's matrices. Outputs are multiples of 8, so tiles of a pair have no row to spare.
    fn matrices(&self) -> impl Iterator<Item = usize> {
        self.outputs.iter().map(|outputs| outputs * if self.paired { 2 } else { 1 })
    }

    fn bytes(&self, ty: TensorType) -> usize {
        self.matrices().map(|rows| repacked_bytes(ty, rows, self.inputs)).sum()
    }

    fn weights(&self) -> usize {
        self.matrices().sum::<usize>() * self.inputs
    }
}

fn groups(shapes: &Shapes) -> Vec<Group> {
    let Shapes { hidden, ffn, vocab, heads, kv_heads, value_heads, .. } = *shapes;
    let group = |name, outputs: &[usize], inputs, split| Group {
        name,
        outputs: outputs.to_vec(),
        inputs,
        split,
        paired: false,
    };
    vec![
        Group { paired: true, ..group("gate and up", &[ffn], hidden, false) },
        group("down", &[hidden], ffn, true),
        group("DeltaNet in", &[shapes.channels(), shapes.inner(), value_heads, value_heads], hidden, false),
        group("attention in", &[2 * heads * 256, kv_heads * 256, kv_heads * 256], hidden, false),
        group("mixer out", &[hidden], shapes.inner(), true),
        group("head", &[vocab], hidden, false),
    ]
}

/// Tiles of a matrix of random numbers: 64 outputs, again and again.
fn tiles(ty: TensorType, outputs: usize, inputs: usize, random: &mut Random) -> Vec<u8> {
    let bytes = random_weights(ty, 64, inputs, random);
    let mut some = vec![0; repacked_bytes(ty, 64, inputs)];
    repack(ty, &bytes, inputs, 0..64 / TILE_ROWS, &mut some);
    let mut all = some.repeat(outputs.div_ceil(64));
    all.truncate(repacked_bytes(ty, outputs, inputs));
    all
}

/// All cases, for every type where a step has the most to do, for some types elsewhere.
pub(crate) fn decode(bench: &mut Bench<'_>) -> Result<()> {
    let some = [TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0];
    for (i, group) in groups(&bench.shapes).iter().enumerate() {
        let all = if i < 2 { &TensorType::ALL[..] } else { &some };
        for &ty in bench.effort.choose(all, &some, &some[..1]) {
            measure(bench, group, ty, bench.effort.choose(&ROWS, &[1, 8, 24], &[9]), false)?;
        }
    }
    Ok(())
}

/// Prompts: every matrix but the head, which reads a prompt's last row alone.
pub(crate) fn prompt(bench: &mut Bench<'_>) -> Result<()> {
    let some = [TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0];
    for (i, group) in groups(&bench.shapes).iter().enumerate().take(5) {
        let all = if i == 0 { &TensorType::ALL[..] } else { &some };
        for &ty in bench.effort.choose(all, &some, &some[..1]) {
            measure(bench, group, ty, bench.effort.choose(&PROMPT, &[PROMPT_ROWS], &[64]), true)?;
        }
    }
    Ok(())
}

fn measure(bench: &mut Bench<'_>, group: &Group, ty: TensorType, rows: &[usize], prompt: bool) -> Result<()> {
    let mut random = Random(29);
    let (device, inputs, splits) = (bench.chain.device, group.inputs, group.splits());
    // So many copies that none is left in a cache when its turn comes again.
    let copies = bench.cold_bytes / group.bytes(ty) + 1;
    let tiles: Vec<Vec<u8>> = group.matrices().map(|n| tiles(ty, n, inputs, &mut random)).collect();
    let copies: Vec<Vec<Buffer>> = (0..copies)
        .map(|_| tiles.iter().map(|tiles| Ok(device.upload(tiles)?)).collect::<Result<Vec<_>>>())
        .collect::<Result<_>>()?;
    let most = rows.iter().copied().max().unwrap_or(1);
    let x = upload_f32(device, &random.vector(most * inputs));
    let packed = if prompt { prompt_row_bytes(most, inputs) } else { fragment_bytes(most, inputs) };
    let packed = device.allocate(packed)?;
    let y: Vec<Buffer> =
        group.outputs.iter().map(|&n| Ok(device.allocate(splits * most * n * 4)?)).collect::<Result<_>>()?;
    for &rows in rows {
        let table = plain_table(device, rows as u32, 0);
        let pack = PackArgs { from: InputRows::plain(x.address(), inputs), to: packed.address(), rows: 0 };
        let (pack_kind, kind) =
            if prompt { (OpKind::PackPrompt, OpKind::MatmulPrompt) } else { (OpKind::Pack, OpKind::Matmul) };
        let mut once = openjet_kernels::program::ProgramBuilder::default();
        once.then(pack_kind, pack);
        once.finish(device)?.run(&table)?;
        let us = bench.chain.time(&table, |i, program| {
            let mut args = MatmulArgs {
                x: packed.address(),
                inputs: inputs as u32,
                jobs: group.outputs.len() as u32,
                ..MatmulArgs::default()
            };
            let matrices = copies[i % copies.len()].iter().zip(&y).zip(&group.outputs);
            for (job, ((weights, y), &outputs)) in args.job.iter_mut().zip(matrices) {
                let (address, ty, paired) = (weights.address(), WeightType::of(ty), group.paired);
                let matrix = DeviceMatrix { address, ty, rows: outputs, columns: inputs, paired };
                *job = matrix.job(y.address(), splits, most);
            }
            program.then(kind, args);
        })?;
        let limits = bench.limits.as_ref();
        let flops = 2.0 * (rows * group.weights()) as f64;
        let what = format!("{ty} {}", group.name);
        let measured = Measured::new(if prompt { "prompt" } else { "matmul" }, what, rows, us);
        let measured = measured.bytes(group.bytes(ty) as f64, limits).flops(flops, limits);
        bench.add(measured);
    }
    Ok(())
}
