//! Attention over contexts of 1K to 256K tokens.

use anyhow::Result;
use openjet_engine::step::{PAGE_TOKENS, PageId, Segment, SegmentKind};
use openjet_kernels::PROMPT_ROWS;
use openjet_kernels::args::{AttentionArgs, HEAD_DIM, KvFormat, KvPool};
use openjet_kernels::device::Buffer;
use openjet_kernels::program::{OpKind, ProgramBuilder};
use openjet_kernels::table::{Part, TableBuilder};

use crate::Bench;
use crate::common::{Random, upload_f32, upload_u32};
use crate::report::Measured;

/// Most bytes of cells: enough for eight agents at 128K or four at 256K in two layers.
const POOL_BYTES: usize = 10 << 30;
/// Rotary pairs.
const PAIRS: usize = 32;

/// Who attends to what.
#[derive(Clone, Copy)]
struct Case {
    format: KvFormat,
    agents: usize,
    rows: usize,
    context: usize,
    prompt: bool,
}

/// All cases.
pub(crate) fn all(bench: &mut Bench<'_>) -> Result<()> {
    let device = bench.chain.device;
    let pool = device.allocate(POOL_BYTES.min(device.free_bytes()? / 2).min(bench.shapes.longest << 16))?;
    fill(&pool)?;
    let case = |agents, rows, context| Case { format: KvFormat::Q8_0, agents, rows, context, prompt: false };
    let all = [(1, 1), (1, 3), (1, 5), (4, 1), (4, 3), (8, 1), (8, 3)];
    let contexts = bench.shapes.contexts();
    let some: Vec<usize> = contexts.iter().step_by(4).copied().collect();
    let contexts = bench.effort.choose(&contexts, &some, &contexts[..1]);
    for &context in contexts {
        for &(agents, rows) in bench.effort.choose(&all, &all, &[(2, 3)]) {
            measure(bench, &pool, case(agents, rows, context))?;
        }
    }
    for format in [KvFormat::F16, KvFormat::Q4_0] {
        for &context in contexts.iter().filter(|&&context| [1024, 16_384, 131_072].contains(&context)) {
            measure(bench, &pool, Case { format, ..case(1, 1, context) })?;
        }
    }
    for &context in contexts {
        let rows = bench.effort.choose(&[PROMPT_ROWS], &[PROMPT_ROWS], &[64])[0].min(context);
        measure(bench, &pool, Case { prompt: true, ..case(1, rows, context) })?;
    }
    Ok(())
}

/// Numbers that are harmless as integers and as halves: any cell that is read is finite.
fn fill(pool: &Buffer) -> Result<()> {
    let mut random = Random(31);
    let some: Vec<u8> = (0..4 << 20).map(|_| 0x20 + random.below(16) as u8).collect();
    for offset in (0..pool.len()).step_by(some.len()) {
        pool.write(offset, &some[..some.len().min(pool.len() - offset)])?;
    }
    Ok(())
}

fn measure(bench: &mut Bench<'_>, pool: &Buffer, case: Case) -> Result<()> {
    let Case { format, agents, rows, context, prompt } = case;
    let (device, shapes) = (bench.chain.device, bench.shapes);
    let (heads, kv_heads) = (shapes.heads, shapes.kv_heads);
    let (pages, all) = (context.div_ceil(PAGE_TOKENS), agents * context.div_ceil(PAGE_TOKENS));
    let layer_bytes = all * format.page_bytes(1, kv_heads);
    // So many layers that none is left in a cache when its turn comes again.
    let layers = (bench.cold_bytes / layer_bytes + 2).min(pool.len() / layer_bytes);
    if layers == 0 {
        println!("left out: {agents} agents at {context} tokens take {layer_bytes} bytes of cells a layer");
        return Ok(());
    }
    let tokens = vec![1; rows];
    let lists: Vec<Vec<PageId>> =
        (0..agents).map(|a| (0..pages).map(|p| (a * pages + p) as PageId).collect()).collect();
    let kind = if prompt { SegmentKind::Prompt } else { SegmentKind::Decode };
    let position = (context - rows) as u32;
    let segments: Vec<Segment<'_>> = lists
        .iter()
        .enumerate()
        .map(|(slot, pages)| Segment { slot, position, tokens: &tokens, pages, kind, sample: None })
        .collect();
    let listed: Vec<_> = segments.iter().map(|segment| (segment, Part::Rows)).collect();
    let table = upload_u32(device, TableBuilder::default().build(&listed));
    let (mut random, count) = (Random(37), agents * rows);
    let q = upload_f32(device, &random.vector(count * heads * 2 * HEAD_DIM));
    let k = upload_f32(device, &random.vector(count * kv_heads * HEAD_DIM));
    let v = upload_f32(device, &random.vector(count * kv_heads * HEAD_DIM));
    let ones = upload_f32(device, &[1.0; HEAD_DIM]);
    let turns: Vec<f64> = (0..PAIRS).map(|i| 1e7f64.powf(-(i as f64) / PAIRS as f64) / std::f64::consts::TAU).collect();
    let turns = device.upload(bytemuck::cast_slice(&turns))?;
    let queries = device.allocate(count * heads * HEAD_DIM * 2)?;
    let partial = device.allocate(if prompt { 4 } else { 4 * AttentionArgs::partial_floats(count, heads, context) })?;
    let out = device.allocate(count * heads * HEAD_DIM * 4)?;
    let args = AttentionArgs {
        table: table.address(),
        q: q.address(),
        k: k.address(),
        v: v.address(),
        queries: queries.address(),
        partial: partial.address(),
        out: out.address(),
        q_norm: ones.address(),
        k_norm: ones.address(),
        rope_turns: turns.address(),
        pool: KvPool {
            base: pool.address(),
            page_bytes: format.page_bytes(layers, kv_heads) as u64,
            layers: layers as u32,
            kv_heads: kv_heads as u32,
            format: format as u32,
            reserved: 0,
        },
        heads: heads as u32,
        rope_pairs: PAIRS as u32,
        q_width: (heads * 2 * HEAD_DIM) as u32,
        kv_width: (kv_heads * HEAD_DIM) as u32,
        out_width: (heads * HEAD_DIM) as u32,
        splits: AttentionArgs::splits_of(context) as u32,
        rope_scale: 1.0,
        eps: 1e-6,
        ..AttentionArgs::default()
    };
    let layer = |i: usize| AttentionArgs { layer: (i % layers) as u32, ..args };
    let mut prepare = ProgramBuilder::default();
    prepare.then(OpKind::AttentionPrepare, args);
    prepare.finish(device)?.run(&table)?;
    let us = bench.chain.time(&table, |i, program| {
        if prompt {
            program.then(OpKind::AttentionPrompt, layer(i));
        } else {
            program.then(OpKind::AttentionDecode, layer(i)).then(OpKind::AttentionMerge, layer(i));
        }
    })?;
    let limits = bench.limits.as_ref();
    let bytes = (agents * context * format.page_bytes(1, kv_heads)) as f64 / PAGE_TOKENS as f64;
    let seen = context as f64 - if prompt { rows as f64 / 2.0 } else { 0.0 };
    let what = if prompt { format!("{format:?} prompt") } else { format!("{format:?} decode and merge") };
    let measured = Measured::new("attention", what, rows, us).at(agents, Some(context));
    let measured = measured.flops(4.0 * (count * heads * HEAD_DIM) as f64 * seen, limits);
    bench.add(if prompt { measured } else { measured.bytes(bytes, limits) });
    if context == 1024 {
        let us = bench.chain.time(&table, |i, program| {
            program.then(OpKind::AttentionPrepare, layer(i));
        })?;
        bench.add(Measured::new("attention", format!("{format:?} prepare"), rows, us).at(agents, None));
    }
    Ok(())
}
