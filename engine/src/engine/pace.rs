//! How much of a prompt goes into a step, and when: whoever writes meanwhile is not to wait long, and is to keep a share of
//! the speed that it has alone.

use std::time::Duration;

use crate::step::PAGE_TOKENS;

/// Weight of the newest step without prompt rows.
const SMOOTHING: f64 = 0.2;
/// Weight of a chunk that took longer than expected, and of one that did not: the long ones are those that somebody waits for.
const LONGER: f64 = 0.5;
const SHORTER: f64 = 0.1;
/// Share of the longest wait that is planned for: what steps take scatters, and grows with the context.
const AIM: f64 = 0.85;
/// Share of its speed that an agent keeps while others' prompts are read.
const KEPT_SPEED: f64 = 0.4;
/// Time for prompts beside each second of steps without: what leaves [`KEPT_SPEED`].
const PROMPT_SHARE: f64 = 1.0 / KEPT_SPEED - 1.0;
/// A wait of this share of the longest one is no reason to let a step pass without a chunk,
const SHORT_WAIT: f64 = 1.0 / 16.0;
/// and so many steps that have passed for longer waits are enough.
const PATIENCE: u32 = 4;
/// Rows after a prompt's last whole page that take no longer than one: they run as those of a decode step do.
const TAIL_ROWS: usize = 24;

/// A chunk's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkRows {
    /// Up to its last absolute multiple of a page.
    whole: usize,
    /// After it.
    tail: usize,
}

impl ChunkRows {
    /// Those of the positions from `from` to before `end`.
    pub(super) fn between(from: usize, end: usize) -> Self {
        let whole = (end / PAGE_TOKENS * PAGE_TOKENS).saturating_sub(from);
        Self { whole, tail: end - from - whole }
    }

    pub(super) fn count(self) -> usize {
        self.whole + self.tail
    }

    fn tail_groups(self) -> f64 {
        self.tail.div_ceil(TAIL_ROWS) as f64
    }
}

/// Learns what steps cost. While somebody writes, a chunk of a prompt is as large as the longest wait allows, and is followed
/// by so many steps without one that the agents who write keep their share.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    chunk: usize,
    /// Longest, in seconds, that those who write should wait for their next tokens.
    goal: f64,
    /// Seconds of a step without prompt rows.
    decode: Option<f64>,
    /// Seconds that whole pages add: one of them, and a chunk of the full size; those between lie on the line between the two.
    pages: Option<[f64; 2]>,
    /// Seconds that each [`TAIL_ROWS`] rows of a tail add.
    tail: Option<f64>,
    /// Seconds that prompts have taken beyond their share.
    owed: f64,
    /// Chunks so far.
    chunks: u64,
    /// Steps in a row without a chunk though prompts had not had their share.
    passed: u32,
}

impl Pace {
    pub(super) fn new(chunk: usize, goal: Duration) -> Self {
        let goal = goal.as_secs_f64();
        Self { chunk, goal, decode: None, pages: None, tail: None, owed: 0.0, chunks: 0, passed: 0 }
    }

    /// Chunks that were read so far.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Where the next step's chunk ends of a prompt that was read up to `from`: at `stop` at the latest, else at a multiple of a
    /// page. `waited` says how long those who write have waited since their last tokens, if somebody writes: there is no chunk
    /// then while prompts have had more than their share, while it is not known what a step without them takes, or for a few
    /// steps after a long wait.
    pub(super) fn reach(&self, from: usize, stop: usize, waited: Option<Duration>) -> Option<usize> {
        let page = from / PAGE_TOKENS * PAGE_TOKENS;
        let most = stop.min(page + self.chunk);
        let Some(waited) = waited.map(|waited| waited.as_secs_f64()) else { return Some(most) };
        let decode = self.decode.filter(|_| self.owed <= 0.0)?;
        let room = AIM * self.goal - decode - waited;
        let fits = |end: &usize| self.extra(ChunkRows::between(from, *end)).is_some_and(|extra| extra <= room);
        let ends = (page + PAGE_TOKENS..most).step_by(PAGE_TOKENS).chain([most]);
        let least = stop.min(page + PAGE_TOKENS);
        let go = waited <= SHORT_WAIT * self.goal || self.passed >= PATIENCE;
        ends.take_while(fits).last().or_else(|| go.then_some(least))
    }

    /// Lets a prompt go on though it has had its share: nothing else can.
    pub(super) fn forgive(&mut self) {
        self.owed = 0.0;
    }

    /// Learns from a step: the time that it took, the time before it since the last tokens of those who write, if somebody
    /// does, and its chunk.
    pub(super) fn observe(&mut self, took: Duration, waited: Option<Duration>, chunk: ChunkRows) {
        let took = took.as_secs_f64();
        let mut extra = 0.0;
        if chunk.count() > 0 {
            self.chunks += 1;
            self.passed = 0;
            extra = self.learn(took - self.decode.filter(|_| waited.is_some()).unwrap_or_default(), chunk);
        } else {
            self.passed = if self.owed > 0.0 { 0 } else { self.passed + 1 };
            let decode = self.decode.get_or_insert(took);
            *decode += SMOOTHING * (took - *decode);
        }
        self.owed = match waited {
            Some(waited) => {
                let waited = waited.as_secs_f64().min(self.goal);
                (self.owed + extra + waited - PROMPT_SHARE * self.decode.unwrap_or_default()).max(0.0)
            }
            // Nobody had to wait.
            None => 0.0,
        };
    }

    /// Where a chunk of so many rows stands between a page and the full size.
    fn place(&self, rows: usize) -> f64 {
        (rows as f64 - PAGE_TOKENS as f64) / self.chunk.saturating_sub(PAGE_TOKENS).max(1) as f64
    }

    /// Seconds that a chunk's whole pages and its tail add to a step, as far as anything is known of such rows.
    fn parts(&self, chunk: ChunkRows) -> Option<[f64; 2]> {
        let whole = self.pages.map(|[page, full]| (page + (full - page) * self.place(chunk.whole)).max(0.0));
        // A tail's rows are read once more for their matmuls: no sooner than a step, nor than as many rows of a page.
        let guess = || {
            let rows = TAIL_ROWS as f64 / PAGE_TOKENS as f64;
            self.pages.map(|[page, _]| self.decode.unwrap_or_default().max(page * rows))
        };
        let whole = if chunk.whole > 0 { whole? } else { 0.0 };
        let tail = if chunk.tail > 0 { self.tail.or_else(guess)? * chunk.tail_groups() } else { 0.0 };
        Some([whole, tail])
    }

    /// Seconds that a chunk adds to a step.
    fn extra(&self, chunk: ChunkRows) -> Option<f64> {
        self.parts(chunk).map(|[whole, tail]| whole + tail)
    }

    /// Learns from a chunk that added so many seconds. Returns how many of them are its own: a step may also be held up by
    /// something else.
    fn learn(&mut self, extra: f64, chunk: ChunkRows) -> f64 {
        let extra = extra.max(0.0);
        let Some([whole, tail]) = self.parts(chunk) else {
            if chunk.whole > 0 {
                let each = extra / chunk.count() as f64;
                self.pages = Some([each * PAGE_TOKENS as f64, each * self.chunk as f64]);
            } else {
                self.tail = Some(extra / chunk.tail_groups());
            }
            return extra;
        };
        let expected = whole + tail;
        let own = extra.min(expected + expected.max(self.goal / 4.0));
        let error = (own - expected) * if own > expected { LONGER } else { SHORTER };
        let share = if tail > 0.0 { whole / expected } else { 1.0 };
        let place = self.place(chunk.whole).clamp(0.0, 1.0);
        if let Some([page, full]) = self.pages.as_mut().filter(|_| chunk.whole > 0) {
            // So that what is expected of this chunk moves by its share of the error.
            let step = share * error / ((1.0 - place).powi(2) + place.powi(2));
            *page = (*page + (1.0 - place) * step).max(0.0);
            *full = (*full + place * step).max(*page);
        }
        if chunk.tail > 0 {
            self.tail = Some(((tail + (1.0 - share) * error) / chunk.tail_groups()).max(0.0));
        }
        own
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const GOAL: Duration = Duration::from_millis(80);
    /// Another conversation's state is kept at multiples of this.
    const SNAPSHOT: usize = 2048;

    /// What steps take, in seconds.
    #[derive(Clone, Copy, Debug)]
    struct Machine {
        /// A step of those who write.
        decode: f64,
        /// A chunk with whole pages.
        fixed: f64,
        /// Each of its rows.
        each: f64,
        /// Each row for each token before it.
        attends: f64,
        /// Each started 24 rows of a tail.
        tail: f64,
        /// Keeping a state, after the step.
        keep: f64,
        /// All of it scatters by this share to both sides.
        noise: f64,
    }

    /// A GPU as measured, a slower one, one that is fast at prompts, and a CPU.
    const MACHINES: [Machine; 4] = [
        Machine {
            decode: 0.0095,
            fixed: 0.024,
            each: 0.000_134,
            attends: 3.7e-9,
            tail: 0.013,
            keep: 0.028,
            noise: 0.06,
        },
        Machine { decode: 0.03, fixed: 0.01, each: 0.0004, attends: 1e-9, tail: 0.03, keep: 0.01, noise: 0.06 },
        Machine { decode: 0.02, fixed: 0.005, each: 0.000_1, attends: 1e-9, tail: 0.02, keep: 0.01, noise: 0.1 },
        Machine { decode: 0.006, fixed: 0.0, each: 0.002, attends: 1e-8, tail: 0.048, keep: 0.0, noise: 0.1 },
    ];

    impl Machine {
        fn extra(&self, from: usize, end: usize) -> f64 {
            let ChunkRows { whole, tail } = ChunkRows::between(from, end);
            let whole =
                if whole > 0 { self.fixed + whole as f64 * (self.each + self.attends * end as f64) } else { 0.0 };
            whole + self.tail * tail.div_ceil(24) as f64
        }
    }

    /// What came of prompts that were read one after the other while somebody wrote.
    #[derive(Debug)]
    struct Outcome {
        /// Prompt tokens a second.
        read: f64,
        /// The writer's share of the speed that it has alone.
        kept: f64,
        /// The writer's longest wait.
        longest: f64,
    }

    fn company(pace: &mut Pace, machine: Machine, prompt: usize) -> Outcome {
        let (mut time, mut steps, mut read, mut longest) = (0.0, 0, 0, 0f64);
        let (mut at, mut waited, mut state) = (0usize, 0.0, 1u64);
        while time < 60.0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let scatter = 1.0 + machine.noise * ((state >> 33) as f64 / f64::from(1 << 30) - 1.0);
            let wait = Duration::from_secs_f64(waited);
            // A state is also kept before the end, where a prompt may branch.
            let stop = (at + 1).next_multiple_of(SNAPSHOT).min(prompt);
            let stop =
                [(prompt - 1) / PAGE_TOKENS * PAGE_TOKENS, prompt].into_iter().find(|&s| s > at).unwrap().min(stop);
            let end = pace.reach(at, stop, Some(wait)).unwrap_or(at);
            let took = scatter * (machine.decode + if end > at { machine.extra(at, end) } else { 0.0 });
            pace.observe(Duration::from_secs_f64(took), Some(wait), ChunkRows::between(at, end));
            (time, steps, read) = (time + waited + took, steps + 1, read + end - at);
            // It may learn for a while.
            longest = if time > 5.0 { longest.max(waited + took) } else { longest };
            waited = if end > at && end == stop { machine.keep } else { 0.0 };
            at = if end == prompt { 0 } else { end };
        }
        Outcome { read: read as f64 / time, kept: f64::from(steps) * machine.decode / time, longest }
    }

    #[test]
    fn whoever_writes_keeps_two_fifths_of_its_speed_and_waits_80_ms_at_most_where_a_page_can_be_read_so_fast() {
        for machine in MACHINES {
            for (alone, prompt) in [(true, 20_000), (false, 100_040), (false, 100), (true, 700), (true, 127)] {
                let mut pace = Pace::new(1024, GOAL);
                if alone {
                    // The first prompt was read while nobody wrote.
                    let chunk = Duration::from_secs_f64(machine.extra(0, 1024));
                    (0..4).for_each(|_| pace.observe(chunk, None, ChunkRows::between(0, 1024)));
                }
                let Outcome { read, kept, longest } = company(&mut pace, machine, prompt);
                let at = format!("{machine:?}, prompts of {prompt}");
                assert!(kept >= 0.4 * 0.97, "{at}: only {kept:.2} of the speed");
                let last = machine.extra(prompt / PAGE_TOKENS * PAGE_TOKENS, prompt);
                let page = machine.extra(
                    prompt.saturating_sub(PAGE_TOKENS) / PAGE_TOKENS * PAGE_TOKENS,
                    prompt / PAGE_TOKENS * PAGE_TOKENS,
                );
                let least = (1.0 + machine.noise) * (machine.decode + page.max(last)) + SHORT_WAIT * 0.08;
                assert!(longest <= least.max(0.08), "{at}: a wait of {longest:.4} s");
                // Prompts are not starved either: they have what the writer leaves.
                let chunks = (0..prompt).step_by(256).map(|at| machine.extra(at, prompt.min(at + 256)));
                let states = machine.keep * (1 + prompt / SNAPSHOT) as f64;
                let full = 0.6 * prompt as f64 / (chunks.sum::<f64>() + states);
                assert!(read >= 0.5 * full, "{at}: {read:.0} tokens/s of {full:.0}");
            }
        }
    }

    #[test]
    fn chunks_are_whole_pages_and_as_large_as_allowed_where_nobody_writes() {
        let mut pace = Pace::new(2048, GOAL);
        let chunk = |from, end| ChunkRows::between(from, end);
        let (ms, soon) = (Duration::from_millis, Some(Duration::ZERO));
        assert_eq!(pace.reach(100, 9000, None), Some(64 + 2048));
        assert_eq!(pace.reach(8000, 9000, None), Some(9000));
        assert_eq!(pace.reach(0, 9000, soon), None, "what a step takes is learned first");
        pace.observe(ms(10), soon, chunk(0, 0));
        assert_eq!(pace.reach(0, 9000, soon), Some(64));
        (0..50).for_each(|_| pace.observe(ms(102), None, chunk(0, 1024)));
        pace.observe(ms(10), soon, chunk(0, 0));
        // 0.1 ms a token: 58 ms are left of the 68 that are planned for.
        assert_eq!(pace.reach(0, 9000, soon), Some(576));
        assert_eq!(pace.reach(0, 560, soon), Some(512), "the last 48 take the time of two steps");
        assert_eq!(pace.reach(512, 560, soon), Some(560));
        pace.observe(ms(72), soon, chunk(0, 576));
        assert_eq!(pace.reach(576, 9000, soon), None);
        (0..4).for_each(|_| pace.observe(ms(10), soon, chunk(0, 0)));
        assert!(pace.reach(576, 9000, soon).is_some(), "four steps and the one with the chunk have earned 75 ms");
    }

    #[test]
    fn a_step_makes_up_for_a_wait_before_it_or_passes() {
        let mut pace = Pace::new(1024, GOAL);
        let (ms, soon) = (Duration::from_millis, Some(Duration::ZERO));
        (0..50).for_each(|_| pace.observe(ms(102), None, ChunkRows::between(0, 1024)));
        pace.observe(ms(10), soon, ChunkRows::default());
        assert_eq!(pace.reach(0, 9000, Some(ms(35))), Some(192));
        assert_eq!(pace.reach(0, 9000, Some(ms(60))), None);
        // But not for ever.
        (0..PATIENCE).for_each(|_| pace.observe(ms(10), soon, ChunkRows::default()));
        assert_eq!(pace.reach(0, 9000, Some(ms(60))), Some(64));
    }

    #[test]
    fn a_step_that_was_held_up_is_nobodys_debt() {
        let mut pace = Pace::new(512, GOAL);
        let (chunk, soon) = (ChunkRows::between(0, 512), Some(Duration::ZERO));
        (0..20).for_each(|_| pace.observe(Duration::from_millis(50), None, chunk));
        pace.observe(Duration::from_millis(20), soon, ChunkRows::default());
        pace.observe(Duration::from_secs(10), soon, chunk);
        let mut steps = 0;
        while pace.reach(0, 9000, soon).is_none() {
            pace.observe(Duration::from_millis(20), soon, ChunkRows::default());
            steps += 1;
        }
        assert!(steps < 10, "a prompt waited for {steps} steps");
    }
}
