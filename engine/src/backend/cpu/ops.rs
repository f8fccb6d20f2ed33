//! The small operations between the matrix products.

use super::simd::{dot, scale};

/// RMS norm of one vector in place: `x w / sqrt(mean(x^2) + eps)`. The squares are summed in f64.
pub(super) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let inverse = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt() as f32;
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * inverse * w;
    }
}

/// RMS norm of every row of `x`, each as long as `weight`.
pub(super) fn rms_norm_rows(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut y = x.to_vec();
    y.chunks_exact_mut(weight.len()).for_each(|row| rms_norm(row, weight, eps));
    y
}

/// L2 norm in place: `x / sqrt(sum(x^2) + 1e-6)`, then times `factor`.
pub(super) fn l2_norm(x: &mut [f32], factor: f32) {
    let inverse = 1.0 / (dot(x, x) + 1e-6).sqrt();
    scale(x, inverse);
    if factor != 1.0 {
        scale(x, factor);
    }
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x sigmoid(x)`.
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`.
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Adds `b` to `a`.
pub(super) fn add(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

/// Cosine and sine of every rotary pair at one position; the angles are formed in f64.
pub(super) struct Rotation {
    cos_sin: Vec<(f32, f32)>,
}

impl Rotation {
    pub(super) fn at(position: u32, freqs: &[f64], factor: f32) -> Self {
        let cos_sin = freqs
            .iter()
            .map(|f| {
                let (sin, cos) = (f64::from(position) * f).sin_cos();
                (cos as f32 * factor, sin as f32 * factor)
            })
            .collect();
        Self { cos_sin }
    }

    /// Rotates the pairs (i, i + n) of a head's first 2 n dimensions.
    pub(super) fn apply(&self, head: &mut [f32]) {
        let n = self.cos_sin.len();
        for (i, &(cos, sin)) in self.cos_sin.iter().enumerate() {
            let (a, b) = (head[i], head[i + n]);
            head[i] = a * cos - b * sin;
            head[i + n] = a * sin + b * cos;
        }
    }
}

/// Normalised Walsh-Hadamard transform in place: orthogonal and its own inverse. The length is a power of two.
pub(super) fn hadamard(x: &mut [f32]) {
    let n = x.len();
    let mut half = 1;
    while half < n {
        for block in x.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    scale(x, 1.0 / (n as f32).sqrt());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hadamard_is_its_own_inverse_and_keeps_length() {
        let x: Vec<f32> = (0..256).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
        let mut y = x.clone();
        hadamard(&mut y);
        assert!((dot(&x, &x) - dot(&y, &y)).abs() < 1e-3);
        assert!(x.iter().zip(&y).any(|(a, b)| (a - b).abs() > 0.1));
        hadamard(&mut y);
        assert!(x.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    #[test]
    fn rotation_depends_on_the_difference_of_positions_only() {
        let freqs: Vec<f64> = (0..32).map(|i| 1e7f64.powf(-2.0 * f64::from(i) / 64.0)).collect();
        let head: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
        let score = |a: u32, b: u32| {
            let (mut x, mut y) = (head.clone(), head.clone());
            Rotation::at(a, &freqs, 1.0).apply(&mut x);
            Rotation::at(b, &freqs, 1.0).apply(&mut y);
            dot(&x, &y)
        };
        assert!((score(100, 7) - score(100_093, 100_000)).abs() < 1e-3);
        assert!((score(100, 7) - score(100, 8)).abs() > 1e-3);
    }

    #[test]
    fn softplus_is_finite_and_smooth_at_its_switch() {
        assert!((softplus(19.999) - softplus(20.001)).abs() < 0.01);
        assert_eq!(softplus(100.0), 100.0);
        assert!((softplus(0.0) - 2f32.ln()).abs() < 1e-6);
    }
}
