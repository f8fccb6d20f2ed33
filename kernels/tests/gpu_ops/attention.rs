//! Attention over the paged pool.

use half::f16;
use openjet_engine::quant::{TensorType, dequantize_row, quantize_q4_0, quantize_q8_0};
use openjet_engine::step::{Segment, SegmentKind};
use openjet_kernels::args::{AttentionArgs, HEAD_DIM, KvFormat, KvPool};
use openjet_kernels::program::{InputRows, OpKind, PackArgs, fragment_bytes};
use openjet_kernels::table::{Part, TableBuilder};

use crate::machine::{Machine, Memory, Random, relative_error};

const EPS: f32 = 1e-6;
const PAIRS: usize = 32;

/// One conversation: raw queries with gates, keys and values of all its positions.
struct Talk {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    pages: Vec<u32>,
    len: usize,
}

struct Setup {
    heads: usize,
    kv_heads: usize,
    format: KvFormat,
    first: usize,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    talks: Vec<Talk>,
    pages: usize,
}

fn frequencies() -> Vec<f64> {
    (0..PAIRS).map(|i| 1e7f64.powf(-(i as f64) / PAIRS as f64)).collect()
}

impl Setup {
    fn new(
        heads: usize,
        kv_heads: usize,
        format: KvFormat,
        first: usize,
        lengths: &[usize],
        random: &mut Random,
    ) -> Self {
        let pages: usize = lengths.iter().map(|n| n.div_ceil(64)).sum();
        // Pages of all conversations mixed up, and some that belong to nobody.
        let mut free: Vec<u32> = (0..pages as u32 + 3).collect();
        let talks = lengths
            .iter()
            .map(|&len| Talk {
                q: random.normals(len * heads * 2 * HEAD_DIM, 1.5),
                k: random.normals(len * kv_heads * HEAD_DIM, 2.0),
                v: random.normals(len * kv_heads * HEAD_DIM, 1.0),
                pages: (0..len.div_ceil(64)).map(|_| free.swap_remove(random.below(free.len()))).collect(),
                len,
            })
            .collect();
        let mut weights = || (0..HEAD_DIM).map(|_| 1.0 + 0.3 * random.normal()).collect::<Vec<_>>();
        Self { heads, kv_heads, format, first, q_norm: weights(), k_norm: weights(), talks, pages: pages + 3 }
    }
}

/// Norm and rotation of one head in f64.
fn prepared(x: &[f32], weight: &[f32], position: usize) -> Vec<f64> {
    let squares: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
    let inverse = 1.0 / (squares / HEAD_DIM as f64 + f64::from(EPS)).sqrt();
    let mut y: Vec<f64> = x.iter().zip(weight).map(|(&x, &w)| f64::from(x) * inverse * f64::from(w)).collect();
    for (i, f) in frequencies().iter().enumerate() {
        let (sin, cos) = (position as f64 * f).sin_cos();
        let (a, b) = (y[i], y[i + PAIRS]);
        (y[i], y[i + PAIRS]) = (a * cos - b * sin, a * sin + b * cos);
    }
    y
}

fn hadamard(x: &mut [f64]) {
    let n = x.len();
    let mut half = 1;
    while half < n {
        for start in (0..n).step_by(2 * half) {
            for i in start..start + half {
                (x[i], x[i + half]) = (x[i] + x[i + half], x[i] - x[i + half]);
            }
        }
        half *= 2;
    }
    x.iter_mut().for_each(|v| *v /= (n as f64).sqrt());
}

/// What the pool gives back of a stored vector.
fn stored(x: &mut [f64], format: KvFormat) {
    if format == KvFormat::Q4_0 {
        hadamard(x);
    }
    for block in x.chunks_exact_mut(32) {
        let f: [f32; 32] = std::array::from_fn(|i| block[i] as f32);
        let mut out = [0f32; 32];
        match format {
            KvFormat::F16 => out = f.map(|v| f16::from_f32(v).to_f32()),
            KvFormat::Q8_0 => dequantize_row(TensorType::Q8_0, &quantize_q8_0(&f), &mut out),
            KvFormat::Q4_0 => dequantize_row(TensorType::Q4_0, &quantize_q4_0(&f), &mut out),
        }
        for (b, o) in block.iter_mut().zip(out) {
            *b = f64::from(o);
        }
    }
    if format == KvFormat::Q4_0 {
        hadamard(x);
    }
}

/// Gated outputs of positions `rows` of a conversation: rows x heads x 256.
fn reference(setup: &Setup, talk: &Talk, rows: std::ops::Range<usize>) -> Vec<f64> {
    let (heads, kv_heads) = (setup.heads, setup.kv_heads);
    let mut out = vec![0.0; rows.len() * heads * HEAD_DIM];
    for kv in 0..kv_heads {
        let cell = |raw: &[f32], p: usize| raw[(p * kv_heads + kv) * HEAD_DIM..][..HEAD_DIM].to_vec();
        let keys: Vec<Vec<f64>> = (0..rows.end)
            .map(|p| {
                let mut k = prepared(&cell(&talk.k, p), &setup.k_norm, p);
                stored(&mut k, setup.format);
                k
            })
            .collect();
        let values: Vec<Vec<f64>> = (0..rows.end)
            .map(|p| {
                let mut v: Vec<f64> = cell(&talk.v, p).iter().map(|&v| f64::from(v)).collect();
                stored(&mut v, setup.format);
                v
            })
            .collect();
        for (r, p) in rows.clone().enumerate() {
            for h in kv * heads / kv_heads..(kv + 1) * heads / kv_heads {
                let raw = &talk.q[(p * heads + h) * 2 * HEAD_DIM..][..2 * HEAD_DIM];
                let q = prepared(&raw[..HEAD_DIM], &setup.q_norm, p);
                let scores: Vec<f64> = keys[setup.first..=p]
                    .iter()
                    .map(|k| q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() / 16.0)
                    .collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let out = &mut out[(r * heads + h) * HEAD_DIM..][..HEAD_DIM];
                for (w, v) in weights.iter().zip(&values[setup.first..]) {
                    for (o, v) in out.iter_mut().zip(v) {
                        *o += w / sum * v;
                    }
                }
                for (o, gate) in out.iter_mut().zip(&raw[HEAD_DIM..]) {
                    *o /= 1.0 + (-f64::from(*gate)).exp();
                }
            }
        }
    }
    out
}

struct Device<'a> {
    machine: &'a mut Machine,
    setup: &'a Setup,
    pool: Memory,
    constants: [Memory; 3],
}

impl<'a> Device<'a> {
    fn new(machine: &'a mut Machine, setup: &'a Setup) -> Self {
        let turns: Vec<f64> = frequencies().iter().map(|f| f / std::f64::consts::TAU).collect();
        let constants = [machine.upload(&setup.q_norm), machine.upload(&setup.k_norm), machine.upload(&turns)];
        // Two layers, of which the second is used; cells that nobody wrote hold large finite numbers.
        let bytes = setup.pages * setup.format.page_bytes(2, setup.kv_heads);
        let pool = machine.alloc(bytes);
        machine.write(pool, &vec![0x5bu8; bytes]);
        Self { machine, setup, pool, constants }
    }

    /// Runs rows `from..to` of conversations on a grid; the results in the order given.
    fn run(&mut self, parts: &[(usize, std::ops::Range<usize>)], prompt: bool, blocks: u32) -> Vec<Vec<f32>> {
        let setup = self.setup;
        let tokens: Vec<Vec<u32>> = parts.iter().map(|(_, rows)| vec![1; rows.len()]).collect();
        let segments: Vec<Segment<'_>> = parts
            .iter()
            .zip(&tokens)
            .map(|((talk, rows), tokens)| Segment {
                slot: *talk,
                position: rows.start as u32,
                tokens,
                pages: &setup.talks[*talk].pages,
                kind: if prompt { SegmentKind::Prompt } else { SegmentKind::Decode },
                sample: None,
            })
            .collect();
        let listed: Vec<_> = segments.iter().map(|s| (s, Part::Rows)).collect();
        let table = self.machine.upload(TableBuilder::default().build(&listed));
        let count: usize = tokens.iter().map(Vec::len).sum();
        let gather = |raw: fn(&Talk) -> &Vec<f32>, width: usize| -> Vec<f32> {
            let rows = parts.iter().flat_map(|(talk, rows)| rows.clone().map(move |p| (*talk, p)));
            rows.flat_map(|(talk, p)| raw(&setup.talks[talk])[p * width..(p + 1) * width].iter().copied()).collect()
        };
        let (heads, kv_heads) = (setup.heads, setup.kv_heads);
        let q = self.machine.upload(&gather(|t| &t.q, heads * 2 * HEAD_DIM));
        let k = self.machine.upload(&gather(|t| &t.k, kv_heads * HEAD_DIM));
        let v = self.machine.upload(&gather(|t| &t.v, kv_heads * HEAD_DIM));
        let context = parts.iter().map(|(_, rows)| rows.end).max().unwrap();
        let queries = self.machine.alloc(count * heads * HEAD_DIM * 2);
        let partial_floats = if prompt { 1 } else { AttentionArgs::partial_floats(count, heads, context) };
        let partial = self.machine.floats(partial_floats);
        let out = self.machine.floats(count * heads * HEAD_DIM);
        let at = |memory| self.machine.address(memory);
        let args = AttentionArgs {
            table: at(table),
            draft_rows: 0,
            q: at(q),
            k: at(k),
            v: at(v),
            queries: at(queries),
            partial: at(partial),
            out: at(out),
            fragments: 0,
            q_norm: at(self.constants[0]),
            k_norm: at(self.constants[1]),
            rope_turns: at(self.constants[2]),
            pool: KvPool {
                base: at(self.pool),
                page_bytes: setup.format.page_bytes(2, kv_heads) as u64,
                layers: 2,
                kv_heads: kv_heads as u32,
                format: setup.format as u32,
                reserved: 0,
            },
            cells_map: 0,
            layer: 1,
            heads: heads as u32,
            rope_pairs: PAIRS as u32,
            q_width: (heads * 2 * HEAD_DIM) as u32,
            kv_width: (kv_heads * HEAD_DIM) as u32,
            out_width: (heads * HEAD_DIM) as u32,
            first_position: setup.first as u32,
            splits: AttentionArgs::splits_of(context) as u32,
            draft: 0,
            cells_only: 0,
            rope_scale: 1.0,
            eps: EPS,
        };
        let kinds: &[OpKind] = if prompt {
            &[OpKind::AttentionPrepare, OpKind::AttentionPrompt]
        } else {
            &[OpKind::AttentionPrepare, OpKind::AttentionDecode, OpKind::AttentionMerge]
        };
        self.machine.run(table, blocks, |program| {
            for &kind in kinds {
                program.then(kind, args);
            }
        });
        let all: Vec<f32> = self.machine.read(out, count * heads * HEAD_DIM);
        let width = heads * HEAD_DIM;
        if !prompt {
            // The same as the input of the matmul that follows.
            let bytes = fragment_bytes(count, width);
            let [packed, merged] = [0, 1].map(|_| {
                let memory = self.machine.alloc(bytes);
                self.machine.write(memory, &vec![0u8; bytes]);
                memory
            });
            let [a, fragments, to] = [out, packed, merged].map(|memory| self.machine.address(memory));
            let pack = PackArgs { from: InputRows::plain(a, width), to: fragments, rows: 0 };
            self.machine.run(table, blocks, |program| {
                program.then(OpKind::Pack, pack);
                program.then(OpKind::AttentionMerge, AttentionArgs { fragments: to, ..args });
            });
            let [packed, merged] = [packed, merged].map(|memory| self.machine.read::<u8>(memory, bytes));
            assert!(packed == merged, "the merged rows differ from the packed ones");
        }
        let mut at = 0;
        let split = parts.iter().map(|(_, rows)| {
            at += rows.len() * width;
            all[at - rows.len() * width..at].to_vec()
        });
        split.collect()
    }
}

/// Errors come from queries, weights and decoded cells rounded to f16.
const TOLERANCE: f64 = 1.5e-3;

fn check(
    machine: &mut Machine,
    heads: usize,
    kv_heads: usize,
    format: KvFormat,
    first: usize,
    prompts: &[(usize, usize)],
) {
    let mut random = Random::new((heads * 100 + kv_heads * 10 + first) as u64 ^ format as u64);
    let lengths: Vec<usize> = prompts.iter().map(|(prompt, drafts)| prompt + drafts).collect();
    let setup = Setup::new(heads, kv_heads, format, first, &lengths, &mut random);
    let mut device = Device::new(machine, &setup);

    // Prompts, cut at a multiple of 64 where they are long enough; then again in other company.
    let first_part = |prompt: usize| if prompt > 128 { prompt / 128 * 64 } else { prompt };
    let parts: Vec<_> = prompts.iter().enumerate().map(|(i, p)| (i, 0..first_part(p.0))).collect();
    let rest: Vec<_> = prompts
        .iter()
        .enumerate()
        .filter(|(_, p)| first_part(p.0) < p.0)
        .map(|(i, p)| (i, first_part(p.0)..p.0))
        .collect();
    let mut outputs = device.run(&parts, true, 7);
    if !rest.is_empty() {
        for ((i, _), tail) in rest.iter().zip(device.run(&rest, true, 5)) {
            outputs[*i].extend(tail);
        }
    }
    for (i, prompt) in prompts.iter().enumerate() {
        let shown = prompt.0.saturating_sub(40).max(first)..prompt.0;
        let width = heads * HEAD_DIM;
        let error = relative_error(&outputs[i][shown.start * width..], &reference(&setup, &setup.talks[i], shown));
        println!("prompt of {} tokens, {format:?}, {heads}/{kv_heads}: error {error:.1e}", prompt.0);
        assert!(error < TOLERANCE, "prompt of {} tokens, {format:?}, {heads}/{kv_heads}: error {error:e}", prompt.0);
        if first == 0 {
            let alone = device.run(&[(i, 0..prompt.0)], true, 2);
            assert!(
                bits(&alone[0]) == bits(&outputs[i]),
                "a prompt of {} tokens depends on its chunks or company",
                prompt.0
            );
        }
    }

    // Decode rows of all conversations at once, in reverse order, one at a time, and on other grids. How many cells are summed up at
    // a time does depend on shared memory here, so all grids are odd.
    let parts: Vec<_> = prompts.iter().enumerate().map(|(i, p)| (i, p.0..p.0 + p.1)).collect();
    let together = device.run(&parts, false, 7);
    for (i, part) in parts.iter().enumerate() {
        let error = relative_error(&together[i], &reference(&setup, &setup.talks[i], part.1.clone()));
        println!("rows {:?}, {format:?}, {heads}/{kv_heads}: error {error:.1e}", part.1);
        assert!(error < TOLERANCE, "rows {:?}, {format:?}, {heads}/{kv_heads}: error {error:e}", part.1);
        let alone = device.run(std::slice::from_ref(part), false, 1 + 2 * i as u32);
        assert!(bits(&alone[0]) == bits(&together[i]), "rows {:?} depend on their company", part.1);
        for (r, p) in part.1.clone().enumerate() {
            let single = device.run(&[(part.0, p..p + 1)], false, 5);
            let width = heads * HEAD_DIM;
            assert!(
                bits(&single[0]) == bits(&together[i][r * width..(r + 1) * width]),
                "row {p} depends on other rows"
            );
        }
    }
    let reversed: Vec<_> = parts.iter().rev().cloned().collect();
    let again = device.run(&reversed, false, 13);
    assert!(again.iter().rev().zip(&together).all(|(a, b)| bits(a) == bits(b)), "rows depend on their order");
    let all = together.iter().flatten();
    assert!(all.clone().any(|x| *x != 0.0) && all.clone().all(|x| x.is_finite()));
    for (i, talk) in setup.talks.iter().enumerate() {
        assert!(talk.len >= prompts[i].0 + prompts[i].1);
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn f16_cells() {
    for machine in &mut Machine::all() {
        check(machine, 4, 2, KvFormat::F16, 0, &[(1, 1), (63, 2), (130, 5)]);
        // On one block, more steps than are listed at a time.
        check(machine, 8, 8, KvFormat::F16, 0, &[(257, 2)]);
    }
}

#[test]
fn q8_0_cells() {
    for machine in &mut Machine::all() {
        check(machine, 6, 1, KvFormat::Q8_0, 0, &[(70, 9), (5, 1), (200, 3)]);
        check(machine, 4, 1, KvFormat::Q8_0, 1, &[(64, 1), (2, 2)]);
    }
}

#[test]
fn q4_0_cells() {
    for machine in &mut Machine::all() {
        check(machine, 4, 1, KvFormat::Q4_0, 0, &[(64, 4), (129, 1), (3, 2)]);
    }
}

#[test]
fn long_contexts_on_the_gpu() {
    for machine in Machine::all().iter_mut().filter(|m| m.is_gpu()) {
        check(machine, 6, 1, KvFormat::Q8_0, 0, &[(4095, 3), (4500, 5), (20_000, 2)]);
        check(machine, 24, 4, KvFormat::F16, 0, &[(700, 9), (1, 2)]);
        check(machine, 8, 2, KvFormat::Q4_0, 1, &[(5000, 1)]);
    }
}
