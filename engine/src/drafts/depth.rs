//! How deep to draft: as deep as the acceptance seen so far pays for, and not at all where plain decoding is faster.

/// What a step takes, as shares of one that verifies one row and drafts nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// One more row to verify.
    pub row: f32,
    /// One more tile: rows are multiplied 8 at a time.
    pub tile: f32,
    /// One more pass over the weights, which are read once for 24 rows.
    pub pass: f32,
    /// One run of the draft head, for all conversations at once.
    pub draft: f32,
}

/// Rows of a tile.
const TILE_ROWS: usize = 8;
/// Rows for which weights are read once.
const PASS_ROWS: usize = 24;

impl StepCost {
    /// What a step takes that verifies `rows` rows and runs the draft head `depth` times.
    #[must_use]
    pub fn step(&self, rows: usize, depth: usize) -> f32 {
        let more = |of: usize| rows.div_ceil(of).saturating_sub(1) as f32;
        1.0 + self.row * more(1) + self.tile * more(TILE_ROWS) + self.pass * more(PASS_ROWS) + self.draft * depth as f32
    }
}

/// Rows that a step verifies in any case, and the tokens that they are expected to yield.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    rows: usize,
    tokens: f32,
}

impl Rows {
    /// The newest tokens of so many conversations, each of which yields a token.
    #[must_use]
    pub fn plain(conversations: usize) -> Self {
        Self { rows: conversations, tokens: conversations as f32 }
    }

    /// Adds drafts of one conversation, of which a share is accepted.
    pub fn add(&mut self, (drafts, acceptance): (usize, f32)) {
        self.rows += drafts;
        self.tokens += expected(drafts, acceptance);
    }

    /// Takes out what was added.
    pub fn remove(&mut self, (drafts, acceptance): (usize, f32)) {
        self.rows -= drafts;
        self.tokens -= expected(drafts, acceptance);
    }
}

/// Of so many drafts, of which a share is accepted, how many stand: those before the first refused one.
fn expected(drafts: usize, acceptance: f32) -> f32 {
    (1..=drafts as i32).map(|depth| acceptance.powi(depth)).sum()
}

/// Of several conversations that share a step beside `rows`, the depths that yield the most tokens for its time. `chances` has
/// of each the share of its drafts that is accepted, below 1, and its deepest draft.
#[must_use]
pub fn depths(cost: StepCost, rows: Rows, chances: &[(f32, usize)]) -> Vec<usize> {
    // By their chance to be accepted: those of one conversation come in their order.
    let mut drafts = Vec::with_capacity(chances.iter().map(|(_, most)| most).sum());
    for (who, &(acceptance, most)) in chances.iter().enumerate() {
        drafts.extend((1..=most).map(|depth| (acceptance.powi(depth as i32), depth, who)));
    }
    drafts.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let deepest = chances.iter().map(|(_, most)| *most).max().unwrap_or(0);
    let mut best = (rows.tokens / cost.step(rows.rows, 0), 0, 0);
    for limit in 1..=deepest {
        let mut tokens = rows.tokens;
        for (n, &(chance, ..)) in (1..).zip(drafts.iter().filter(|(_, depth, _)| *depth <= limit)) {
            tokens += chance;
            let speed = tokens / cost.step(rows.rows + n, limit);
            if speed > best.0 {
                best = (speed, limit, n);
            }
        }
    }
    let (_, limit, n) = best;
    let mut depths = vec![0; chances.len()];
    drafts.iter().filter(|(_, depth, _)| *depth <= limit).take(n).for_each(|&(_, _, who)| depths[who] += 1);
    depths
}

/// Weight of the newest observation.
const PACE: f32 = 0.06;
/// Acceptance assumed of a new conversation.
const PRIOR: f32 = 0.7;
/// Steps without drafts before one is tried again.
const RETRY: u32 = 48;

/// Learns how many drafts of one conversation and one source are accepted.
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

    /// The depth where `best` of at most `most` pay. Where that is none, one draft is tried again after a while, since texts
    /// change.
    pub fn settle(&mut self, best: usize, most: usize) -> usize {
        if best > 0 || most == 0 {
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

    const GPU: StepCost = StepCost { row: 0.016, tile: 0.2, pass: 0.46, draft: 0.054 };
    const CPU: StepCost = StepCost { row: 0.3, tile: 0.0, pass: 0.0, draft: 0.3 };

    /// The depth of a conversation that is alone in its step.
    fn depth(controller: &mut DepthController, most: usize, cost: StepCost) -> usize {
        let best = depths(cost, Rows::plain(1), &[(controller.acceptance(), most)])[0];
        controller.settle(best, most)
    }

    #[test]
    fn a_text_that_accepts_nothing_is_decoded_plainly_almost_always() {
        let mut controller = DepthController::default();
        let mut drafted = 0;
        for _ in 0..1000 {
            let k = depth(&mut controller, 6, GPU);
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
        assert_eq!(depth(&mut controller, 6, GPU), 6);
        assert!(depth(&mut controller, 6, CPU) >= 3);
        for _ in 0..40 {
            controller.observe(2, 1);
        }
        assert!(depth(&mut controller, 6, GPU) <= 4);
        assert!(depth(&mut controller, 6, CPU) <= 1);
    }

    #[test]
    fn after_a_bad_stretch_drafts_come_back() {
        let mut controller = DepthController::default();
        for _ in 0..200 {
            controller.observe(1, 0);
        }
        let mut steps = 0;
        while controller.acceptance() < 0.6 {
            let k = depth(&mut controller, 4, GPU);
            controller.observe(k, k);
            steps += 1;
        }
        assert!(steps < 1500, "{steps}");
    }

    #[test]
    fn steps_are_filled_up_to_a_tile_or_a_pass_with_the_likeliest_drafts() {
        // Four alike: two rows each make a whole tile, four each two of them.
        assert_eq!(depths(GPU, Rows::plain(4), &[(0.5, 8); 4]), [1; 4]);
        assert_eq!(depths(GPU, Rows::plain(4), &[(0.8, 8); 4]), [3; 4]);
        // Of four that differ the likelier ones have the deeper drafts, and the tile is as full.
        let mixed = depths(GPU, Rows::plain(4), &[(0.9, 8), (0.3, 8), (0.3, 8), (0.1, 8)]);
        assert!(mixed[0] > mixed[1] && mixed[1] >= mixed[3], "{mixed:?}");
        assert_eq!(mixed.iter().sum::<usize>(), 4, "{mixed:?}");
        // Nobody drafts deeper than may be, and rows that are there in any case count.
        assert_eq!(depths(GPU, Rows::plain(1), &[(0.99, 2)]), [2]);
        let mut rows = Rows::plain(2);
        rows.add((22, 0.9));
        assert_eq!(depths(GPU, rows, &[(0.5, 8)]), [0]);
        rows.remove((22, 0.9));
        assert_eq!(depths(GPU, rows, &[(0.5, 8)]), depths(GPU, Rows::plain(2), &[(0.5, 8)]));
        assert!(depths(CPU, Rows::plain(0), &[]).is_empty());
    }
}
