//! How much of a prompt goes into a step, and when: whoever writes meanwhile is not to wait long, and is to keep a share of
//! the speed that it has alone.

use std::time::Duration;

use crate::step::PAGE_TOKENS;

/// Weight of the newest measurement.
const SMOOTHING: f64 = 0.2;
/// Share of its speed that an agent keeps while others' prompts are read.
const KEPT_SPEED: f64 = 0.4;
/// Time for prompts beside each second of steps without: what leaves [`KEPT_SPEED`].
const PROMPT_SHARE: f64 = 1.0 / KEPT_SPEED - 1.0;

/// Learns what steps cost. While somebody writes, a chunk of a prompt is as large as the longest step allows, and is followed
/// by so many steps without one that the agents who write keep their share.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    chunk: usize,
    /// Longest that a step should take while somebody writes.
    goal: Duration,
    /// Seconds of a step without prompt rows.
    decode: Option<f64>,
    /// Seconds that a chunk of one page and one of the full size add; those between lie on the line between the two.
    prompt: Option<[f64; 2]>,
    /// Seconds that prompts have taken beyond their share.
    owed: f64,
    /// Chunks so far.
    chunks: u64,
}

impl Pace {
    pub(super) fn new(chunk: usize, goal: Duration) -> Self {
        Self { chunk, goal, decode: None, prompt: None, owed: 0.0, chunks: 0 }
    }

    /// Chunks that were read so far.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Most prompt tokens for the next step: whole pages, at most the configured chunk; none while prompts have had more than
    /// their share, or while it is not known what a step without them takes.
    pub(super) fn chunk(&self, somebody_writes: bool) -> usize {
        if !somebody_writes {
            return self.chunk;
        }
        let Some(decode) = self.decode.filter(|_| self.owed <= 0.0) else { return 0 };
        let room = self.goal.as_secs_f64() - decode;
        let sizes = (PAGE_TOKENS..=self.chunk).step_by(PAGE_TOKENS);
        sizes.take_while(|&n| self.extra(n).is_some_and(|extra| extra <= room)).last().unwrap_or(PAGE_TOKENS)
    }

    /// Lets a prompt go on though it has had its share: nothing else can.
    pub(super) fn forgive(&mut self) {
        self.owed = 0.0;
    }

    /// Learns from a step.
    pub(super) fn observe(&mut self, took: Duration, prompt_tokens: usize, decode_rows: usize) {
        let took = took.as_secs_f64();
        if prompt_tokens == 0 {
            let decode = self.decode.get_or_insert(took);
            *decode += SMOOTHING * (took - *decode);
        } else {
            self.chunks += 1;
            self.learn(took - self.decode.filter(|_| decode_rows > 0).unwrap_or_default(), prompt_tokens);
        }
        if decode_rows == 0 {
            // Nobody had to wait.
            self.owed = 0.0;
        } else {
            // As it is expected of so many tokens: a step that was held up by something else is nobody's debt.
            let extra = if prompt_tokens > 0 { self.extra(prompt_tokens).unwrap_or_default() } else { 0.0 };
            self.owed = (self.owed + extra - PROMPT_SHARE * self.decode.unwrap_or_default()).max(0.0);
        }
    }

    /// Where a chunk of so many tokens stands between a page and the full size.
    fn place(&self, tokens: usize) -> f64 {
        (tokens as f64 - PAGE_TOKENS as f64) / self.chunk.saturating_sub(PAGE_TOKENS).max(1) as f64
    }

    /// Seconds that a chunk adds to a step.
    fn extra(&self, tokens: usize) -> Option<f64> {
        let [page, full] = self.prompt?;
        Some((page + (full - page) * self.place(tokens)).max(0.0))
    }

    fn learn(&mut self, extra: f64, tokens: usize) {
        if tokens < PAGE_TOKENS / 2 {
            return;
        }
        let Some(expected) = self.extra(tokens) else {
            let each = extra.max(0.0) / tokens as f64;
            self.prompt = Some([each * PAGE_TOKENS as f64, each * self.chunk as f64]);
            return;
        };
        let place = self.place(tokens).clamp(0.0, 1.0);
        if let Some([page, full]) = &mut self.prompt {
            *page = (*page + SMOOTHING * (1.0 - place) * (extra - expected)).max(0.0);
            *full = (*full + SMOOTHING * place * (extra - expected)).max(*page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOAL: Duration = Duration::from_millis(80);

    /// A machine on which prompts of `prompt` tokens are read one after the other while somebody writes: tokens read a second,
    /// the writer's share of the speed that it has alone, and its longest wait.
    fn company(pace: &mut Pace, decode: f64, extra: impl Fn(usize) -> f64, prompt: usize) -> (f64, f64, f64) {
        let (mut time, mut steps, mut read, mut longest) = (0.0, 0, 0, 0f64);
        while time < 60.0 {
            let chunk = pace.chunk(true).min(prompt - read % prompt);
            let took = decode + if chunk > 0 { extra(chunk) } else { 0.0 };
            pace.observe(Duration::from_secs_f64(took), chunk, 4);
            (time, steps, read) = (time + took, steps + 1, read + chunk);
            // It may learn for a while.
            longest = if time > 5.0 { longest.max(took) } else { longest };
        }
        (read as f64 / time, f64::from(steps) * decode / time, longest)
    }

    /// Seconds of a plain step and of chunks: a fast and a slow GPU, whose passes have a fixed cost, and a CPU.
    const MACHINES: [(f64, f64, f64); 4] =
        [(0.009, 0.027, 0.000_15), (0.03, 0.02, 0.0008), (0.02, 0.005, 0.000_1), (0.006, 0.0, 0.002)];

    #[test]
    fn whoever_writes_keeps_two_fifths_of_its_speed_and_waits_80_ms_at_most_where_a_page_can_be_read_so_fast() {
        for (decode, fixed, each) in MACHINES {
            for (alone, prompt) in [(true, 100_000), (false, 100_000), (false, 100), (true, 700)] {
                let mut pace = Pace::new(512, GOAL);
                let extra = |n: usize| fixed + each * n as f64;
                if alone {
                    // The first prompt was read while nobody wrote.
                    (0..4).for_each(|_| pace.observe(Duration::from_secs_f64(extra(512)), 512, 0));
                }
                let (read, kept, longest) = company(&mut pace, decode, extra, prompt);
                let at = format!("{decode} s a step, {fixed} + {each} s a token, prompts of {prompt}");
                assert!(kept >= 0.4 * 0.97, "{at}: only {kept:.2} of the speed");
                let least = decode + extra(PAGE_TOKENS.min(prompt));
                assert!(longest <= least.max(0.08) * 1.02, "{at}: a step of {longest:.3} s");
                // Prompts are not starved either: they have what the writer leaves.
                let full = 0.6 / (fixed / 64.0 + each);
                assert!(read >= full.min(64.0 / least) * 0.4, "{at}: {read:.0} tokens/s of {full:.0}");
            }
        }
    }

    #[test]
    fn chunks_are_whole_pages_and_as_large_as_allowed_where_nobody_writes() {
        let mut pace = Pace::new(2048, GOAL);
        assert_eq!(pace.chunk(false), 2048);
        assert_eq!(pace.chunk(true), 0, "what a step takes is learned first");
        pace.observe(Duration::from_millis(10), 0, 4);
        assert_eq!(pace.chunk(true), 64);
        (0..50).for_each(|_| pace.observe(Duration::from_millis(100), 1000, 0));
        // 0.1 ms a token: 70 ms are left of the goal.
        assert_eq!(pace.chunk(true), 640);
        pace.observe(Duration::from_millis(80), 700, 4);
        assert_eq!(pace.chunk(true), 0);
        (0..4).for_each(|_| pace.observe(Duration::from_millis(10), 0, 4));
        assert_eq!(pace.chunk(true), 640, "four steps and the one with the chunk have earned 75 ms");
    }

    #[test]
    fn a_step_that_was_held_up_is_nobodys_debt() {
        let mut pace = Pace::new(512, GOAL);
        (0..20).for_each(|_| pace.observe(Duration::from_millis(50), 512, 0));
        pace.observe(Duration::from_millis(20), 0, 4);
        pace.observe(Duration::from_secs(10), 512, 4);
        let mut steps = 0;
        while pace.chunk(true) == 0 {
            pace.observe(Duration::from_millis(20), 0, 4);
            steps += 1;
        }
        assert!(steps < 80, "a prompt waited for {steps} steps");
    }
}
