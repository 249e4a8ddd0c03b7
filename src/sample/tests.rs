//! Draws and filters at their edges.

use std::collections::BTreeSet;

use super::{Precision, Sampled, step_seed};
use crate::base::Result;
use crate::base::options::Sampling;
use crate::mlx::{Array, Dtype, prim};

const PROBABILITIES: [f32; 5] = [0.5, 0.25, 0.15, 0.07, 0.03];

fn sample(scores: &Array, sampling: &Sampling, step: u64) -> Result<Sampled> {
    super::sample(scores, sampling, step, Precision::Exact)
}

fn scores() -> Array {
    row(&PROBABILITIES.map(f32::ln))
}

fn row(scores: &[f32]) -> Array {
    Array::from_slice(scores, &[1, scores.len() as i32]).unwrap()
}

fn draws(scores: &Array, sampling: &Sampling, count: u64) -> Vec<u32> {
    (0..count).map(|step| sample(scores, sampling, step).unwrap().token.item::<u32>().unwrap()).collect()
}

fn drawn(scores: &Array, sampling: &Sampling, count: u64) -> BTreeSet<u32> {
    draws(scores, sampling, count).into_iter().collect()
}

fn at(temperature: f32) -> Sampling {
    Sampling { temperature, ..Sampling::default() }
}

fn set(ids: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    ids.into_iter().collect()
}

#[test]
fn b44_one_candidate_survives_every_combination() {
    for temperature in [0.01, 1.0] {
        for top_p in [0.8, 0.5, 1e-9] {
            let sampling = Sampling { top_k: 1, top_p, ..at(temperature) };
            assert_eq!(drawn(&scores(), &sampling, 50), set([0]));
        }
    }
    let sampling = Sampling { top_p: 1e-9, min_p: 1.0, ..at(1.0) };
    assert_eq!(drawn(&scores(), &sampling, 50), set([0]));
}

#[test]
fn b45_top_k_counts_candidates() {
    let all = set(0..5);
    for top_k in [0, 5, 9, u32::MAX] {
        assert_eq!(drawn(&scores(), &Sampling { top_k, ..at(2.0) }, 300), all);
    }
    assert_eq!(drawn(&scores(), &Sampling { top_k: 4, ..at(2.0) }, 300), set(0..4));
    assert_eq!(drawn(&scores(), &Sampling { top_k: 2, ..at(1.0) }, 2000), set([0, 1]));
}

#[test]
fn b45_ties_keep_exactly_k() {
    let equal = row(&[0.25; 4]);
    assert_eq!(drawn(&equal, &Sampling { top_k: 2, ..at(1.0) }, 200).len(), 2);
}

#[test]
fn b45_min_p_is_relative_to_the_probabilities_before_the_temperature() {
    for temperature in [1.0, 2.0] {
        let sampling = Sampling { min_p: 0.3, ..at(temperature) };
        // 0.15 = 0.3 * 0.5 lies on the edge up to rounding; 0.07 is out, 0.25 is in.
        let kept = drawn(&scores(), &sampling, 300);
        assert!(kept.is_superset(&set([0, 1])) && !kept.contains(&3) && !kept.contains(&4));
        let sampling = Sampling { min_p: 0.2, ..at(temperature) };
        assert_eq!(drawn(&scores(), &sampling, 300), set(0..3));
    }
    assert_eq!(drawn(&scores(), &Sampling { min_p: 1.0, ..at(1.0) }, 100), set([0]));
    assert!(Sampling { min_p: 1.5, ..at(1.0) }.validate().is_err());
}

#[test]
fn b46_cold_draws_are_the_likeliest() {
    for temperature in [0.0, 1e-45, 1e-20, 1e-6, 2e-6, 1e-4] {
        let sampling = at(temperature);
        assert_eq!(drawn(&scores(), &sampling, 200), set([0]), "at {temperature}");
        let half = prim::astype(&scores(), Dtype::Float16).unwrap();
        assert_eq!(drawn(&half, &sampling, 50), set([0]), "float16 at {temperature}");
        let logprobs = sample(&scores(), &sampling, 0).unwrap().logprobs;
        assert!(logprobs.to_vec::<f32>().unwrap().iter().all(|value| value.is_finite()));
    }
}

#[test]
fn b46_top_p_is_off_at_zero_and_one() {
    for top_p in [0.0, 1.0] {
        assert_eq!(drawn(&scores(), &Sampling { top_p, ..at(2.0) }, 300), set(0..5));
    }
    assert_eq!(drawn(&scores(), &Sampling { top_p: 0.7, ..at(2.0) }, 300), set([0, 1]));
    assert_eq!(drawn(&scores(), &Sampling { top_p: 0.8, ..at(2.0) }, 300), set([0, 1, 2]));
}

#[test]
fn b48_the_seed_decides() {
    let run = |seed: u64| draws(&scores(), &Sampling { seed, ..at(1.0) }, 40);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_ne!(run(0), run(1));
    assert_ne!(run(0), run(u64::MAX));
}

#[test]
fn a_step_has_its_own_key() {
    assert_eq!(step_seed(0, 0), 0x9E37_79B9_7F4A_7C15);
    assert_eq!(step_seed(7, 1), 7 ^ 0x3C6E_F372_FE94_F82A);
    assert_eq!(step_seed(5, u64::MAX), 5);
    let sampling = Sampling { seed: 3, ..at(1.0) };
    let again = sample(&scores(), &sampling, 9).unwrap().token.item::<u32>().unwrap();
    assert_eq!(again, draws(&scores(), &sampling, 10)[9]);
}

#[test]
fn draws_follow_the_probabilities() {
    let count = 4000;
    let mut seen = [0u32; 5];
    for token in draws(&scores(), &at(1.0), count) {
        seen[token as usize] += 1;
    }
    for (seen, probability) in seen.iter().zip(PROBABILITIES) {
        let expected = probability * count as f32;
        // Five standard deviations.
        let bound = 5.0 * (expected * (1.0 - probability)).sqrt();
        assert!((*seen as f32 - expected).abs() < bound, "{seen} instead of {expected}");
    }
}

#[test]
fn a_choice_is_sound_where_scores_are_numbers() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let precisions = if crate::mlx::has_cpu_kernels() {
        &[Precision::Exact, Precision::Kernels][..]
    } else {
        &[Precision::Exact]
    };
    for (values, expected) in [
        ([0.5, 1.0, -3.0], true),
        ([-inf, 1.0, -inf], true),
        ([0.5, nan, 3.0], false),
        ([nan, 1.0, 2.0], false),
        ([0.5, inf, 3.0], false),
        ([inf, inf, -inf], false),
        ([-inf, -inf, -inf], false),
        ([f32::MAX, f32::MIN, 0.0], true),
    ] {
        for temperature in [0.0, 0.7] {
            for (top_p, min_p, top_k) in [(0.0, 0.0, 0), (0.9, 0.0, 0), (0.0, 0.1, 0), (0.0, 0.0, 2)] {
                for &precision in precisions {
                    let sampling = Sampling { top_p, min_p, top_k, ..at(temperature) };
                    let sampled = super::sample(&row(&values), &sampling, 0, precision).unwrap();
                    let sound = sampled.sound.item::<f32>().unwrap();
                    assert_eq!(sound.is_finite(), expected, "{values:?} {sampling:?} {precision:?}: {sound}");
                    // Also where nobody may choose: an id of the vocabulary, which the next step looks up.
                    assert!(sampled.token.item::<u32>().unwrap() < 3, "{values:?} {sampling:?}");
                }
            }
        }
    }
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        let narrow = |values: &[f32]| prim::astype(&row(values), dtype).unwrap();
        let sound =
            |values: &[f32]| sample(&narrow(values), &at(1.0), 0).unwrap().sound.item::<f32>().unwrap();
        assert!(sound(&[1.0, 2.0]).is_finite() && !sound(&[1.0, nan]).is_finite());
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_what_normalisation_makes_equal() {
    // In bfloat16 the two scores differ, their normalised values do not.
    let values = [9.0f32, 9.0625, 8.0, 9.0625];
    let scores = prim::astype(&row(&values), Dtype::Bfloat16).unwrap();
    let sampled = sample(&scores, &Sampling::default(), 0).unwrap();
    let normalised = prim::astype(&sampled.logprobs, Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
    let greatest = normalised.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let first = normalised.iter().position(|value| *value == greatest).unwrap();
    assert_eq!(sampled.token.item::<u32>().unwrap(), first as u32);
    assert_eq!(
        sample(&row(&[1.0, 2.0, 2.0]), &Sampling::default(), 0).unwrap().token.item::<u32>().unwrap(),
        1
    );
}

#[test]
fn reported_scores_are_those_before_the_filters() {
    let sampling = Sampling { top_k: 1, ..at(0.5) };
    let logprobs = sample(&scores(), &sampling, 0).unwrap().logprobs.to_vec::<f32>().unwrap();
    for (logprob, probability) in logprobs.iter().zip(PROBABILITIES) {
        assert!((logprob.exp() - probability).abs() < 1e-6);
    }
}

#[test]
#[cfg(cpu_kernels)]
fn kernels_choose_as_mlx_does() {
    let wide: Vec<f32> = (0..5000).map(|id| ((id * 7919 % 4999) as f32).sqrt() / 9.0).collect();
    for scores in [scores(), row(&[1.0, 2.0, 2.0]), row(&wide)] {
        for temperature in [0.0, 0.7, 2.0] {
            for step in 0..20 {
                let [exact, ours] = [Precision::Exact, Precision::Kernels]
                    .map(|precision| super::sample(&scores, &at(temperature), step, precision).unwrap());
                assert_eq!(ours.token.item::<u32>().unwrap(), exact.token.item::<u32>().unwrap());
                let (ours, exact) =
                    (ours.logprobs.to_vec::<f32>().unwrap(), exact.logprobs.to_vec::<f32>().unwrap());
                assert!(ours.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 1e-5));
            }
        }
    }
}
