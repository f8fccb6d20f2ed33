//! How deep to draft: as deep as the acceptance seen so far pays for, and not at all where plain decoding is faster.

/// What rows cost, as shares of a step that verifies one row and drafts nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// One more row to verify.
    pub row: f32,
    /// One run of the draft head.
    pub draft: f32,
}

/// Weight of the newest observation.
const PACE: f32 = 0.06;
/// Acceptance assumed of a new conversation.
const PRIOR: f32 = 0.7;
/// Steps without drafts before one is tried again.
const RETRY: u32 = 48;

/// Chooses the depth for one conversation and one source of drafts.
#[derive(Clone, Debug)]
pub struct DepthController {
    acceptance: f32,
    idle: u32,
}

impl Default for DepthController {
    fn default() -> Self {
        Self { acceptance: PRIOR, idle: 0 }
    }
}

impl DepthController {
    /// Learns from one verification. Every accepted draft counts as a success, the first refused one as a failure.
    pub fn observe(&mut self, offered: usize, accepted: usize) {
        for _ in 0..accepted {
            self.acceptance += PACE * (1.0 - self.acceptance);
        }
        if accepted < offered {
            self.acceptance -= PACE * self.acceptance;
        }
    }

    /// The share of drafts accepted, as estimated.
    #[must_use]
    pub fn acceptance(&self) -> f32 {
        self.acceptance
    }

    /// The depth, at most `max`, with the most tokens for a step's time. Where that is none, one draft is tried again after a
    /// while, since texts change.
    pub fn depth(&mut self, max: usize, cost: StepCost) -> usize {
        let (mut best, mut best_speed) = (0, 1.0);
        let (mut tokens, mut chance) = (1.0, 1.0);
        for k in 1..=max {
            chance *= self.acceptance;
            tokens += chance;
            let speed = tokens / (1.0 + k as f32 * (cost.row + cost.draft));
            if speed > best_speed {
                (best, best_speed) = (k, speed);
            }
        }
        if best > 0 || max == 0 {
            self.idle = 0;
            return best;
        }
        self.idle += 1;
        if self.idle < RETRY {
            return 0;
        }
        self.idle = 0;
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: StepCost = StepCost { row: 0.02, draft: 0.08 };
    const CPU: StepCost = StepCost { row: 0.3, draft: 0.3 };

    #[test]
    fn a_text_that_accepts_nothing_is_decoded_plainly_almost_always() {
        let mut controller = DepthController::default();
        let mut drafted = 0;
        for _ in 0..1000 {
            let k = controller.depth(6, GPU);
            drafted += k;
            controller.observe(k, 0);
        }
        assert!(drafted < 150, "{drafted} useless drafts");
    }

    #[test]
    fn depth_grows_with_acceptance_and_shrinks_with_cost() {
        let mut controller = DepthController::default();
        for _ in 0..100 {
            controller.observe(4, 4);
        }
        assert_eq!(controller.depth(6, GPU), 6);
        assert!(controller.depth(6, CPU) >= 3);
        for _ in 0..40 {
            controller.observe(2, 1);
        }
        assert!(controller.depth(6, GPU) <= 4);
        assert!(controller.depth(6, CPU) <= 1);
    }

    #[test]
    fn after_a_bad_stretch_drafts_come_back() {
        let mut controller = DepthController::default();
        for _ in 0..200 {
            controller.observe(1, 0);
        }
        let mut steps = 0;
        while controller.acceptance() < 0.6 {
            let k = controller.depth(4, GPU);
            controller.observe(k, k);
            steps += 1;
        }
        assert!(steps < 1500, "{steps}");
    }
}
