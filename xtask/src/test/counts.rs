//! Counting tests from what their runners print.

use std::ops::AddAssign;

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Counts {
    /// The sum of the closing lines in a runner's output: those of cargo test ("test result: ok. 3 passed; ..."),
    /// nextest ("Summary [   1.2s] 3 tests run: 3 passed, 1 skipped") and pytest ("=== 3 passed in 1.2s ===").
    pub(super) fn read(output: &str) -> Self {
        let mut sum = Self::default();
        for line in output.lines().map(str::trim) {
            let closing = line.starts_with("test result: ")
                || line.starts_with("Summary [")
                || (line.starts_with("==") && line.ends_with("==") && line.contains(" in "));
            if closing {
                sum += Self {
                    passed: before(line, &["passed"]),
                    failed: before(line, &["failed", "errors", "error", "timed"]),
                    skipped: before(line, &["skipped", "ignored"]),
                };
            }
        }
        sum
    }
}

/// The sum of the numbers right before one of `words`.
fn before(line: &str, words: &[&str]) -> u64 {
    let tokens: Vec<&str> = line.split(|c: char| !c.is_alphanumeric()).filter(|token| !token.is_empty()).collect();
    let pairs = tokens.windows(2).filter(|pair| words.contains(&pair[1]));
    pairs.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn closing_lines_of_every_runner_are_read() {
        let output = "
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Summary [   0.174s] 10 tests run: 7 passed (1 slow), 2 failed, 1 timed out, 4 skipped
==================== 5 passed, 1 skipped, 1 error in 0.12s ====================
failed to read 9 passed";
        assert_eq!(Counts::read(output), Counts { passed: 16, failed: 6, skipped: 6 });
    }
}
