//! The graph against float64, and a forward in pieces against the same in one.

use super::tiny::{Tiny, exact, load, never, new_state, prompt, read};
use crate::base::options::ModelOptions;
use crate::base::{Error, Result};
use crate::generate::mlx_runtime::state::MlxState;
use crate::generate::runtime::TokenModel;
use crate::mlx::{Array, eval, ops};
use crate::model::graph::{Pace, Unpaced};

fn assert_near(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (id, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error < 2e-4, "{found} instead of {expected} for {id}");
    }
}

#[test]
fn scores_are_those_of_a_float64_model() {
    for (tied, biases) in [(false, false), (true, false), (false, true), (true, true)] {
        let tiny = Tiny::new(tied, biases);
        let folder = tiny.write();
        for options in [exact(), ModelOptions::default()] {
            let model = load(folder.path(), &options).unwrap();
            for (count, chunk) in [(1, 64), (2, 64), (7, 3), (40, 16), (300, 200), (300, 512)] {
                let tokens = prompt(count);
                let found = read(&model, new_state(&model).as_mut(), &tokens, chunk);
                assert_near(&found, &tiny.scores(&tokens));
            }
        }
    }
}

#[test]
fn scores_after_several_tokens_at_once_are_those_of_the_last() {
    let tiny = Tiny::new(false, false);
    let folder = tiny.write();
    let model = load(folder.path(), &exact()).unwrap();
    let tokens = prompt(9);
    let found = model.logits(new_state(&model).as_mut(), &tokens, &never()).unwrap();
    assert_near(&found, &tiny.scores(&tokens));
}

/// Computes at every point, and finds everything long.
struct Everywhere {
    points: usize,
    /// The point at which it fails.
    stop: Option<usize>,
}

impl Pace for Everywhere {
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

#[test]
fn a_forward_in_pieces_has_the_same_bits() {
    let tiny = Tiny::new(true, true);
    let folder = tiny.write();
    let model = load(folder.path(), &exact()).unwrap();
    let (first, second) = (prompt(30), prompt(21));
    let run = |pace: &mut dyn Pace| -> Vec<f32> {
        let mut caches = model.graph.new_caches();
        let ids = |tokens: &[u32]| ops::token_ids(tokens, 40).unwrap();
        model.graph.extend(&ids(&first), &mut caches, pace).unwrap();
        let hidden = model.graph.hidden(&ids(&second), &mut caches, pace).unwrap();
        model.graph.scores(&hidden).unwrap().to_vec::<f32>().unwrap()
    };
    let whole = run(&mut Unpaced);
    let mut pace = Everywhere { points: 0, stop: None };
    assert_eq!(run(&mut pace), whole);
    assert!(pace.points > 30, "{} points", pace.points);
}

#[test]
fn a_forward_that_stops_at_any_point_leaves_the_state_as_it_was() {
    let tiny = Tiny::new(false, false);
    let folder = tiny.write();
    let model = load(folder.path(), &exact()).unwrap();
    let tokens = prompt(25);
    let expected = read(&model, new_state(&model).as_mut(), &tokens, 10);
    let mut stopped = 0;
    for stop in 1.. {
        let mut state = new_state(&model);
        model.prefill(state.as_mut(), &tokens[..10], &never()).unwrap();
        let inner = state.as_any_mut().downcast_mut::<MlxState>().unwrap();
        let ids = ops::token_ids(&tokens[10..20], 40).unwrap();
        let mut pace = Everywhere { points: 0, stop: Some(stop) };
        let result = inner.transaction(10, |state| model.graph.extend(&ids, &mut state.caches, &mut pace));
        if result.is_ok() {
            break;
        }
        stopped += 1;
        assert_eq!(state.offset(), 10);
        assert!(state.layers().iter().all(|layer| layer.offset == 10));
        assert_eq!(read(&model, state.as_mut(), &tokens[10..], 10), expected, "stopped at {stop}");
    }
    assert!(stopped > 10, "{stopped} points");
}
