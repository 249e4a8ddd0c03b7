//! The activation functions of feed-forward layers.

use super::exp::exp;
use super::sixteen::Lanes;

/// A function between two matrices of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x · σ(x)
    Silu,
    /// x · Φ(x), Φ the normal distribution
    Gelu,
    /// [`Activation::Gelu`] by its usual approximation with a hyperbolic tangent
    GeluTanh,
    /// The square of the larger of x and 0
    Relu2,
}

impl Activation {
    /// The function of each lane. NaN gives NaN; so does −∞, except with `Relu2`.
    #[inline(always)]
    pub fn apply<S: Lanes>(self, s: S, x: S::V) -> S::V {
        match self {
            Activation::Silu => sigmoid_times(s, x, x),
            // (1 + tanh u) / 2 = σ(2u)
            Activation::GeluTanh => {
                let cubic = s.fma(s.mul(s.splat(0.044_715), s.mul(x, x)), x, x);
                sigmoid_times(s, x, s.mul(s.splat(1.595_769), cubic))
            }
            Activation::Gelu => gelu(s, x),
            Activation::Relu2 => {
                let positive = s.max(s.splat(0.0), x);
                s.mul(positive, positive)
            }
        }
    }
}

/// x · σ(y)
#[inline(always)]
fn sigmoid_times<S: Lanes>(s: S, x: S::V, y: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), y))))
}

/// erfc(z) · exp(z²) / t for t = 1 / (1 + z / 2) from 0.16 to 1, z ≥ 0; powers of t − `MIDDLE` upwards.
const ERFC: [f32; 10] = [
    0.568_914_35,
    0.778_273_6,
    0.586_688_16,
    0.085_674_38,
    -0.203_040_15,
    -0.052_287_24,
    0.111_649_916,
    0.006_257_808_3,
    -0.058_843_806,
    0.011_769_584,
];
const MIDDLE: f32 = 0.579_365_1;

/// x · erfc(−x / √2) / 2. For negative x that has no cancellation: the relative error is small there too.
#[inline(always)]
fn gelu<S: Lanes>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let minus = s.sub(zero, x);
    // The first operand where both are ordered: a NaN goes on through `minus`.
    let z = s.mul(s.splat(std::f32::consts::FRAC_1_SQRT_2), s.max(x, minus));
    let t = s.div(s.splat(1.0), s.fma(s.splat(0.5), z, s.splat(1.0)));
    let centred = s.sub(t, s.splat(MIDDLE));
    let mut series = s.splat(ERFC[9]);
    for index in (0..9).rev() {
        series = s.fma(series, centred, s.splat(ERFC[index]));
    }
    let gauss = exp(s, s.mul(s.mul(s.splat(-0.5), x), x));
    let erfc = s.mul(s.mul(gauss, t), series);
    let half_x = s.mul(s.splat(0.5), x);
    s.mul(half_x, s.select_less(x, zero, erfc, s.sub(s.splat(2.0), erfc)))
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;
    use crate::mlx::kernels::simd_portable::Portable;
    use crate::mlx::kernels::sixteen::LANES;

    const ALL: [Activation; 4] =
        [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu2];

    /// erfc by its series or its continued fraction, to about 1e-14.
    fn erfc(z: f64) -> f64 {
        if z < 0.0 {
            return 2.0 - erfc(-z);
        }
        if z > 2.5 {
            let fraction = (1..=120).rev().fold(z, |value, k| z + f64::from(k) / 2.0 / value);
            return (-z * z).exp() / fraction / std::f64::consts::PI.sqrt();
        }
        let (mut term, mut sum) = (z, z);
        for n in 1..100 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    fn exact(activation: Activation, x: f64) -> f64 {
        let sigmoid = |y: f64| 1.0 / (1.0 + (-y).exp());
        match activation {
            Activation::Silu => x * sigmoid(x),
            Activation::GeluTanh => {
                x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
            }
            Activation::Gelu => x / 2.0 * erfc(-x / std::f64::consts::SQRT_2),
            Activation::Relu2 => x.max(0.0).powi(2),
        }
    }

    #[test]
    fn functions_are_near_their_definition() {
        for activation in ALL {
            for index in -60_000..=60_000 {
                let x = index as f32 * 2e-4;
                let y = f64::from(activation.apply(Portable, [x; LANES])[0]);
                let expected = exact(activation, f64::from(x));
                // The argument of the exponential, rounded, grows with x² (GeluTanh: |x|³).
                let relative = 4e-7 + 2.0_f64.powi(-24) * f64::from(x.abs().powi(3)).min(300.0);
                let bound = expected.abs() * relative + 1e-37;
                assert!((y - expected).abs() <= bound, "{activation:?} {x}: {y} for {expected}");
            }
        }
    }

    #[test]
    fn limits() {
        for activation in ALL {
            let at = |x: f32| activation.apply(Portable, [x; LANES])[0];
            assert_eq!(at(0.0), 0.0);
            assert!(at(f32::NAN).is_nan());
            assert_eq!(at(f32::INFINITY), f32::INFINITY);
            assert_eq!(at(-1e30), 0.0);
            assert_eq!(at(1e18), if activation == Activation::Relu2 { 1e18 * 1e18 } else { 1e18 });
        }
    }
}
