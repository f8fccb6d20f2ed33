//! What rows and drafts cost on a GPU, for the choice of how deep to draft.

use openjet_engine::drafts::StepCost;

/// As a large model's steps on an H200 were measured, by least squares of the relative error; what a step takes elsewhere is
/// mostly reading weights too.
pub(crate) const STEP: StepCost = StepCost { row: 0.02, tile: 0.139, pass: 0.509, draft: 0.0604 };

#[cfg(test)]
mod tests {
    use openjet_engine::drafts::{Rows, depths};

    use super::STEP;

    /// Agents, drafts of each, milliseconds of a step: the table in `docs/performance.md`.
    const MEASURED: [(usize, usize, f32); 15] = [
        (1, 0, 7.15),
        (1, 2, 8.37),
        (1, 3, 8.81),
        (1, 4, 9.39),
        (1, 8, 13.3),
        (4, 0, 7.79),
        (4, 2, 11.0),
        (4, 3, 11.6),
        (4, 4, 13.5),
        (4, 8, 23.8),
        (8, 0, 8.40),
        (8, 2, 13.4),
        (8, 3, 19.9),
        (8, 4, 22.3),
        (8, 8, 35.9),
    ];
    /// What a step of one row takes, as fitted.
    const PLAIN: f32 = 7.24;
    const DEEPEST: usize = 8;

    fn chosen(agents: usize, acceptance: f32) -> Vec<usize> {
        depths(STEP, Rows::plain(agents), &vec![(acceptance, DEEPEST); agents])
    }

    /// Tokens of a step's time, in that of a plain step of one agent.
    fn speed(depths: &[usize], acceptance: f32) -> f32 {
        let tokens: f32 = depths.iter().flat_map(|&depth| (0..=depth as i32).map(|k| acceptance.powi(k))).sum();
        let rows = depths.iter().map(|depth| 1 + depth).sum();
        tokens / STEP.step(rows, depths.iter().copied().max().unwrap_or(0))
    }

    #[test]
    fn steps_take_what_was_measured() {
        for (agents, drafts, ms) in MEASURED {
            let expected = PLAIN * STEP.step(agents * (1 + drafts), drafts);
            assert!((expected / ms - 1.0).abs() < 0.04, "{agents} agents, {drafts} drafts: {ms} ms, not {expected:.2}");
        }
    }

    #[test]
    fn the_depth_that_is_chosen_is_the_fastest_of_those_that_were_measured() {
        assert_eq!(chosen(8, 0.75), [2; 8]);
        assert_eq!(chosen(4, 0.75), [3; 4]);
        assert!(chosen(1, 0.75)[0] >= 5);
        for acceptance in [0.5f32, 0.75, 0.9] {
            for agents in [1, 4, 8] {
                let measured = |drafts: usize| {
                    let ms = MEASURED.iter().find(|m| (m.0, m.1) == (agents, drafts)).map(|m| m.2);
                    let tokens: f32 = (0..=drafts as i32).map(|k| acceptance.powi(k)).sum();
                    ms.map_or(0.0, |ms| tokens * agents as f32 / ms)
                };
                let best = (0..=DEEPEST).map(measured).fold(0.0, f32::max);
                let ours = speed(&chosen(agents, acceptance), acceptance) / PLAIN;
                assert!(ours >= 0.96 * best, "{agents} agents, {acceptance} accepted: {ours:.3} of {best:.3} a ms");
            }
        }
    }

    #[test]
    fn whoever_joins_adds_to_the_speed() {
        for acceptance in [0.5, 0.75, 0.9, 0.97] {
            let speeds: Vec<f32> = (1..=24).map(|n| speed(&chosen(n, acceptance), acceptance)).collect();
            assert!(speeds.windows(2).all(|s| s[1] > s[0]), "{acceptance}: {speeds:?}");
        }
    }
}
