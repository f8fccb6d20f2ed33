//! Gated `DeltaNet`: decode steps with drafts that are refused, prompts in chunks, and both in turn.

use std::ops::Range;

use openjet_engine::step::{Segment, SegmentKind};
use openjet_kernels::args::{DeltaArgs, DeltaLayout, STATE_DIM, SettleArgs, SlotState, TAPS};
use openjet_kernels::program::OpKind;
use openjet_kernels::table::{Part, TableBuilder};

use crate::machine::{Machine, Memory, Random, relative_error};

const ROWS: usize = 5;
const SLOTS: usize = 4;

/// A layer's weights and the matrix products of conversations' rows.
struct Setup {
    key_heads: usize,
    value_heads: usize,
    conv: Vec<f32>,
    dt_bias: Vec<f32>,
    a: Vec<f32>,
    talks: Vec<Talk>,
}

struct Talk {
    qkv: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
}

impl Setup {
    fn new(key_heads: usize, value_heads: usize, lengths: &[usize], random: &mut Random) -> Self {
        let channels = (2 * key_heads + value_heads) * STATE_DIM;
        let talks = lengths
            .iter()
            .map(|&n| Talk {
                qkv: random.normals(n * channels, 1.0),
                alpha: random.normals(n * value_heads, 1.5),
                beta: random.normals(n * value_heads, 1.5),
            })
            .collect();
        Self {
            key_heads,
            value_heads,
            conv: random.normals(channels * TAPS, 0.6),
            dt_bias: random.normals(value_heads, 1.0).iter().map(|x| x - 2.0).collect(),
            a: random.normals(value_heads, 1.0).iter().map(|x| -x.exp()).collect(),
            talks,
        }
    }

    fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * STATE_DIM
    }

    /// The serial recurrence in f64 over a conversation's rows: outputs before the norm (rows x inner) and the memory (value dimension x key
    /// dimension of every head) after them.
    fn reference(&self, talk: &Talk, rows: usize) -> (Vec<f64>, Vec<f64>) {
        let (kh, vh, d, channels) = (self.key_heads, self.value_heads, STATE_DIM, self.channels());
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut memory = vec![0f64; vh * d * d];
        let mut out = Vec::with_capacity(rows * vh * d);
        for t in 0..rows {
            let mut y: Vec<f64> = (0..channels)
                .map(|c| {
                    let taps = (0..TAPS).filter(|j| t + j >= TAPS - 1);
                    let sum: f64 = taps
                        .map(|j| {
                            f64::from(self.conv[c * TAPS + j]) * f64::from(talk.qkv[(t + j + 1 - TAPS) * channels + c])
                        })
                        .sum();
                    sum * sigmoid(sum)
                })
                .collect();
            for head in y[..2 * kh * d].chunks_exact_mut(d) {
                let inverse = 1.0 / (head.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                head.iter_mut().for_each(|x| *x *= inverse);
            }
            y[..kh * d].iter_mut().for_each(|x| *x /= (d as f64).sqrt());
            for h in 0..vh {
                let q = &y[h % kh * d..][..d];
                let k = &y[(kh + h % kh) * d..][..d];
                let v = &y[(2 * kh + h) * d..][..d];
                let x = f64::from(talk.alpha[t * vh + h]) + f64::from(self.dt_bias[h]);
                let decay = (f64::from(self.a[h]) * x.exp().ln_1p()).exp();
                let beta = sigmoid(f64::from(talk.beta[t * vh + h]));
                for (column, v) in memory[h * d * d..(h + 1) * d * d].chunks_exact_mut(d).zip(v) {
                    column.iter_mut().for_each(|s| *s *= decay);
                    let r: f64 = column.iter().zip(k).map(|(s, k)| s * k).sum();
                    let delta = beta * (v - r);
                    column.iter_mut().zip(k).for_each(|(s, k)| *s += k * delta);
                    out.push(column.iter().zip(q).map(|(s, q)| s * q).sum());
                }
            }
        }
        (out, memory)
    }
}

struct Device<'a> {
    machine: &'a mut Machine,
    setup: &'a Setup,
    layout: DeltaLayout,
    weights: [Memory; 3],
    state: Memory,
    slots: Memory,
    /// Kept here as the engine's accept op would keep it.
    slot_states: Vec<SlotState>,
}

impl<'a> Device<'a> {
    fn new(machine: &'a mut Machine, setup: &'a Setup) -> Self {
        let layout = DeltaLayout {
            key_heads: setup.key_heads as u32,
            value_heads: setup.value_heads as u32,
            rows: ROWS as u32,
            reserved: 0,
        };
        let weights = [machine.upload(&setup.conv), machine.upload(&setup.dt_bias), machine.upload(&setup.a)];
        // A fresh slot's settled part is zeros; what rows leave is written before it is read.
        let mut state = vec![f32::NAN; SLOTS * layout.floats()];
        for slot in state.chunks_exact_mut(layout.floats()) {
            slot[..layout.settled_floats()].fill(0.0);
        }
        let state = machine.upload(&state);
        let slot_states = vec![SlotState::default(); SLOTS];
        let slots = machine.upload(&slot_states);
        Self { machine, setup, layout, weights, state, slots, slot_states }
    }

    /// Runs rows of conversations, each in a slot; (conversation, slot, rows). Returns their outputs in that order.
    fn run(&mut self, parts: &[(usize, usize, Range<usize>)], prompt: bool, blocks: u32) -> Vec<Vec<f32>> {
        let setup = self.setup;
        let tokens: Vec<Vec<u32>> = parts.iter().map(|(_, _, rows)| vec![1; rows.len()]).collect();
        let segments: Vec<Segment<'_>> = parts
            .iter()
            .zip(&tokens)
            .map(|((_, slot, rows), tokens)| Segment {
                slot: *slot,
                position: rows.start as u32,
                tokens,
                pages: &[0],
                kind: if prompt { SegmentKind::Prompt } else { SegmentKind::Decode },
                sample: None,
            })
            .collect();
        let listed: Vec<_> = segments.iter().map(|s| (s, Part::Rows)).collect();
        let table = self.machine.upload(TableBuilder::default().build(&listed));
        let count: usize = tokens.iter().map(Vec::len).sum();
        let gather = |raw: fn(&Talk) -> &Vec<f32>, width: usize| -> Vec<f32> {
            let rows = parts.iter().flat_map(|(talk, _, rows)| rows.clone().map(move |p| (*talk, p)));
            rows.flat_map(|(talk, p)| raw(&setup.talks[talk])[p * width..(p + 1) * width].iter().copied()).collect()
        };
        let inner = setup.value_heads * STATE_DIM;
        let (channels, vh) = (setup.channels(), setup.value_heads);
        let qkv = self.machine.upload(&gather(|t| &t.qkv, channels));
        let alpha = self.machine.upload(&gather(|t| &t.alpha, vh));
        let beta = self.machine.upload(&gather(|t| &t.beta, vh));
        let mixed = self.machine.floats(count * channels);
        let out = self.machine.floats(count * inner);
        let chunks = self.machine.floats(if prompt { self.layout.chunk_floats(count, parts.len()) } else { 1 });
        self.machine.write(self.slots, &self.slot_states);
        let at = |memory| self.machine.address(memory);
        let args = DeltaArgs {
            table: at(table),
            slots: at(self.slots),
            state: at(self.state),
            slot_stride: self.layout.floats() as u64,
            qkv: at(qkv),
            alpha: at(alpha),
            beta: at(beta),
            mixed: at(mixed),
            out: at(out),
            conv: at(self.weights[0]),
            dt_bias: at(self.weights[1]),
            a: at(self.weights[2]),
            chunks: at(chunks),
            layout: self.layout,
            qkv_width: channels as u32,
            gate_width: vh as u32,
            out_width: inner as u32,
            reserved: 0,
        };
        let kinds: &[OpKind] = if prompt {
            &[OpKind::DeltanetConvolvePrompt, OpKind::DeltanetChunks, OpKind::DeltanetScan, OpKind::DeltanetFinish]
        } else {
            &[OpKind::DeltanetDecode, OpKind::DeltanetKeep]
        };
        self.machine.run(table, blocks, |program| {
            for &kind in kinds {
                program.then(kind, args);
            }
        });
        if prompt {
            for (_, slot, _) in parts {
                self.slot_states[*slot].pending = 0;
            }
        }
        let all: Vec<f32> = self.machine.read(out, count * inner);
        let mut at = 0;
        let split = parts.iter().map(|(_, _, rows)| {
            at += rows.len() * inner;
            all[at - rows.len() * inner..at].to_vec()
        });
        split.collect()
    }

    /// What the accept op does: of the slot's last step the first `rows` rows stand.
    fn accept(&mut self, slot: usize, rows: usize) {
        let state = &mut self.slot_states[slot];
        *state = SlotState { pending: rows as u32, parity: state.parity ^ 1 };
    }

    /// Memory and history of a slot, brought up to what was accepted.
    fn settled(&mut self, slot: usize, blocks: u32) -> Vec<f32> {
        let floats = self.layout.floats();
        self.machine.write(self.slots, &self.slot_states);
        let at = |memory| self.machine.address(memory);
        let args = SettleArgs {
            state: at(self.state) + (4 * slot * floats) as u64,
            layer_stride: 0,
            slot: at(self.slots) + (slot * size_of::<SlotState>()) as u64,
            layers: 1,
            reserved: 0,
            layout: self.layout,
        };
        let table = self.machine.upload(&[0u32; 16]);
        self.machine.run(table, blocks, |program| {
            program.then(OpKind::DeltanetSettle, args);
        });
        self.slot_states[slot].pending = 0;
        let all: Vec<f32> = self.machine.read(self.state, SLOTS * floats);
        all[slot * floats..slot * floats + self.layout.settled_floats()].to_vec()
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Only f32 rounding lies between the two.
const TOLERANCE: f64 = 2e-5;

/// A conversation in slot 2 (others beside it): a prompt, then steps with drafts of which some are refused.
fn check(machine: &mut Machine, key_heads: usize, value_heads: usize, prompt: usize) {
    let mut random = Random::new((key_heads * 1000 + value_heads * 100 + prompt) as u64);
    let steps: [(usize, usize); 5] = [(1, 1), (4, 2), (5, 5), (3, 1), (2, 2)];
    let total = prompt + steps.iter().map(|s| s.1).sum::<usize>();
    let lengths = [total, 40, 150];
    let setup = Setup::new(key_heads, value_heads, &lengths, &mut random);
    let inner = value_heads * STATE_DIM;
    let name = format!("{key_heads} key heads, {value_heads} value heads, prompt of {prompt}");

    // What a refused draft's row holds is another row's numbers: they must leave no trace.
    let mut device = Device::new(machine, &setup);
    let mut output = Vec::new();
    if prompt > 0 {
        let cut = if prompt > 64 { prompt / 64 * 64 } else { prompt };
        let both = [(0, 2, 0..cut), (1, 0, 0..40)];
        output.extend(device.run(&both, true, 7).swap_remove(0));
        if cut < prompt {
            output.extend(device.run(&[(2, 1, 0..150), (0, 2, cut..prompt)], true, 3).swap_remove(1));
        }
    }
    let mut at = prompt;
    for (i, &(rows, taken)) in steps.iter().enumerate() {
        let rows = rows.min(total - at);
        let taken = taken.min(rows);
        let mine = (0, 2, at..at + rows);
        // Slot 0's conversation goes on beside it every other time.
        let parts = if i % 2 == 0 { vec![(1, 0, 10 * i / 2..10 * i / 2 + 2), mine] } else { vec![mine] };
        let results = device.run(&parts, false, 1 + i as u32);
        output.extend_from_slice(&results[parts.len() - 1][..taken * inner]);
        device.accept(2, taken);
        if i % 2 == 0 {
            device.accept(0, 1);
        }
        at += taken;
    }
    let state = device.settled(2, 5);

    let (expected, memory) = setup.reference(&setup.talks[0], at);
    let error = relative_error(&output, &expected[..output.len()]);
    let memory_error = relative_error(&state[..memory.len()], &memory);
    println!("{name}: output error {error:.1e}, memory error {memory_error:.1e}");
    assert!(
        error < TOLERANCE && memory_error < TOLERANCE,
        "{name}: output error {error:e}, memory error {memory_error:e}"
    );
    let history: Vec<f32> = setup.talks[0].qkv[(at - (TAPS - 1)) * setup.channels()..at * setup.channels()].to_vec();
    assert!(
        bits(&history) == bits(&state[memory.len()..]),
        "{name}: the convolution's history is not that of the last rows"
    );

    // The same conversation alone in another slot, prompt in one piece, a row a step: not a bit differs.
    let mut alone = Device::new(device.machine, &setup);
    let mut again = Vec::new();
    if prompt > 0 {
        again.extend(alone.run(&[(0, 1, 0..prompt)], true, 4).swap_remove(0));
    }
    for p in prompt..at {
        again.extend(alone.run(&[(0, 1, p..p + 1)], false, 11).swap_remove(0));
        alone.accept(1, 1);
        if p % 3 == 0 {
            alone.settled(1, 2);
        }
    }
    assert!(bits(&again) == bits(&output), "{name}: outputs depend on company or drafts");
    assert!(bits(&alone.settled(1, 1)) == bits(&state), "{name}: the state depends on company or drafts");
}

#[test]
fn one_value_head_to_a_key_head() {
    for machine in &mut Machine::all() {
        check(machine, 2, 2, 0);
        check(machine, 1, 1, 65);
    }
}

#[test]
fn two_value_heads_to_a_key_head() {
    for machine in &mut Machine::all() {
        check(machine, 1, 2, 64);
        check(machine, 2, 4, 2);
    }
}

#[test]
fn three_value_heads_to_a_key_head() {
    for machine in &mut Machine::all() {
        check(machine, 2, 6, 150);
    }
}

/// A prompt goes on after decode steps, and begins in the middle of a chunk.
#[test]
fn prompt_after_decode() {
    for machine in &mut Machine::all() {
        let setup = Setup::new(1, 3, &[260], &mut Random::new(9));
        let mut device = Device::new(machine, &setup);
        let mut output = device.run(&[(0, 3, 0..10)], true, 2).swap_remove(0);
        output.extend(device.run(&[(0, 3, 10..14)], false, 2).swap_remove(0));
        device.accept(3, 4);
        output.extend(device.run(&[(0, 3, 14..192)], true, 3).swap_remove(0));
        output.extend(device.run(&[(0, 3, 192..194)], true, 3).swap_remove(0));
        let (expected, memory) = setup.reference(&setup.talks[0], 194);
        assert!(relative_error(&output, &expected) < TOLERANCE);
        assert!(relative_error(&device.settled(3, 1)[..memory.len()], &memory) < TOLERANCE);
    }
}

#[test]
fn the_27b_on_the_gpu() {
    for machine in Machine::all().iter_mut().filter(|m| m.is_gpu()) {
        check(machine, 16, 48, 2000);
    }
}
