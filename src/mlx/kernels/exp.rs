//! The exponential function, the same bits on every path.

use super::cpu::Path;
use super::sixteen::{self, LANES, Lanes, Task};

/// Adding this to a small float rounds it to an integer, which is then in the low mantissa bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has nine bits, so that its products with exponents are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// (eʳ − 1 − r) / r² for |r| ≤ ln 2 / 2, to 1e-8 of eʳ; powers of r upwards.
const TAIL: [f32; 5] = [0.5, 0.166_665_76, 0.041_666_463, 0.008_363_236, 0.001_393_373_4];

/// eˣ in each lane, within 2 units in the last place. NaN gives NaN; what is too large gives infinity,
/// what is too small 0, with subnormal results in between.
#[inline(always)]
pub fn exp<S: Lanes>(s: S, x: S::V) -> S::V {
    // Beyond these the results are 0 and infinity. A NaN passes: it is the second operand.
    let x = s.min(s.splat(89.0), s.max(s.splat(-104.0), x));
    // x = n · ln 2 + r
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUNDER));
    let n = s.sub(shifted, s.splat(ROUNDER));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut tail = s.splat(TAIL[4]);
    for coefficient in [TAIL[3], TAIL[2], TAIL[1], TAIL[0]] {
        tail = s.fma(tail, r, s.splat(coefficient));
    }
    let power = s.add(s.fma(s.mul(r, r), tail, r), s.splat(1.0));
    // 2ⁿ in two factors: n is from -150 to 128, which is more than one float's exponent can hold.
    let n = s.sub_words(s.bits(shifted), s.splat_word(ROUNDER.to_bits()));
    let half = s.halve_signed(n);
    let rest = s.sub_words(n, half);
    s.mul(s.mul(power, two_to(s, half)), two_to(s, rest))
}

/// 2ⁿ for words that are signed exponents of normal floats.
#[inline(always)]
fn two_to<S: Lanes>(s: S, n: S::W) -> S::V {
    s.with_bits(s.shl(s.add_words(n, s.splat_word(127)), 23))
}

/// [`exp`] of one number.
pub fn exp_scalar(x: f32) -> f32 {
    sixteen::run(Path::best(), One(x))
}

struct One(f32);

impl Task for One {
    type Output = f32;

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) -> f32 {
        let mut lanes = [0.0; LANES];
        s.store(exp(s, s.splat(self.0)), &mut lanes);
        lanes[0]
    }
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    struct Map<'a>(&'a [f32], &'a mut [f32]);

    impl Task for Map<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Lanes>(self, s: S) {
            let to = self.1.as_chunks_mut::<LANES>().0;
            for (from, to) in self.0.as_chunks::<LANES>().0.iter().zip(to) {
                s.store(exp(s, s.load(from)), to);
            }
        }
    }

    /// Every 509th of all floats, and those around the limits.
    fn inputs() -> Vec<f32> {
        let mut inputs: Vec<f32> = (0..=u32::MAX).step_by(509).map(f32::from_bits).collect();
        for centre in [-104.0_f32, -103.98, -103.3, -87.4, -87.336, -0.0, 0.0, 88.72, 88.73, 89.0] {
            inputs.extend((0..64).map(|i| f32::from_bits(centre.to_bits().wrapping_add(i).wrapping_sub(32))));
        }
        inputs.resize(inputs.len().next_multiple_of(16), f32::INFINITY);
        inputs
    }

    #[test]
    fn exp_is_within_two_units() {
        let inputs = inputs();
        let mut outputs = vec![0.0; inputs.len()];
        sixteen::run(Path::best(), Map(&inputs, &mut outputs));
        let mut worst = 0.0_f64;
        for (&x, &y) in inputs.iter().zip(&outputs) {
            if x.is_nan() {
                assert!(y.is_nan());
                continue;
            }
            let exact = f64::from(x).exp();
            if exact > f64::from(f32::MAX) * (1.0 + 2.0_f64.powi(-25)) {
                assert!(y == f32::INFINITY || exact < f64::from(f32::MAX) * 1.000_001, "{x} {y}");
                continue;
            }
            // The spacing of floats around the result; of subnormal ones it is 2⁻¹⁴⁹.
            let unit = 2.0_f64.powi((exact.max(1e-300).log2().floor() as i32).max(-126) - 23);
            worst = worst.max((f64::from(y) - exact).abs() / unit);
        }
        assert!(worst < 1.5, "{worst}");
        assert_eq!(exp_scalar(0.0), 1.0);
        assert_eq!(exp_scalar(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_scalar(f32::INFINITY), f32::INFINITY);
    }

    #[test]
    fn every_path_gives_the_same_bits() {
        let inputs = inputs();
        let mut expected = vec![0.0; inputs.len()];
        sixteen::run(Path::Portable, Map(&inputs, &mut expected));
        for path in Path::all().into_iter().filter(|path| *path != Path::Portable) {
            let mut outputs = vec![0.0; inputs.len()];
            sixteen::run(path, Map(&inputs, &mut outputs));
            for ((x, y), expected) in inputs.iter().zip(outputs).zip(&expected) {
                assert!(y.to_bits() == expected.to_bits() || y.is_nan() && expected.is_nan(), "{path:?} {x}");
            }
        }
    }
}
