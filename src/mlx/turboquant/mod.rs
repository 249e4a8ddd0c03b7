//! What all implementations of TurboQuant share: keys and values in few bits (A. Zandieh et al., "TurboQuant: Online
//! Vector Quantization with Near-optimal Distortion Rate", arXiv 2504.19874), in the variant that is used with MLX.
//!
//! *Keys*, for each group g of [`GROUP`] dimensions, all in float32 with ε = [`EPSILON`]; bits: 2, 4, 5 or 8:
//!
//! * 8 bits: M = 127, s = (max - min) / 2M, z = round((max + min) / 2(s + ε)), q = round(x / (s + ε) - z) kept within
//!   -M..=M;
//! * fewer, b: M = 2^b - 1, s = (max - min) / M, z = round(min / (s + ε)), the same q within 0..=M;
//! * s and z are stored in half precision. x is read as (q + z) · s.
//!
//! *Values*, bits 2, 3, 4, 5 or 8: y = H(x ⊙ sign), H the Hadamard transform times 1/√dims, so orthonormal; for each
//! group s = √(mean y²), stored in half precision, t = y / (s + ε), and the number stored for t is that of the
//! [`boundaries`] below it. y is read as centroid · s, and x = H(y) ⊙ sign.
//!
//! Rounding is to whole numbers, ties to even.

pub mod tables;

use tables::*;

/// Dimensions that share a scale.
pub const GROUP: usize = 32;

/// Added to scales before a division by them.
pub const EPSILON: f32 = 1e-8;

/// Whether there is the format for so many bits and dimensions of a head; if not, why.
pub fn supported(
    key_bits: u32,
    value_bits: u32,
    key_dims: usize,
    value_dims: usize,
) -> Result<(), &'static str> {
    if !matches!(key_bits, 2 | 4 | 5 | 8) {
        return Err("TurboQuant keys can have 2, 4, 5 or 8 bits");
    }
    if centroids(value_bits).is_none() {
        return Err("TurboQuant values can have 2, 3, 4, 5 or 8 bits");
    }
    if negative(key_dims).is_none() || negative(value_dims).is_none() {
        return Err("TurboQuant needs heads of 64, 128, 256 or 512 dimensions");
    }
    Ok(())
}

/// The signs of the rotation for a head of so many dimensions: bit i mod 64 of word i / 64 is set where number i is
/// negative. None where there is no rotation of that size.
pub fn negative(dims: usize) -> Option<&'static [u64]> {
    match dims {
        64 => Some(&NEGATIVE_64),
        128 => Some(&NEGATIVE_128),
        256 => Some(&NEGATIVE_256),
        512 => Some(&NEGATIVE_512),
        _ => None,
    }
}

/// What the numbers of so many bits stand for, ascending. None where values cannot have so many bits.
pub fn centroids(bits: u32) -> Option<&'static [f32]> {
    match bits {
        2 => Some(&CENTROIDS_2),
        3 => Some(&CENTROIDS_3),
        4 => Some(&CENTROIDS_4),
        5 => Some(&CENTROIDS_5),
        8 => Some(&CENTROIDS_8),
        _ => None,
    }
}

/// The midpoints between neighbouring [`centroids`]: one fewer, ascending.
pub fn boundaries(bits: u32) -> Option<&'static [f32]> {
    const B2: [f32; 3] = midpoints(&CENTROIDS_2);
    const B3: [f32; 7] = midpoints(&CENTROIDS_3);
    const B4: [f32; 15] = midpoints(&CENTROIDS_4);
    const B5: [f32; 31] = midpoints(&CENTROIDS_5);
    const B8: [f32; 255] = midpoints(&CENTROIDS_8);
    match bits {
        2 => Some(&B2),
        3 => Some(&B3),
        4 => Some(&B4),
        5 => Some(&B5),
        8 => Some(&B8),
        _ => None,
    }
}

const fn midpoints<const N: usize, const M: usize>(centroids: &[f32; N]) -> [f32; M] {
    assert!(M + 1 == N);
    let mut middles = [0.0; M];
    let mut index = 0;
    while index < M {
        middles[index] = ((centroids[index] as f64 + centroids[index + 1] as f64) / 2.0) as f32;
        index += 1;
    }
    middles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f32, expected: f64, tolerance: f64) -> bool {
        (f64::from(found) - expected).abs() < tolerance
    }

    #[test]
    fn signs_begin_as_those_of_other_implementations() {
        let begins: [(usize, &[i32]); 4] = [
            (64, &[1, -1, -1, -1, 1, 1, 1, -1, 1, 1]),
            (128, &[-1, 1, -1, -1, 1]),
            (256, &[1, -1, 1, 1, -1]),
            (512, &[-1, 1, -1, -1, -1]),
        ];
        for (dims, begin) in begins {
            let negative = negative(dims).unwrap();
            assert_eq!(negative.len() * 64, dims);
            let sign = |i: usize| if negative[i / 64] >> (i % 64) & 1 == 1 { -1 } else { 1 };
            assert_eq!((0..begin.len()).map(sign).collect::<Vec<_>>(), begin, "{dims}");
            // Random signs are about balanced: six deviations.
            let sum: i32 = (0..dims).map(sign).sum();
            assert!(f64::from(sum.abs()) < 6.0 * (dims as f64).sqrt(), "{dims}: {sum}");
        }
        assert!([0, 32, 63, 80, 96, 1024].iter().all(|dims| negative(*dims).is_none()));
    }

    #[test]
    fn centroids_ascend_and_end_where_the_samples_do() {
        for bits in [2, 3, 4, 5, 8] {
            let centroids = centroids(bits).unwrap();
            assert_eq!(centroids.len(), 1 << bits);
            assert!(centroids.is_sorted_by(|left, right| left < right), "{bits}");
            let boundaries = boundaries(bits).unwrap();
            assert_eq!(boundaries.len(), centroids.len() - 1);
            for (pair, boundary) in centroids.windows(2).zip(boundaries) {
                assert!(pair[0] < *boundary && *boundary < pair[1], "{bits}");
                assert!(((pair[0] + pair[1]) / 2.0 - boundary).abs() <= 2.4e-7, "{bits}");
            }
        }
        let eight = centroids(8).unwrap();
        assert!(near(eight[0], -4.505679, 1e-6) && near(eight[255], 4.341888, 1e-6));
        assert!([0, 1, 6, 7, 9].iter().all(|bits| centroids(*bits).is_none() && boundaries(*bits).is_none()));
    }

    /// The known quantiser of the normal distribution (J. Max, "Quantizing for minimum distortion", 1960): fits to
    /// 200000 samples come near to it in the middle.
    #[test]
    fn centroids_are_those_of_the_normal_distribution() {
        let three = [0.24508999, 0.75600999, 1.34390998, 2.15194988];
        let boundaries = boundaries(3).unwrap();
        for (index, expected) in three.into_iter().enumerate() {
            assert!(near(CENTROIDS_3[4 + index], expected, 2.4e-7));
            assert!(near(CENTROIDS_3[3 - index], -expected, 2.4e-7));
        }
        for (index, expected) in [0.0, 0.50054997, 1.04996002, 1.74793005].into_iter().enumerate() {
            assert!(near(boundaries[3 + index], expected, 2.4e-7));
            assert!(near(boundaries[3 - index], -expected, 2.4e-7));
        }
        for (found, expected) in CENTROIDS_2[2..].iter().zip([0.4528, 1.510]) {
            assert!(near(*found, expected, 0.01));
        }
        let four = [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733];
        for (found, expected) in CENTROIDS_4[8..].iter().zip(four) {
            assert!(near(*found, expected, 0.02));
        }
    }
}
