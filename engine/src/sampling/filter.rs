//! Top-k, top-p and min-p. None of them sorts the vocabulary: they select, in time linear in it.

use std::cmp::Ordering;

/// A token and its logit, or its weight: a number in proportion to its probability.
pub(super) type Scored<T> = (u32, T);

/// Best first; ties by lower id.
pub(super) fn best_first<T: PartialOrd>(a: &Scored<T>, b: &Scored<T>) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// The `k` best of `logits` in no particular order, or all that are not `-inf` if there are fewer. `k` is at least 1.
pub(super) fn top_k(logits: &[f32], k: usize) -> Vec<Scored<f32>> {
    // One pass with a growing threshold. A later token never beats an equal earlier one, so the comparison is strict.
    let capacity = k.saturating_mul(2).max(64).min(logits.len() + 1);
    let mut best: Vec<Scored<f32>> = Vec::with_capacity(capacity);
    let mut threshold = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > threshold {
            best.push((id as u32, logit));
            if best.len() == capacity {
                threshold = keep_best(&mut best, k);
            }
        }
    }
    keep_best(&mut best, k);
    best
}

/// Cuts `best` down to its `k` best and returns the least of them.
fn keep_best(best: &mut Vec<Scored<f32>>, k: usize) -> f32 {
    if best.len() <= k {
        return f32::NEG_INFINITY;
    }
    let (_, &mut (_, least), _) = best.select_nth_unstable_by(k - 1, best_first);
    best.truncate(k);
    least
}

/// Keeps the shortest prefix, by weight, whose sum reaches `p` of the whole; at least one.
pub(super) fn top_p(weights: &mut Vec<Scored<f64>>, p: f64) {
    let target = p * weights.iter().map(|w| w.1).sum::<f64>();
    // Quickselect by mass: the prefix holds all of `..low`, which sums to `mass`, and ends in `low + 1..=high`.
    let (mut low, mut high, mut mass) = (0, weights.len(), 0.0);
    while high - low > 1 {
        let middle = low.midpoint(high);
        weights[low..high].select_nth_unstable_by(middle - low, best_first);
        let with_half = mass + weights[low..middle].iter().map(|w| w.1).sum::<f64>();
        if with_half >= target {
            high = middle;
        } else {
            (low, mass) = (middle, with_half);
        }
    }
    weights.truncate(high);
}

/// Keeps what weighs at least `p` times the heaviest, which weighs 1.
pub(super) fn min_p(weights: &mut Vec<Scored<f64>>, p: f64) {
    weights.retain(|w| w.1 >= p);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(logits: &[f32]) -> Vec<Scored<f32>> {
        let mut all: Vec<_> = logits.iter().enumerate().map(|(i, &l)| (i as u32, l)).collect();
        all.sort_by(best_first);
        all
    }

    proptest! {
        /// Few distinct values, so that there are ties; more tokens than the threshold's buffer holds.
        #[test]
        fn top_k_is_the_head_of_the_sorted_list(logits in prop::collection::vec((-40i8..40).prop_map(f32::from), 1..600), k in 1usize..90) {
            let mut best = top_k(&logits, k);
            best.sort_by(best_first);
            let mut all = sorted(&logits);
            all.truncate(k);
            prop_assert_eq!(best, all);
        }

        #[test]
        fn top_p_is_the_shortest_prefix_of_the_sorted_list(logits in prop::collection::vec(-12f32..0.0, 1..300), p in 0f64..=1.0) {
            let mut all: Vec<_> = sorted(&logits).into_iter().map(|(i, l)| (i, f64::from(l).exp())).collect();
            let mut kept: Vec<_> = all.clone();
            kept.sort_by_key(|w| w.0);
            top_p(&mut kept, p);
            kept.sort_by(best_first);
            let total: f64 = all.iter().map(|w| w.1).sum();
            let sum = |n: usize| all[..n].iter().map(|w| w.1).sum::<f64>();
            prop_assert!(!kept.is_empty());
            prop_assert!(sum(kept.len()) >= p * total - 1e-9);
            prop_assert!(kept.len() == 1 || sum(kept.len() - 1) < p * total + 1e-9);
            all.truncate(kept.len());
            prop_assert_eq!(kept, all);
        }
    }

    #[test]
    fn minus_infinity_is_never_among_the_best() {
        assert_eq!(top_k(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY], 3), [(1, 1.0)]);
    }
}
