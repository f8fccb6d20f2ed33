use std::fmt;

use serde::{Deserialize, Serialize};

/// The middle and the ends of repeated measurements of one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of some measurements; zeros of none.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let middle = sorted.len() / 2;
        let median =
            if sorted.len().is_multiple_of(2) { sorted[middle - 1].midpoint(sorted[middle]) } else { sorted[middle] };
        Self { median, min, max }
    }

    /// The spread of a function of the measurement that rises, or falls, all along.
    #[must_use]
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (f(self.min), f(self.max));
        Self { median: f(self.median), min: a.min(b), max: a.max(b) }
    }
}

impl fmt::Display for Spread {
    /// `median (min-max)`, or the median where it is all that there is to say.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = f.precision().unwrap_or(1);
        let text = |value: f64| format!("{value:.places$}");
        let (median, min, max) = (text(self.median), text(self.min), text(self.max));
        if min == max { f.write_str(&median) } else { write!(f, "{median} ({min}-{max})") }
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn spreads_are_of_all_values() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(spread.map(|x| 6.0 / x), Spread { median: 3.0, min: 2.0, max: 6.0 });
        assert_eq!((format!("{spread:.0}"), format!("{:.1}", Spread::of(&[2.0]))), ("2 (1-3)".into(), "2.0".into()));
    }
}
