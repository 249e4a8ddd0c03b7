//! RMS norm and layer norm of one row.
//!
//! Sums go over sixteen partial sums, where the number at i adds to the one at i mod 16, and a fixed tree. Products
//! are rounded before they are added: without fused operations the compiler's own vectors do, on every processor.

use super::sixteen::{LANES, tree};

/// `out[i] = x[i] / sqrt(mean(x²) + epsilon) * gain[i]`, without a gain where there is none.
///
/// # Panics
/// When the lengths differ.
pub fn rms_norm(x: &[f32], gain: Option<&[f32]>, epsilon: f32, out: &mut [f32]) {
    let scale = 1.0 / (sum(x, |value| value * value) / x.len() as f32 + epsilon).sqrt();
    scaled(x, 0.0, scale, gain, None, out);
}

/// `out[i] = (x[i] - mean) / sqrt(variance + epsilon) * gain[i] + bias[i]`, without a gain or bias where there is
/// none. The variance is the mean of (x - mean)².
///
/// # Panics
/// When the lengths differ.
pub fn layer_norm(x: &[f32], gain: Option<&[f32]>, bias: Option<&[f32]>, epsilon: f32, out: &mut [f32]) {
    let mean = sum(x, |value| value) / x.len() as f32;
    let variance = sum(x, |value| (value - mean) * (value - mean)) / x.len() as f32;
    scaled(x, mean, 1.0 / (variance + epsilon).sqrt(), gain, bias, out);
}

/// The sum of `term` over all numbers, in the order that the head of this file describes.
#[inline(always)]
fn sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for chunk in whole {
        for lane in 0..LANES {
            sums[lane] += term(chunk[lane]);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += term(*value);
    }
    tree(sums)
}

#[inline(always)]
fn scaled(x: &[f32], mean: f32, scale: f32, gain: Option<&[f32]>, bias: Option<&[f32]>, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of a norm's input and output");
    for (out, value) in out.iter_mut().zip(x) {
        *out = (value - mean) * scale;
    }
    if let Some(gain) = gain {
        assert_eq!(gain.len(), out.len(), "length of a norm's gain");
        out.iter_mut().zip(gain).for_each(|(out, gain)| *out *= gain);
    }
    if let Some(bias) = bias {
        assert_eq!(bias.len(), out.len(), "length of a norm's bias");
        out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
    }
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    fn numbers(len: usize, scale: f32, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next() * scale).collect()
    }

    /// Relative errors: the sum's are (n / 16 + 6) units; the root halves them; then some single roundings.
    fn bound(len: usize) -> f64 {
        (len as f64 / 16.0 + 12.0) * 2.0_f64.powi(-24)
    }

    #[test]
    fn rms_norm_is_within_the_bound() {
        for (len, scale) in [(1, 1.0), (7, 3.0), (16, 1e-3), (64, 1.0), (576, 1.0), (577, 100.0), (4096, 1e6)]
        {
            let (x, gain) = (numbers(len, scale, 3), numbers(len, 2.0, 5));
            let mut out = vec![0.0; len];
            rms_norm(&x, Some(&gain), 1e-5, &mut out);
            let square: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let root = (square / len as f64 + 1e-5).sqrt();
            for i in 0..len {
                let expected = f64::from(x[i]) / root * f64::from(gain[i]);
                assert!((f64::from(out[i]) - expected).abs() <= expected.abs() * bound(len), "{len} {i}");
            }
            let mut bare = vec![0.0; len];
            rms_norm(&x, None, 1e-5, &mut bare);
            assert!((0..len).all(|i| bare[i] * gain[i] == out[i]));
        }
    }

    #[test]
    fn layer_norm_is_within_the_bound() {
        for (len, shift) in [(2, 0.0), (7, 1.0), (64, -3.0), (577, 10.0)] {
            let x: Vec<f32> = numbers(len, 1.0, 7).iter().map(|x| x + shift).collect();
            let (gain, bias) = (numbers(len, 2.0, 11), numbers(len, 1.0, 13));
            let mut out = vec![0.0; len];
            layer_norm(&x, Some(&gain), Some(&bias), 1e-5, &mut out);
            let mean: f64 = x.iter().map(|x| f64::from(*x)).sum::<f64>() / len as f64;
            let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / len as f64;
            for i in 0..len {
                let size = (f64::from(x[i]) - mean).abs() + mean.abs() + 1.0;
                let factor = f64::from(gain[i]) / (variance + 1e-5).sqrt();
                let expected = (f64::from(x[i]) - mean) * factor + f64::from(bias[i]);
                let allowed = (size * factor.abs() + 1.0) * bound(len);
                assert!((f64::from(out[i]) - expected).abs() <= allowed, "{len} {i}: {} {expected}", out[i]);
            }
        }
    }

    #[test]
    fn what_is_not_a_number_spreads_and_zero_stays() {
        let mut x = numbers(40, 1.0, 17);
        x[33] = f32::NAN;
        let mut out = vec![0.0; 40];
        rms_norm(&x, None, 1e-5, &mut out);
        assert!(out.iter().all(|value| value.is_nan()));
        rms_norm(&[0.0; 40], None, 1e-5, &mut out);
        assert!(out.iter().all(|value| *value == 0.0));
    }
}
