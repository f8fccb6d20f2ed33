//! The self-test: a model's own matmuls, shared out in several ways, and which way is fastest.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::table::{Limit, Pace};
use super::{Chosen, Source, Tuning};
use crate::device::{Buffer, Device, DeviceError};
use crate::program::{JobKind, Op, Program, ProgramBuilder};
use crate::repack::WeightType;

/// Rows of the steps that count: one agent's, and those of six with three drafts each, as many as weights are read once for.
const ROWS: [u32; 2] = [1, 24];

/// After so long nothing is run again.
const TIME: Duration = Duration::from_millis(300);

/// Most times that everything is run, and fewest times after which another candidate than the table's is taken.
const MOST_ROUNDS: usize = 25;
const FEWEST_ROUNDS: usize = 3;

/// Bytes of weights that a run reads: far more than any cache, a few milliseconds at most.
const SAMPLE: u64 = 2 << 30;

/// A candidate must save this share of the time, for less may be chance.
const NOISE: f64 = 0.01;

/// A way to share out work.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// For people.
    pub(crate) name: String,
    pub(crate) tuning: Tuning,
}

/// The table's own first, then its variations, without those that share `ops` out like an earlier one.
pub(crate) fn candidates(device: &Device, ops: &[Op]) -> Vec<Candidate> {
    let pace = Pace::of(device.capability());
    let mut list = vec![Candidate { name: pace.name(), tuning: pace.tuning(Limit::Memory, pace.part) }];
    for (limit, words) in [
        (Limit::Both, "tiles by memory or decoding"),
        (Limit::Memory, "tiles by memory"),
        (Limit::Decoding, "tiles by decoding"),
    ] {
        for part in [pace.part / 2, pace.part, pace.part * 2] {
            list.push(Candidate { name: format!("{words}, {part} cycles a part"), tuning: pace.tuning(limit, part) });
        }
    }
    let shares = |tuning: &Tuning| ops.iter().map(|op| op.shares(device.blocks(), tuning)).collect::<Vec<_>>();
    let mut known = Vec::new();
    list.retain(|candidate| {
        let shares = shares(&candidate.tuning);
        let new = !known.contains(&shares);
        known.push(shares);
        new
    });
    list
}

/// Those that are not shared out alike by all candidates: of the others, such as single matrices in one run, there is nothing to
/// choose.
fn concerned(device: &Device, ops: &[Op], candidates: &[Candidate]) -> Vec<Op> {
    let shares = |op: &Op, candidate: &Candidate| op.shares(device.blocks(), &candidate.tuning);
    let differ = |op: &&Op| candidates.iter().any(|other| shares(op, other) != shares(op, &candidates[0]));
    ops.iter().filter(differ).copied().collect()
}

/// Of each kind of matmul every n-th, at least one, so that about [`SAMPLE`] bytes are read; each stands as often as in a step.
fn sample(ops: &[Op]) -> Vec<Op> {
    let bytes: u64 = ops.iter().map(Op::weight_bytes).sum();
    let every = bytes.div_ceil(SAMPLE).max(1) as usize;
    let mut seen = BTreeMap::new();
    let chosen = ops.iter().filter(|op| {
        let count = seen.entry(op.matmul_kind()).or_insert(0usize);
        *count += 1;
        (*count - 1).is_multiple_of(every)
    });
    chosen.copied().collect()
}

/// Programs of `ops` alone, shared out in several ways.
pub(crate) struct Trial<'a> {
    table: &'a Buffer,
    programs: Vec<Program>,
    /// Seconds of each run: by candidate, then by number of rows, in the order of `rows`.
    times: Vec<Vec<Vec<f64>>>,
    rows: &'a [u32],
}

impl<'a> Trial<'a> {
    /// `table` is the step table's buffer, and is written over.
    pub(crate) fn new(
        device: &Device,
        table: &'a Buffer,
        ops: &[Op],
        candidates: &[Candidate],
        rows: &'a [u32],
    ) -> Result<Self, DeviceError> {
        let program = |candidate: &Candidate| ProgramBuilder::of(ops.to_vec(), candidate.tuning).finish(device);
        let programs = candidates.iter().map(program).collect::<Result<Vec<_>, _>>()?;
        let times = vec![vec![Vec::new(); rows.len()]; programs.len()];
        Ok(Self { table, programs, times, rows })
    }

    /// Runs everything once, candidates in turn, so that what changes meanwhile changes for all.
    pub(crate) fn round(&mut self) -> Result<(), DeviceError> {
        for (i, &rows) in self.rows.iter().enumerate() {
            let words: [u32; 8] = [rows, 0, 0, 0, 8, 0, 0, 0];
            self.table.write(0, bytemuck::bytes_of(&words))?;
            for (program, times) in self.programs.iter().zip(&mut self.times) {
                let began = Instant::now();
                program.run(self.table)?;
                times[i].push(began.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    /// Forgets the runs so far: they warmed the device up.
    pub(crate) fn forget(&mut self) {
        self.times.iter_mut().flatten().for_each(Vec::clear);
    }

    /// Median seconds by candidate and number of rows.
    pub(crate) fn medians(&self) -> Vec<Vec<f64>> {
        self.times.iter().map(|times| times.iter().map(|times| median(times)).collect()).collect()
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Measures and chooses for a model whose step has these matmuls.
pub(crate) fn choose(device: &Device, table: &Buffer, ops: &[Op]) -> Result<Chosen, DeviceError> {
    let began = Instant::now();
    let candidates = candidates(device, ops);
    let ops = sample(&concerned(device, ops, &candidates));
    let mut trial = Trial::new(device, table, &ops, &candidates, &ROWS)?;
    trial.round()?;
    trial.forget();
    let mut rounds = 0;
    while rounds < MOST_ROUNDS && began.elapsed() < TIME {
        trial.round()?;
        rounds += 1;
    }
    let sums: Vec<f64> = trial.medians().iter().map(|medians| medians.iter().sum()).collect();
    let (best, gain) = if rounds < FEWEST_ROUNDS { (0, 0.0) } else { best(&sums) };
    for (candidate, sum) in candidates.iter().zip(&sums) {
        tracing::debug!("{}: {:.0} us", candidate.name, sum * 1e6);
    }
    let Candidate { name, tuning } = candidates[best].clone();
    Ok(Chosen { tuning, name, source: Source::Measured, gain, seconds: began.elapsed().as_secs_f64() })
}

/// Matmuls of one kind, shared out in one way.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Types and sizes.
    pub kind: String,
    /// How many a step has.
    pub count: usize,
    /// Rows.
    pub rows: u32,
    /// The way.
    pub name: String,
    /// Microseconds of one, in the middle.
    pub us: f64,
}

/// Most matmuls of a kind that are run after another.
const CHAIN: usize = 16;

/// Times each kind of `ops` with every candidate, `rounds` times each.
pub(crate) fn compare(
    device: &Device,
    table: &Buffer,
    ops: &[Op],
    rows: &[u32],
    rounds: usize,
) -> Result<Vec<Compared>, DeviceError> {
    let all = candidates(device, ops);
    let mut kinds: Vec<(_, Vec<Op>)> = Vec::new();
    for op in ops {
        let kind = op.matmul_kind();
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, same)) => same.push(*op),
            None => kinds.push((kind, vec![*op])),
        }
    }
    let mut compared = Vec::new();
    for ((inputs, jobs), same) in kinds {
        let chain = &same[..same.len().min(CHAIN)];
        let mut trial = Trial::new(device, table, chain, &all, rows)?;
        trial.round()?;
        trial.forget();
        for _ in 0..rounds {
            trial.round()?;
        }
        let job = |&JobKind { ty, paired, outputs, splits }: &JobKind| {
            let twice = if paired == 0 { "" } else { "2 x " };
            let parts = if splits > 1 { format!(" in {splits}") } else { String::new() };
            format!("{:?} {twice}{outputs}{parts}", WeightType::ALL[ty as usize])
        };
        let kind = format!("{} x {inputs}", jobs.iter().map(job).collect::<Vec<_>>().join(", "));
        for (candidate, medians) in all.iter().zip(trial.medians()) {
            for (&rows, seconds) in rows.iter().zip(medians) {
                let (kind, name) = (kind.clone(), candidate.name.clone());
                compared.push(Compared { kind, count: same.len(), rows, name, us: seconds / chain.len() as f64 * 1e6 });
            }
        }
    }
    Ok(compared)
}

/// Which of these times is taken, and the share of the first one that it saves.
fn best(times: &[f64]) -> (usize, f64) {
    let least = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
    let gain = 1.0 - times[least] / times[0].max(f64::MIN_POSITIVE);
    if gain > NOISE { (least, gain) } else { (0, 0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stays_unless_another_is_clearly_faster() {
        assert_eq!(best(&[1.0, 0.995, 0.999]), (0, 0.0));
        assert_eq!(best(&[1.0, 1.2]), (0, 0.0));
        let (which, gain) = best(&[1.0, 0.97, 0.95, 1.1]);
        assert!(which == 2 && (gain - 0.05).abs() < 1e-9);
    }

    #[test]
    fn the_middle_of_several_times_counts() {
        assert_eq!((median(&[3.0, 1.0, 90.0]), median(&[])), (3.0, 0.0));
    }
}
