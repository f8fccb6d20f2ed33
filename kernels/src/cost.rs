//! What rows and drafts cost on a GPU, for the choice of how deep to draft.

use openjet_engine::drafts::StepCost;

/// As a large model's steps on an H200 were measured, by least squares of the relative error; what a step takes elsewhere is
/// mostly reading weights too.
pub(crate) const STEP: StepCost = StepCost { row: 0.0217, tile: 0.109, pass: 0.643, draft: 0.0452 };

#[cfg(test)]
mod tests {
    use openjet_engine::drafts::{Rows, depths};

    use super::STEP;

    /// Agents, drafts of each, milliseconds of a step: the table in `docs/performance.md`.
    const MEASURED: [(usize, usize, f32); 18] = [
        (1, 0, 6.25),
        (1, 1, 6.81),
        (1, 2, 7.42),
        (1, 3, 7.90),
        (1, 4, 8.39),
        (1, 6, 9.35),
        (4, 0, 7.05),
        (4, 1, 7.73),
        (4, 2, 9.08),
        (4, 3, 9.68),
        (4, 4, 12.05),
        (4, 6, 18.59),
        (8, 0, 7.63),
        (8, 1, 9.36),
        (8, 2, 11.88),
        (8, 3, 18.00),
        (8, 4, 19.99),
        (8, 6, 28.04),
    ];
    /// What a step of one row takes, as fitted.
    const PLAIN: f32 = 6.49;
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
            assert!((expected / ms - 1.0).abs() < 0.06, "{agents} agents, {drafts} drafts: {ms} ms, not {expected:.2}");
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
                let depths = chosen(agents, acceptance);
                // As it was measured, where it was.
                let fitted = speed(&depths, acceptance) / PLAIN;
                let alike = depths.iter().all(|depth| *depth == depths[0]);
                let ours = Some(measured(depths[0])).filter(|&speed| alike && speed > 0.0).unwrap_or(fitted);
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
