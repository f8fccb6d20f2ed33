//! Who does what of a matmul: consecutive units of work, an output tile in one split of one matrix each, cut into one share a block.

/// What the start of a part of a share costs, as bytes of weights that the block could read meanwhile: the first weights come
/// from far, and the last products are waited for.
const PART_BYTES: u64 = 48 << 10;

/// Bounds of `blocks` shares of which the largest is as small as it can be. `runs` has the units of each split of each job, and the
/// bytes of one.
pub(crate) fn share_out(runs: &[(u32, u64)], blocks: u32) -> Vec<u32> {
    // One block can take all of it.
    let (mut low, mut high) = (0, runs.iter().map(|&(units, unit)| u64::from(units) * unit + PART_BYTES).sum::<u64>());
    while low + 1 < high {
        let most = low.midpoint(high);
        if cut(runs, most, blocks).is_some() { high = most } else { low = most }
    }
    cut(runs, high, blocks).unwrap_or_default()
}

/// Bounds of `blocks` shares of at most `most` bytes each, parts included, or none if so many are too few.
fn cut(runs: &[(u32, u64)], most: u64, blocks: u32) -> Option<Vec<u32>> {
    let (mut bounds, mut at, mut room) = (vec![0], 0, most);
    for &(units, unit) in runs {
        let mut left = units;
        while left > 0 {
            let fit = (room.saturating_sub(PART_BYTES) / unit.max(1)).min(u64::from(left)) as u32;
            if fit == 0 && room == most {
                return None;
            }
            at += fit;
            left -= fit;
            room = room.saturating_sub(PART_BYTES + u64::from(fit) * unit);
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

    /// Bytes of a share, with its parts.
    fn weight(runs: &[(u32, u64)], from: u32, to: u32) -> u64 {
        let mut before = 0;
        let parts = runs.iter().map(|&(units, unit)| {
            let (first, last) = (from.max(before), to.min(before + units));
            before += units;
            if first < last { u64::from(last - first) * unit + PART_BYTES } else { 0 }
        });
        parts.sum()
    }

    #[test]
    fn shares_cover_everything_and_none_is_much_heavier() {
        // The 27B's: DeltaNet inputs, gate and up, down in four splits; one small matrix.
        let all: [&[(u32, u64)]; 4] = [
            &[(640, 46_080), (384, 46_080), (3, 46_080), (3, 46_080)],
            &[(1088, 46_080), (1088, 46_080)],
            &[(320, 39_168); 4],
            &[(2, 4608)],
        ];
        for runs in all {
            let total: u64 = runs.iter().map(|&(units, unit)| u64::from(units) * unit).sum();
            let units: u32 = runs.iter().map(|run| run.0).sum();
            for blocks in [1, 7, 132] {
                let bounds = share_out(runs, blocks);
                assert_eq!((bounds.len(), bounds[0], bounds[blocks as usize]), (blocks as usize + 1, 0, units));
                assert!(bounds.windows(2).all(|pair| pair[0] <= pair[1]), "{bounds:?}");
                let heaviest = bounds.windows(2).map(|pair| weight(runs, pair[0], pair[1])).max().unwrap();
                let unit = runs.iter().map(|run| run.1).max().unwrap();
                let fair = (total + runs.len() as u64 * PART_BYTES) / u64::from(blocks) + 2 * PART_BYTES + unit;
                assert!(heaviest <= fair, "{blocks} blocks: {heaviest} of {fair} bytes");
            }
        }
    }
}
