//! Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011).
//!
//! A number depends on the request's seed, the position of the token and the token, and on nothing else: neither on other
//! requests nor on how the work was split into steps, nor on whether the token is drafted or chosen.

/// A number in (0, 1) for `token` at `position`: an odd multiple of 2^-33.
///
/// The key is the seed (low word first), the counter is (position, token, 0, 0); the first output word counts.
#[must_use]
pub(super) fn uniform(seed: u64, position: u32, token: u32) -> f64 {
    let word = philox4x32_10([position, token, 0, 0], [seed as u32, (seed >> 32) as u32])[0];
    (f64::from(word) + 0.5) / 4_294_967_296.0
}

/// The ten-round Philox bijection on four words.
fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p = u64::from(a) * 0xD251_1F53;
        let q = u64::from(c) * 0xCD9E_8D57;
        (a, b, c, d) = ((q >> 32) as u32 ^ b ^ k0, q as u32, (p >> 32) as u32 ^ d ^ k1, p as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with Random123.
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in cases {
            assert_eq!(philox4x32_10(counter, key), answer);
        }
    }

    #[test]
    fn uniform_is_a_function_of_seed_position_and_token() {
        let u = uniform(7, 1000, 2);
        assert_eq!(u, uniform(7, 1000, 2));
        for other in [uniform(8, 1000, 2), uniform(7 << 32, 1000, 2), uniform(7, 1001, 2), uniform(7, 1000, 1)] {
            assert_ne!(u, other);
        }
    }

    #[test]
    fn uniform_fills_the_unit_interval() {
        for numbers in [
            (0..100_000).map(|i| uniform(3, i, 5)).collect::<Vec<_>>(),
            (0..100_000).map(|i| uniform(3, 5, i)).collect(),
        ] {
            assert!(numbers.iter().all(|u| 0.0 < *u && *u < 1.0));
            let mean = numbers.iter().sum::<f64>() / 1e5;
            // Six standard deviations of the mean of 100,000 uniform numbers.
            assert!((mean - 0.5).abs() < 6.0 / (12.0 * 1e5_f64).sqrt(), "{mean}");
        }
    }
}
