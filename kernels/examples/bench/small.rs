//! What is small: the barrier, norms, packing, embedding, sampling.

use anyhow::Result;
use openjet_engine::quant::TensorType;
use openjet_engine::sampling::SamplingParams;
use openjet_engine::step::{SampleSpec, Segment, SegmentKind};
use openjet_kernels::args::{
    CANDIDATE_BYTES, NO_DRAFT, PICK_BYTES, SLICE, SLICE_LIST, STATS_BYTES, SampleArgs, SlotState,
};
use openjet_kernels::program::{EmbedArgs, InputRows, NormArgs, OpKind, PackArgs, fragment_bytes, prompt_row_bytes};
use openjet_kernels::table::{Part, Row, StepResult, TableBuilder};
use openjet_kernels::{PROMPT_ROWS, splits};

use crate::Bench;
use crate::common::{Random, plain_table, random_weights, upload, upload_f32, upload_u32};
use crate::report::Measured;

/// Deepest draft that the sampler's buffers have room for.
const DRAFTS: usize = 4;

/// All cases.
pub(crate) fn all(bench: &mut Bench<'_>) -> Result<()> {
    barrier(bench)?;
    let rows = bench.effort.choose(&[1, 4, 8, 24, 72], &[1, 24], &[9]);
    for &rows in rows {
        norm(bench, rows, false)?;
        pack(bench, rows, false)?;
        embed(bench, rows)?;
    }
    let prompt = bench.effort.choose(&[PROMPT_ROWS], &[PROMPT_ROWS], &[64])[0];
    norm(bench, prompt, true)?;
    pack(bench, prompt, true)?;
    for &rows in &rows[..rows.len().min(4)] {
        for (what, params) in [
            ("greedy", SamplingParams::default()),
            ("T 0.7", SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.8, ..SamplingParams::default() }),
        ] {
            sample(bench, rows, what, &params)?;
        }
    }
    Ok(())
}

/// An op without rows: the walk to the next op, and the barrier.
fn barrier(bench: &mut Bench<'_>) -> Result<()> {
    let table = plain_table(bench.chain.device, 0, 0);
    let nothing = PackArgs { from: InputRows::plain(0, 256), ..PackArgs::default() };
    let us = bench.chain.time(&table, |_, program| {
        program.then(OpKind::Pack, nothing);
    })?;
    bench.add(Measured::new("walk", "an op without work, and its barrier", 0, us));
    let us = bench.chain.time(&table, |_, program| {
        program.along(OpKind::Pack, nothing).then(OpKind::Pack, nothing);
    })?;
    bench.add(Measured::new("walk", "two such ops, one barrier", 0, us));
    Ok(())
}

/// Residual sum and the next matmul's input; for a prompt with the norm.
fn norm(bench: &mut Bench<'_>, rows: usize, prompt: bool) -> Result<()> {
    let (device, hidden) = (bench.chain.device, bench.shapes.hidden);
    let parts = splits(hidden, bench.shapes.ffn);
    let mut random = Random(43);
    let x = upload_f32(device, &random.vector(rows * hidden));
    let summands = device.allocate(parts * rows * hidden * 4)?;
    let weight = upload_f32(device, &random.vector(hidden));
    let packed = if prompt { prompt_row_bytes(rows, hidden) } else { fragment_bytes(rows, hidden) };
    let packed = device.allocate(packed)?;
    let squares = device.allocate(rows * hidden.div_ceil(256) * 4)?;
    let args = NormArgs {
        x: x.address(),
        parts: summands.address(),
        weight: weight.address(),
        fragments: packed.address(),
        squares: squares.address(),
        split_stride: (rows * hidden) as u64,
        splits: parts as u32,
        width: hidden as u32,
        stride: hidden as u32,
        part_stride: hidden as u32,
        normed_stride: hidden as u32,
        eps: 1e-6,
        prompt: u32::from(prompt),
        ..NormArgs::default()
    };
    let table = plain_table(device, rows as u32, 0);
    let us = bench.chain.time(&table, |_, program| {
        program.then(if prompt { OpKind::Norm } else { OpKind::Residual }, args);
    })?;
    let name = if prompt { "norm" } else { "residual" };
    bench.add(Measured::new(name, format!("{hidden} wide, {parts} parts"), rows, us));
    Ok(())
}

/// Rows into the next matmul's input: the FFN's as they are, and `DeltaNet`'s, normed by heads and gated.
fn pack(bench: &mut Bench<'_>, rows: usize, prompt: bool) -> Result<()> {
    let (device, ffn, inner) = (bench.chain.device, bench.shapes.ffn, bench.shapes.inner());
    let mut random = Random(47);
    let mut floats = |n: usize| upload_f32(device, &random.vector(n));
    let (x, gate, norm) = (floats(rows * ffn.max(inner)), floats(rows * inner), floats(128));
    let packed = if prompt { prompt_row_bytes } else { fragment_bytes }(rows, ffn.max(inner));
    let packed = device.allocate(packed)?;
    let table = plain_table(device, rows as u32, 0);
    let normed = InputRows {
        gate: gate.address(),
        norm: norm.address(),
        gate_stride: inner as u32,
        eps: 1e-6,
        ..InputRows::plain(x.address(), inner)
    };
    for (what, width, from) in
        [("as they are", ffn, InputRows::plain(x.address(), ffn)), ("normed and gated", inner, normed)]
    {
        let args = PackArgs { from, to: packed.address(), rows: 0 };
        let us = bench.chain.time(&table, |_, program| {
            program.then(if prompt { OpKind::PackPrompt } else { OpKind::Pack }, args);
        })?;
        bench.add(Measured::new("pack", format!("{what}, {width} wide"), rows, us));
    }
    Ok(())
}

fn embed(bench: &mut Bench<'_>, rows: usize) -> Result<()> {
    let (device, hidden) = (bench.chain.device, bench.shapes.hidden);
    let mut random = Random(53);
    let bytes = random_weights(TensorType::Q4_K, 64, hidden, &mut random);
    let (_weights, matrix) = upload(device, TensorType::Q4_K, &bytes, 64, hidden);
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i % 64).collect();
    let tokens = upload_u32(device, &tokens);
    let x = device.allocate(rows * hidden * 4)?;
    let args = EmbedArgs {
        weights: matrix.address,
        tokens: tokens.address(),
        rows: 0,
        x: x.address(),
        ty: matrix.ty as u32,
        width: hidden as u32,
        stride: hidden as u32,
        token_stride: 1,
    };
    let table = plain_table(device, rows as u32, 0);
    let us = bench.chain.time(&table, |_, program| {
        program.then(OpKind::Embed, args);
    })?;
    bench.add(Measured::new("embed", format!("Q4_K, {hidden} wide"), rows, us));
    Ok(())
}

/// From logits to tokens, each row an agent's.
fn sample(bench: &mut Bench<'_>, rows: usize, what: &str, params: &SamplingParams) -> Result<()> {
    let (device, vocab, hidden_width) = (bench.chain.device, bench.shapes.vocab, bench.shapes.hidden);
    let token = [1];
    let segments: Vec<Segment<'_>> = (0..rows)
        .map(|slot| Segment {
            slot,
            position: 64,
            tokens: &token,
            pages: &[0, 1],
            kind: SegmentKind::Decode,
            sample: Some(SampleSpec {
                params,
                prompt: &token,
                output: &token,
                end_tokens: &[],
                budget: 100,
                masks: &[],
                draft_depth: 0,
            }),
        })
        .collect();
    let listed: Vec<_> = segments.iter().map(|segment| (segment, Part::Rows)).collect();
    let table = upload_u32(device, TableBuilder::default().build(&listed));
    let mut random = Random(59);
    let some: Vec<f32> = random.vector(vocab).iter().map(|x| 8.0 * x * x * x).collect();
    let logits = upload_f32(device, &some.repeat(rows));
    let slices = vocab.div_ceil(SLICE);
    let adjusted = device.allocate(rows * vocab * 4)?;
    let stats = device.allocate(rows * slices * STATS_BYTES)?;
    let candidates = device.allocate(rows * slices * SLICE_LIST * CANDIDATE_BYTES)?;
    let picks = device.allocate(rows * PICK_BYTES)?;
    let slots = device.allocate(rows * size_of::<SlotState>())?;
    let result = device.allocate(size_of::<StepResult>())?;
    let hidden = upload_f32(device, &random.vector(rows * hidden_width));
    let pending_hidden = device.allocate(rows * hidden_width * 4)?;
    let draft_hidden = device.allocate(rows * hidden_width * 4)?;
    let draft_rows = device.allocate(rows * size_of::<Row>())?;
    let args = SampleArgs {
        table: table.address(),
        logits: logits.address(),
        adjusted: adjusted.address(),
        stats: stats.address(),
        candidates: candidates.address(),
        picks: picks.address(),
        slots: slots.address(),
        result: result.address(),
        hidden: hidden.address(),
        pending_hidden: pending_hidden.address(),
        draft_hidden: draft_hidden.address(),
        draft_rows: draft_rows.address(),
        usable: 0,
        vocab: vocab as u32,
        draft: NO_DRAFT,
        draft_max: DRAFTS as u32,
        hidden_width: hidden_width as u32,
    };
    let ops = [
        ("adjust", OpKind::SampleAdjust),
        ("weigh", OpKind::SampleWeigh),
        ("pick", OpKind::SamplePick),
        ("accept", OpKind::SampleAccept),
    ];
    let mut first = openjet_kernels::program::ProgramBuilder::default();
    ops.iter().for_each(|&(_, kind)| {
        first.then(kind, args);
    });
    first.finish(device)?.run(&table)?;
    for (op, kind) in ops {
        let us = bench.chain.time(&table, |_, program| {
            program.then(kind, args);
        })?;
        bench.add(Measured::new("sample", format!("{what}: {op}"), rows, us));
    }
    Ok(())
}
