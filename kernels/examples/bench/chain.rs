//! Timing ops: many after another in one program, so that the launch does not count.

use std::time::Instant;

use anyhow::Result;
use openjet_bench::Spread;
use openjet_kernels::device::{Buffer, Device};
use openjet_kernels::program::{InputRows, OpKind, PackArgs, ProgramBuilder};

use crate::common::plain_table;

/// Most rounds of one program: its list of ops stays small.
const MOST_ROUNDS: usize = 4000;

/// Runs programs and takes their time.
#[derive(Debug)]
pub(crate) struct Chain<'a> {
    pub(crate) device: &'a Device,
    /// Seconds that one timed program is to take, and how often it is timed; without, one round is timed once.
    aim: Option<(f64, usize)>,
    /// Seconds of a program that does nothing.
    pub(crate) launch: f64,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(device: &'a Device, aim: Option<(f64, usize)>) -> Result<Self> {
        let mut chain = Self { device, aim, launch: 0.0 };
        let Some((_, runs)) = aim else { return Ok(chain) };
        let table = plain_table(device, 0, 0);
        let mut nothing = ProgramBuilder::default();
        nothing.then(OpKind::Pack, PackArgs { from: InputRows::plain(0, 256), ..PackArgs::default() });
        let program = nothing.finish(device)?;
        program.run(&table)?;
        let times = (0..2 * runs).map(|_| chain.once(&program, &table)).collect::<Result<Vec<_>>>()?;
        chain.launch = Spread::of(&times).median;
        Ok(chain)
    }

    fn once(&self, program: &openjet_kernels::program::Program, table: &Buffer) -> Result<f64> {
        let started = Instant::now();
        program.run(table)?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Microseconds of a round; `round(i, program)` adds the ops of round `i`. The barrier after each op is part of it.
    pub(crate) fn time(&self, table: &Buffer, mut round: impl FnMut(usize, &mut ProgramBuilder)) -> Result<Spread> {
        let mut program = |rounds: usize| -> Result<_> {
            let mut builder = ProgramBuilder::default();
            (0..rounds).for_each(|i| round(i, &mut builder));
            Ok(builder.finish(self.device)?)
        };
        let Some((aim, runs)) = self.aim else {
            let seconds = self.once(&program(1)?, table)?;
            return Ok(Spread::of(&[1e6 * seconds]));
        };
        let first = program(2)?;
        self.once(&first, table)?;
        let each = (self.once(&first, table)? - self.launch).max(1e-7) / 2.0;
        let rounds = ((aim / each) as usize).clamp(1, MOST_ROUNDS);
        let long = program(rounds)?;
        self.once(&long, table)?;
        let times = (0..runs).map(|_| self.once(&long, table)).collect::<Result<Vec<_>>>()?;
        Ok(Spread::of(&times).map(|seconds| (seconds - self.launch).max(0.0) / rounds as f64 * 1e6))
    }
}
