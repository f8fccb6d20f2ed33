//! What rows and drafts cost on a GPU, for the choice of how deep to draft.

use openjet_engine::drafts::StepCost;

/// As a large model's steps on an H200 were measured (`bench/results/h200-02e23dd.json`), by least squares of the relative error;
/// what a step takes elsewhere is mostly reading weights too.
pub(crate) const STEP: StepCost = StepCost { row: 0.0156, tile: 0.196, pass: 0.464, draft: 0.0543 };

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use openjet_engine::drafts::{Rows, depths};
    use serde_json::Value;

    use super::STEP;

    const MEASURED: &str = include_str!("../../bench/results/h200-02e23dd.json");

    /// Milliseconds of a step, by agents and drafts of each.
    fn measured() -> BTreeMap<(usize, usize), f64> {
        let json: Value = serde_json::from_str(MEASURED).unwrap();
        let number = |row: &Value, name: &str| row[name].as_u64().unwrap() as usize;
        let rows = json["backend"]["decode"].as_array().unwrap();
        rows.iter().map(|r| ((number(r, "agents"), number(r, "drafts")), r["ms_a_step"].as_f64().unwrap())).collect()
    }

    #[test]
    fn steps_take_what_was_measured() {
        let measured = measured();
        let plain = measured[&(1, 0)];
        for ((agents, drafts), ms) in measured {
            let expected = plain * f64::from(STEP.step(agents * (1 + drafts), drafts));
            assert!((expected / ms - 1.0).abs() < 0.05, "{agents} agents, {drafts} drafts: {ms} ms, not {expected:.2}");
        }
    }

    #[test]
    fn the_depth_that_is_chosen_is_as_fast_as_the_best_one() {
        let measured = measured();
        let deepest = measured.keys().map(|(_, drafts)| *drafts).max().unwrap();
        for acceptance in [0.5f32, 0.75, 0.9] {
            for agents in [1, 4, 8] {
                let speed = |drafts: usize| {
                    let tokens: f64 = (0..=drafts as i32).map(|k| f64::from(acceptance).powi(k)).sum();
                    tokens / measured[&(agents, drafts)]
                };
                let best = (0..=deepest).map(speed).fold(0.0, f64::max);
                let chosen = depths(STEP, Rows::plain(agents), &vec![(acceptance, deepest); agents]);
                // Those that were measured have one depth for all; a mixed one is taken as the shallowest of it.
                let shallowest = *chosen.iter().min().unwrap();
                assert!(
                    speed(shallowest) >= 0.97 * best,
                    "{agents} agents, {acceptance} accepted: {chosen:?} is {:.2} of the best",
                    speed(shallowest) / best
                );
            }
        }
    }
}
