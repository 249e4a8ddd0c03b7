//! Estimates that admission relies on, and what stays behind.

use super::tiny::{Tiny, exact, load, never, new_state, open, prompt, read};
use crate::base::Prompt;
use crate::base::options::ModelOptions;
use crate::generate::mlx_runtime::backend;
use crate::generate::mlx_runtime::model::MlxModel;
use crate::generate::runtime::{ModelSource, TokenModel};
use crate::mlx::memory;

#[test]
fn states_and_forwards_stay_within_their_estimates() {
    let folder = Tiny::new(false, false).write();
    for options in [exact(), ModelOptions::default()] {
        check_estimates(&load(folder.path(), &options).unwrap());
    }
}

fn check_estimates(model: &MlxModel) {
    let mut state = new_state(model);
    let mut covered = 0;
    for count in [1usize, 100, 200, 256, 300] {
        let before = memory::active() as u64;
        let end = covered + count as u64;
        memory::reset_peak();
        model.prefill(state.as_mut(), &Prompt::from(&prompt(count)), &never()).unwrap();
        covered = end;
        assert!(state.bytes() <= state.bytes_for(covered));
        let peak = memory::peak() as u64;
        let estimate = state.bytes_for(end) + model.workspace_bytes(count as u64, end, state.bytes_for(end));
        assert!(peak.saturating_sub(before) <= estimate, "{peak} after {before}, estimated {estimate}");
    }
}

#[test]
fn a_load_stays_within_its_estimate() {
    let folder = Tiny::new(false, false).write();
    for options in [exact(), ModelOptions::default()] {
        let estimate = open(folder.path(), &options).unwrap().load_bytes();
        let before = memory::active() as u64;
        memory::reset_peak();
        let model = load(folder.path(), &options).unwrap();
        assert!(memory::peak() as u64 - before <= estimate);
        drop(model);
        assert!(memory::active() as u64 <= before);
    }
}

#[test]
fn b146_freed_buffers_stay_under_their_bound() {
    let backend = backend();
    let mut runtime = backend.start().unwrap();
    let bound = 1 << 20;
    runtime.set_pool_limit(bound).unwrap();
    let model = load(Tiny::new(false, false).write().path(), &exact()).unwrap();
    let mut actives = Vec::new();
    for count in (100..=1000).step_by(100) {
        let mut state = new_state(&model);
        read(&model, state.as_mut(), &prompt(count), 64);
        drop(state);
        assert!(runtime.memory().pooled <= bound);
        actives.push(runtime.memory().active);
    }
    assert!(actives.iter().all(|active| *active == actives[0]), "{actives:?}");
    runtime.trim().unwrap();
    assert_eq!(runtime.memory().pooled, 0);
    drop(model);
}
