//! The recurrent layers: a decode step, and a prompt's pass.

use anyhow::Result;
use openjet_engine::step::{Segment, SegmentKind};
use openjet_kernels::PROMPT_ROWS;
use openjet_kernels::args::{DeltaArgs, DeltaLayout, STATE_DIM, SlotState, TAPS};
use openjet_kernels::device::Buffer;
use openjet_kernels::program::OpKind;
use openjet_kernels::table::{Part, TableBuilder};

use crate::Bench;
use crate::common::{Random, upload_f32, upload_u32};
use crate::report::Measured;

/// Rows of one slot that its state has room for.
const SEGMENT_ROWS: u32 = 24;

/// All cases.
pub(crate) fn all(bench: &mut Bench<'_>) -> Result<()> {
    let all = [(1, 1), (1, 3), (1, 5), (4, 1), (4, 3), (8, 1), (8, 3)];
    for &(agents, rows) in bench.effort.choose(&all, &[(1, 1), (4, 3)], &[(2, 3)]) {
        measure(bench, agents, rows, false)?;
    }
    for &rows in bench.effort.choose(&[64, PROMPT_ROWS], &[PROMPT_ROWS], &[64]) {
        measure(bench, 1, rows, true)?;
    }
    Ok(())
}

fn measure(bench: &mut Bench<'_>, agents: usize, rows: usize, prompt: bool) -> Result<()> {
    let (device, shapes) = (bench.chain.device, bench.shapes);
    let layout = DeltaLayout {
        key_heads: shapes.key_heads as u32,
        value_heads: shapes.value_heads as u32,
        rows: SEGMENT_ROWS,
        reserved: 0,
    };
    let tokens = vec![1; rows];
    let kind = if prompt { SegmentKind::Prompt } else { SegmentKind::Decode };
    let segments: Vec<Segment<'_>> = (0..agents)
        .map(|slot| Segment { slot, position: 64, tokens: &tokens, pages: &[0], kind, sample: None })
        .collect();
    let listed: Vec<_> = segments.iter().map(|segment| (segment, Part::Rows)).collect();
    let table = upload_u32(device, TableBuilder::default().build(&listed));
    // In the middle of a text all rows of the step before have still to be taken in.
    let pending = SlotState { pending: if prompt { 0 } else { rows as u32 }, ..SlotState::default() };
    let slots = device.upload(bytemuck::cast_slice(&vec![pending; agents]))?;
    let layers = shapes.delta_layers;
    let state = device.allocate(agents * layers * layout.floats() * 4)?;
    let (mut random, count) = (Random(41), agents * rows);
    let mut floats = |n: usize| -> Buffer { upload_f32(device, &random.vector(n)) };
    let (channels, inner, value_heads) = (shapes.channels(), shapes.inner(), shapes.value_heads);
    let qkv = floats(count * channels);
    let (alpha, beta) = (floats(count * value_heads), floats(count * value_heads));
    let (conv, dt_bias) = (floats(channels * TAPS), floats(value_heads));
    let a = upload_f32(device, &vec![-0.5; value_heads]);
    let (mixed, out) = (device.allocate(count * channels * 4)?, device.allocate(count * inner * 4)?);
    let chunks = device.allocate(if prompt { 4 * layout.chunk_floats(rows, 1) } else { 4 })?;
    let args = |i: usize| DeltaArgs {
        table: table.address(),
        slots: slots.address(),
        state: state.address() + (i % layers * layout.floats() * 4) as u64,
        slot_stride: (layers * layout.floats()) as u64,
        qkv: qkv.address(),
        alpha: alpha.address(),
        beta: beta.address(),
        mixed: mixed.address(),
        out: out.address(),
        conv: conv.address(),
        dt_bias: dt_bias.address(),
        a: a.address(),
        chunks: chunks.address(),
        layout,
        qkv_width: channels as u32,
        gate_width: value_heads as u32,
        out_width: inner as u32,
        reserved: 0,
    };
    let parts: &[(&str, OpKind)] = if prompt {
        &[
            ("prompt: convolve", OpKind::DeltanetConvolvePrompt),
            ("prompt: chunks", OpKind::DeltanetChunks),
            ("prompt: scan", OpKind::DeltanetScan),
            ("prompt: finish", OpKind::DeltanetFinish),
        ]
    } else {
        &[("decode", OpKind::DeltanetDecode), ("keep", OpKind::DeltanetKeep)]
    };
    let limits = bench.limits;
    // The memory is read and written once; the convolution's inputs are little beside it.
    let bytes = (agents * value_heads * STATE_DIM * STATE_DIM * 8) as f64;
    for (i, &(what, kind)) in parts.iter().enumerate() {
        // What the parts before leave behind is there.
        let mut before = openjet_kernels::program::ProgramBuilder::default();
        parts[..i].iter().for_each(|&(_, kind)| {
            before.then(kind, args(0));
        });
        if i > 0 {
            before.finish(device)?.run(&table)?;
        }
        let us = bench.chain.time(&table, |i, program| {
            program.then(kind, args(i));
        })?;
        let measured = Measured::new("DeltaNet", what, rows, us).at(agents, None);
        let holds_memory = matches!(kind, OpKind::DeltanetDecode | OpKind::DeltanetScan);
        bench.add(if holds_memory { measured.bytes(bytes, limits.as_ref()) } else { measured });
    }
    Ok(())
}
