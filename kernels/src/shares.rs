//! Who does what of a matmul: consecutive units of work, an output tile in one split of one matrix each, cut into one share a block.

/// Bounds of `blocks` shares of which the most costly costs as little as it can. `runs` has the units of each split of each job, and
/// what one costs; `part` is what the start of a part of a share costs.
pub(crate) fn share_out(runs: &[(u32, u64)], part: u64, blocks: u32) -> Vec<u32> {
    // One block can take all of it.
    let (mut low, mut high) = (0, runs.iter().map(|&(units, unit)| u64::from(units) * unit + part).sum::<u64>());
    while low + 1 < high {
        let most = low.midpoint(high);
        if cut(runs, part, most, blocks).is_some() { high = most } else { low = most }
    }
    cut(runs, part, high, blocks).unwrap_or_default()
}

/// Bounds of `blocks` shares that cost `most` each at most, parts included, or none if so many are too few.
fn cut(runs: &[(u32, u64)], part: u64, most: u64, blocks: u32) -> Option<Vec<u32>> {
    let (mut bounds, mut at, mut room) = (vec![0], 0, most);
    for &(units, unit) in runs {
        let mut left = units;
        while left > 0 {
            let fit = (room.saturating_sub(part) / unit.max(1)).min(u64::from(left)) as u32;
            if fit == 0 && room == most {
                return None;
            }
            at += fit;
            left -= fit;
            room = room.saturating_sub(part + u64::from(fit) * unit);
            if left > 0 {
                bounds.push(at);
                room = most;
            }
        }
    }
    bounds.resize((blocks as usize + 1).max(bounds.len() + 1), at);
    (bounds.len() == blocks as usize + 1).then_some(bounds)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// What a share costs, with its parts.
    fn weight(runs: &[(u32, u64)], part: u64, from: u32, to: u32) -> u64 {
        let mut before = 0;
        let parts = runs.iter().map(|&(units, unit)| {
            let (first, last) = (from.max(before), to.min(before + units));
            before += units;
            if first < last { u64::from(last - first) * unit + part } else { 0 }
        });
        parts.sum()
    }

    /// Checks the shares of some runs among some numbers of blocks.
    fn check(runs: &[(u32, u64)], part: u64) {
        let total: u64 = runs.iter().map(|&(units, unit)| u64::from(units) * unit).sum();
        let units: u32 = runs.iter().map(|run| run.0).sum();
        for blocks in [1, 7, 132] {
            let bounds = share_out(runs, part, blocks);
            assert_eq!((bounds.len(), bounds[0], bounds[blocks as usize]), (blocks as usize + 1, 0, units));
            assert!(bounds.windows(2).all(|pair| pair[0] <= pair[1]), "{bounds:?}");
            let heaviest = bounds.windows(2).map(|pair| weight(runs, part, pair[0], pair[1])).max().unwrap();
            let unit = runs.iter().map(|run| run.1).max().unwrap();
            let fair = (total + runs.len() as u64 * part) / u64::from(blocks) + 2 * part + unit;
            assert!(heaviest <= fair, "{runs:?}, {part} a part, {blocks} blocks: {heaviest} of {fair}");
        }
    }

    #[test]
    fn shares_cover_everything_and_none_is_much_heavier() {
        // The 27B's: DeltaNet inputs, gate and up, down in four splits; one small matrix. By bytes, then by cycles.
        let all: [&[(u32, u64)]; 4] = [
            &[(640, 46_080), (384, 46_080), (3, 46_080), (3, 46_080)],
            &[(1088, 46_080), (1088, 46_080)],
            &[(320, 39_168); 4],
            &[(2, 4608)],
        ];
        for runs in all {
            check(runs, 48 << 10);
            let cycles: Vec<_> = runs.iter().map(|&(units, unit)| (units, unit / 17)).collect();
            [0, 900, 2840, 20_000].into_iter().for_each(|part| check(&cycles, part));
        }
    }

    /// Whatever costs a cache or a self-test comes up with.
    #[test]
    fn any_costs_share_out_everything() {
        let mut state = 5u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let runs: Vec<(u32, u64)> =
                (0..=below(8)).map(|_| (1 + below(1500) as u32, 10u64.pow(below(7) as u32) * (1 + below(9)))).collect();
            let part = 10u64.pow(below(7) as u32) * below(10);
            check(&runs, part);
        }
    }
}
