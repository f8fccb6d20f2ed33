//! The inner loops that LLVM turns into vector code, compiled once for each instruction set and chosen at run time.
//!
//! Products and sums stay separate operations (never fused), and every sum runs over [`LANES`] fixed lanes, so that a result
//! is the same on every machine.

use multiversion::multiversion;

/// Partial sums of every dot product.
const LANES: usize = 16;

/// Sums the lanes as a tree. Only constant indices: the lanes can then live in registers.
#[inline(always)]
fn reduce(acc: [f32; LANES]) -> f32 {
    let a: [f32; 8] = std::array::from_fn(|i| acc[i] + acc[i + 8]);
    let b: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
    (b[0] + b[2]) + (b[1] + b[3])
}

/// Four weight rows times one activation row; all of one length.
#[multiversion(targets("x86_64+avx2+f16c+fma", "aarch64+neon"))]
pub(super) fn dot4(w: [&[f32]; 4], x: &[f32]) -> [f32; 4] {
    let n = x.len() / LANES * LANES;
    // Four arrays, not an array of arrays: only then do they stay in registers.
    let (mut s0, mut s1, mut s2, mut s3) = ([0f32; LANES], [0f32; LANES], [0f32; LANES], [0f32; LANES]);
    let (w0, w1, w2, w3) = (&w[0][..n], &w[1][..n], &w[2][..n], &w[3][..n]);
    for ((((x, a), b), c), d) in x[..n]
        .chunks_exact(LANES)
        .zip(w0.chunks_exact(LANES))
        .zip(w1.chunks_exact(LANES))
        .zip(w2.chunks_exact(LANES))
        .zip(w3.chunks_exact(LANES))
    {
        for l in 0..LANES {
            s0[l] += a[l] * x[l];
            s1[l] += b[l] * x[l];
            s2[l] += c[l] * x[l];
            s3[l] += d[l] * x[l];
        }
    }
    let mut sums = [reduce(s0), reduce(s1), reduce(s2), reduce(s3)];
    for (sum, w) in sums.iter_mut().zip(w) {
        for (a, b) in w[n..].iter().zip(&x[n..]) {
            *sum += a * b;
        }
    }
    sums
}

/// Dot product of two vectors of one length.
#[multiversion(targets("x86_64+avx2+f16c+fma", "aarch64+neon"))]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len() / LANES * LANES;
    let mut acc = [0f32; LANES];
    for (a, b) in a[..n].chunks_exact(LANES).zip(b[..n].chunks_exact(LANES)) {
        for l in 0..LANES {
            acc[l] += a[l] * b[l];
        }
    }
    let mut sum = reduce(acc);
    for (a, b) in a[n..].iter().zip(&b[n..]) {
        sum += a * b;
    }
    sum
}

/// `y += s x`.
#[multiversion(targets("x86_64+avx2+f16c+fma", "aarch64+neon"))]
pub(super) fn axpy(y: &mut [f32], s: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += s * x;
    }
}

/// `y = s y`.
#[multiversion(targets("x86_64+avx2+f16c+fma", "aarch64+neon"))]
pub(super) fn scale(y: &mut [f32], s: f32) {
    for y in y {
        *y *= s;
    }
}

/// One column of the delta rule over one token: decay, read with `k`, write back, read with `q`.
///
/// `column` is one value dimension of a head's state (one number for each key dimension). Returns the output for `q`.
#[multiversion(targets("x86_64+avx2+f16c+fma", "aarch64+neon"))]
pub(super) fn delta_column(column: &mut [f32], k: &[f32], q: &[f32], v: f32, decay: f32, beta: f32) -> f32 {
    let n = column.len() / LANES * LANES;
    let mut acc = [0f32; LANES];
    for (s, k) in column[..n].chunks_exact_mut(LANES).zip(k[..n].chunks_exact(LANES)) {
        for l in 0..LANES {
            s[l] *= decay;
            acc[l] += s[l] * k[l];
        }
    }
    let mut read = reduce(acc);
    for (s, k) in column[n..].iter_mut().zip(&k[n..]) {
        *s *= decay;
        read += *s * k;
    }
    let delta = beta * (v - read);
    let mut acc = [0f32; LANES];
    for ((s, k), q) in
        column[..n].chunks_exact_mut(LANES).zip(k[..n].chunks_exact(LANES)).zip(q[..n].chunks_exact(LANES))
    {
        for l in 0..LANES {
            s[l] += k[l] * delta;
            acc[l] += s[l] * q[l];
        }
    }
    let mut out = reduce(acc);
    for ((s, k), q) in column[n..].iter_mut().zip(&k[n..]).zip(&q[n..]) {
        *s += k * delta;
        out += *s * q;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect()
    }

    #[test]
    fn dot_products_agree_with_f64_at_every_length() {
        for n in 0..80 {
            let (a, b) = (numbers(n, 1), numbers(n, 2));
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-5, "length {n}");
            let four = dot4([&a, &b, &a, &b], &b);
            assert_eq!(four[0].to_bits(), four[2].to_bits());
            assert!((f64::from(four[0]) - exact).abs() < 1e-5, "length {n}");
        }
    }

    #[test]
    fn a_column_follows_the_delta_rule() {
        let (k, q, v, decay, beta) = (numbers(20, 3), numbers(20, 4), 0.7, 0.9, 0.4);
        let mut column = numbers(20, 5);
        let before = column.clone();
        let out = delta_column(&mut column, &k, &q, v, decay, beta);
        let read: f32 = before.iter().zip(&k).map(|(s, k)| decay * s * k).sum();
        let expected: Vec<f32> = before.iter().zip(&k).map(|(s, k)| decay * s + k * beta * (v - read)).collect();
        for (a, b) in column.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-6);
        }
        let expected: f32 = expected.iter().zip(&q).map(|(s, q)| s * q).sum();
        assert!((out - expected).abs() < 1e-5);
    }
}
