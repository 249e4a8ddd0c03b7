//! The graph against float64, and a forward in pieces against the same in one.

use super::tiny::{Tiny, VOCABULARY, exact, load, never, new_state, prompt, read};
use crate::base::options::{CacheOptions, KvType, ModelOptions};
use crate::base::{Code, Error, Prompt, Result};
use crate::generate::mlx_runtime::model::MlxModel;
use crate::generate::mlx_runtime::state::MlxState;
use crate::generate::runtime::TokenModel;
#[cfg(cpu_kernels)]
use crate::mlx;
use crate::mlx::{Array, eval, ops};
use crate::model::graph::{Pace, Unpaced};

fn assert_near(found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len());
    for (id, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error < bound, "{found} instead of {expected} for {id}");
    }
}

#[test]
fn scores_are_those_of_a_float64_model() {
    for (tied, biases) in [(false, false), (true, false), (false, true), (true, true)] {
        let tiny = Tiny::new(tied, biases);
        let folder = tiny.write();
        // Half-precision keys and values have 11 significant bits.
        let kinds = [
            (exact(), KvType::Auto, 2e-4),
            (ModelOptions::default(), KvType::Float32, 2e-4),
            (ModelOptions::default(), KvType::Auto, 2e-2),
        ];
        for (options, kv_type, bound) in kinds {
            let model = load(folder.path(), &options).unwrap();
            for (count, chunk) in [(1, 64), (2, 64), (7, 3), (40, 16), (300, 200), (300, 512)] {
                let tokens = prompt(count);
                let mut state =
                    model.new_state(&CacheOptions { kv_type, ..CacheOptions::default() }).unwrap();
                let found = read(&model, state.as_mut(), &tokens, chunk);
                assert_near(&found, &tiny.scores(&tokens), bound);
            }
        }
    }
}

/// Where our kernels compute, chunks and threads change no bit.
#[test]
#[cfg(cpu_kernels)]
fn fast_scores_do_not_depend_on_chunks_or_threads() {
    let folder = Tiny::new(false, true).write();
    let model = load(folder.path(), &ModelOptions::default()).unwrap();
    let tokens = prompt(300);
    let expected = read(&model, new_state(&model).as_mut(), &tokens, 512);
    for threads in [1, 3, 2] {
        mlx::set_threads(threads).unwrap();
        for chunk in [1, 2, 7, 33, 128, 255, 256, 257] {
            let found = read(&model, new_state(&model).as_mut(), &tokens, chunk);
            assert_eq!(found, expected, "chunks of {chunk} on {threads} threads");
        }
    }
    let whole = model.logits(new_state(&model).as_mut(), &Prompt::from(&tokens), &never()).unwrap();
    assert_eq!(whole, expected);
}

#[test]
fn scores_after_several_tokens_at_once_are_those_of_the_last() {
    let tiny = Tiny::new(false, false);
    let folder = tiny.write();
    let model = load(folder.path(), &exact()).unwrap();
    let tokens = prompt(9);
    let found = model.logits(new_state(&model).as_mut(), &Prompt::from(&tokens), &never()).unwrap();
    assert_near(&found, &tiny.scores(&tokens), 2e-4);
}

/// Computes at every point, and finds everything long.
pub(super) struct Everywhere {
    pub(super) points: usize,
    /// The point at which it fails.
    pub(super) stop: Option<usize>,
}

impl Pace for Everywhere {
    fn horizon(&self) -> usize {
        0
    }

    fn reached(&mut self, work: f64, arrays: &[&Array]) -> Result<()> {
        assert!(work > 0.0);
        eval(arrays.iter().copied())?;
        self.points += 1;
        if self.stop == Some(self.points) { Err(Error::cancelled()) } else { Ok(()) }
    }

    fn is_long(&self, _work: f64) -> bool {
        true
    }
}

/// What the first layer takes for tokens.
pub(super) fn embedded(model: &MlxModel, tokens: &[u32]) -> Array {
    model.graph.embed(&ops::token_ids(tokens, VOCABULARY as u32).unwrap()).unwrap()
}

#[test]
fn a_forward_in_pieces_has_the_same_bits() {
    let tiny = Tiny::new(true, true);
    let folder = tiny.write();
    for (options, points) in [(exact(), 30), (ModelOptions::default(), 20)] {
        let model = load(folder.path(), &options).unwrap();
        check_pieces(&model, points);
    }
}

fn check_pieces(model: &MlxModel, points: usize) {
    let (first, second) = (prompt(30), prompt(21));
    let run = |pace: &mut dyn Pace| -> Vec<f32> {
        let mut state = new_state(model);
        let caches = &mut state.as_any_mut().downcast_mut::<MlxState>().unwrap().caches;
        model.graph.extend(&embedded(model, &first), caches, pace).unwrap();
        let hidden = model.graph.hidden(&embedded(model, &second), caches, pace).unwrap();
        model.graph.scores(&hidden).unwrap().to_vec::<f32>().unwrap()
    };
    let whole = run(&mut Unpaced { horizon: 0 });
    let mut pace = Everywhere { points: 0, stop: None };
    assert_eq!(run(&mut pace), whole);
    assert!(pace.points > points, "{} points", pace.points);
}

#[test]
fn a_forward_that_stops_at_any_point_leaves_the_state_as_it_was() {
    let tiny = Tiny::new(false, false);
    let folder = tiny.write();
    for (options, points) in [(exact(), 10), (ModelOptions::default(), 6)] {
        check_stops(&load(folder.path(), &options).unwrap(), points);
    }
}

fn check_stops(model: &MlxModel, points: usize) {
    let tokens = prompt(25);
    let expected = read(model, new_state(model).as_mut(), &tokens, 10);
    let mut stopped = 0;
    for stop in 1.. {
        let mut state = new_state(model);
        model.prefill(state.as_mut(), &Prompt::from(&tokens[..10]), &never()).unwrap();
        let inner = state.as_any_mut().downcast_mut::<MlxState>().unwrap();
        let x = embedded(model, &tokens[10..20]);
        let mut pace = Everywhere { points: 0, stop: Some(stop) };
        let result = inner.transaction(10, |state| model.graph.extend(&x, &mut state.caches, &mut pace));
        let Err(error) = result else { break };
        assert_eq!(error.code(), Code::Cancelled, "{error}");
        stopped += 1;
        assert_eq!(state.offset(), 10);
        assert!(state.layers().iter().all(|layer| layer.offset == 10));
        assert_eq!(read(model, state.as_mut(), &tokens[10..], 10), expected, "stopped at {stop}");
    }
    assert!(stopped > points, "{stopped} points");
}
