//! Functions of single numbers over a row.

use super::activation::Activation;
use super::cpu::Path;
use super::sixteen::{self, LANES, Lanes, Task, tanh};

/// `out[i] = activation(x[i])`, times `gated[i]` where there is a second row.
///
/// # Panics
/// When the lengths differ.
pub fn activate(activation: Activation, x: &[f32], gated: Option<&[f32]>, out: &mut [f32]) {
    activate_on(Path::best(), activation, x, gated, out);
}

fn activate_on(path: Path, activation: Activation, x: &[f32], gated: Option<&[f32]>, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of an activation's input and output");
    assert!(gated.is_none_or(|gated| gated.len() == x.len()), "length of what is gated");
    sixteen::run(path, Activate { activation, x, gated, out });
}

/// `scores[i] = cap * tanh(scores[i] / cap)`
pub fn soft_cap(scores: &mut [f32], cap: f32) {
    soft_cap_on(Path::best(), scores, cap);
}

fn soft_cap_on(path: Path, scores: &mut [f32], cap: f32) {
    sixteen::run(path, SoftCap { scores, cap });
}

struct Activate<'a> {
    activation: Activation,
    x: &'a [f32],
    gated: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Task for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (whole, rest) = self.x.as_chunks::<LANES>();
        let gated = self.gated.map(|gated| gated.as_chunks::<LANES>());
        let (out, last) = self.out.as_chunks_mut::<LANES>();
        for (index, (x, out)) in whole.iter().zip(out).enumerate() {
            activate_lanes(s, self.activation, x, gated.map(|(gated, _)| &gated[index]), out);
        }
        if !rest.is_empty() {
            let gated = gated.map(|(_, rest)| padded(rest));
            let mut result = [0.0; LANES];
            activate_lanes(s, self.activation, &padded(rest), gated.as_ref(), &mut result);
            last.copy_from_slice(&result[..last.len()]);
        }
    }
}

#[inline(always)]
fn activate_lanes<S: Lanes>(
    s: S,
    activation: Activation,
    x: &[f32; LANES],
    gated: Option<&[f32; LANES]>,
    out: &mut [f32; LANES],
) {
    let y = activation.apply(s, s.load(x));
    let y = match gated {
        Some(gated) => s.mul(y, s.load(gated)),
        None => y,
    };
    s.store(y, out);
}

struct SoftCap<'a> {
    scores: &'a mut [f32],
    cap: f32,
}

impl Task for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (whole, rest) = self.scores.as_chunks_mut::<LANES>();
        for scores in whole {
            cap_lanes(s, self.cap, scores);
        }
        if !rest.is_empty() {
            let mut last = padded(rest);
            cap_lanes(s, self.cap, &mut last);
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

#[inline(always)]
fn cap_lanes<S: Lanes>(s: S, cap: f32, scores: &mut [f32; LANES]) {
    let cap = s.splat(cap);
    let score = s.load(scores);
    s.store(s.mul(cap, tanh(s, s.div(score, cap))), scores);
}

#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    fn row(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 + 11) % 97) as f32 / 7.0 - 6.5).collect()
    }

    #[test]
    fn rows_of_any_length_are_computed_alike_on_every_path() {
        for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu2] {
            for len in [0, 1, 15, 16, 17, 40] {
                let (x, gates) = (row(len), row(len + 3));
                let (mut plain, mut gated) = (vec![0.0; len], vec![0.0; len]);
                activate_on(Path::Portable, activation, &x, None, &mut plain);
                activate_on(Path::Portable, activation, &x, Some(&gates[3..]), &mut gated);
                for i in 0..len {
                    // The function itself has a test of its own.
                    let mut one = [0.0];
                    activate_on(Path::Portable, activation, &x[i..=i], None, &mut one);
                    assert_eq!(plain[i].to_bits(), one[0].to_bits());
                    assert_eq!(gated[i], plain[i] * gates[3 + i]);
                }
                let (mut best, mut best_gated) = (vec![0.0; len], vec![0.0; len]);
                activate(activation, &x, None, &mut best);
                activate(activation, &x, Some(&gates[3..]), &mut best_gated);
                assert_eq!((best, best_gated), (plain, gated));
            }
        }
    }

    /// tanh within 4 units in the last place, a division and a product: less than 6 units of a result below the cap.
    #[test]
    fn soft_caps_are_within_the_bound() {
        for len in [1, 16, 21] {
            let scores: Vec<f32> = row(len).iter().map(|x| x * 20.0).collect();
            let (mut capped, mut best) = (scores.clone(), scores.clone());
            soft_cap_on(Path::Portable, &mut capped, 30.0);
            soft_cap(&mut best, 30.0);
            assert_eq!(capped, best);
            for (x, y) in scores.iter().zip(capped) {
                let exact = 30.0 * (f64::from(*x) / 30.0).tanh();
                assert!((f64::from(y) - exact).abs() <= 6.0 * 2.0_f64.powi(-24) * 30.0, "{x}: {y}, {exact}");
            }
        }
    }
}
