//! Pearson's chi-square test of counts against probabilities.

/// Probability that counts drawn from `probs` differ from it as much as `counts` do, or more. Cells with fewer than five
/// expected draws are pooled; draws where `probs` is 0 make it 0.
pub(crate) fn p_value(counts: &[u64], probs: &[f64]) -> f64 {
    assert_eq!(counts.len(), probs.len());
    let n: u64 = counts.iter().sum();
    let (mut statistic, mut cells) = (0.0, 0_usize);
    let (mut pooled_count, mut pooled_expected) = (0.0, 0.0);
    let mut add = |count: f64, expected: f64| {
        statistic += (count - expected).powi(2) / expected;
        cells += 1;
    };
    for (&count, &prob) in counts.iter().zip(probs) {
        let (count, expected) = (count as f64, prob * n as f64);
        if expected == 0.0 && count > 0.0 {
            return 0.0;
        } else if expected >= 5.0 {
            add(count, expected);
        } else {
            pooled_count += count;
            pooled_expected += expected;
        }
    }
    if pooled_expected > 0.5 {
        add(pooled_count, pooled_expected);
    }
    if cells < 2 { 1.0 } else { upper_gamma((cells - 1) as f64 / 2.0, statistic / 2.0) }
}

/// The regularised upper incomplete gamma function Q(a, x): by its series below a + 1, by Lentz's continued fraction above
/// (Abramowitz and Stegun 6.5.29, 6.5.31).
fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-16 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return 1.0 - front * sum;
    }
    let (mut b, mut c) = (x + 1.0 - a, 1e300);
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..10_000 {
        let an = -f64::from(i) * (f64::from(i) - a);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * h
}

/// ln Γ(a) for half-integers a > 0, by the recurrence from Γ(1/2) = √π and Γ(1) = 1.
fn ln_gamma(a: f64) -> f64 {
    let mut x = if a.fract() == 0.0 { 1.0 } else { 0.5 };
    let mut sum = if a.fract() == 0.0 { 0.0 } else { std::f64::consts::PI.sqrt().ln() };
    while x < a {
        sum += x.ln();
        x += 1.0;
    }
    sum
}

/// Upper 5 % and 0.1 % points of the chi-square distribution, as tables print them.
#[test]
fn agrees_with_printed_tables() {
    for (df, x, p) in [
        (1, 3.841, 0.05),
        (2, 5.991, 0.05),
        (5, 11.070, 0.05),
        (10, 18.307, 0.05),
        (30, 43.773, 0.05),
        (100, 124.342, 0.05),
        (1, 10.828, 0.001),
        (10, 29.588, 0.001),
        (50, 86.661, 0.001),
    ] {
        let found = upper_gamma(f64::from(df) / 2.0, x / 2.0);
        assert!((found / p - 1.0).abs() < 1e-3, "df {df}: {found}");
    }
}
