//! Pipelined steps against scores read one by one.

use super::tiny::{Tiny, exact, load, never, new_state, prompt};
use crate::base::Prompt;
use crate::base::event::TokenLogprobs;
use crate::base::options::Sampling;
use crate::generate::mlx_runtime::model::MlxModel;
use crate::generate::runtime::{LogprobReport, StepInput, TokenModel};

fn model() -> MlxModel {
    load(Tiny::new(false, false).write().path(), &exact()).unwrap()
}

/// `count` tokens after `prompt`; each step is dispatched before the one before it is read.
fn generate(
    model: &MlxModel,
    prompt: &[u32],
    sampling: &Sampling,
    report: LogprobReport,
    count: u64,
) -> Vec<(u32, Option<TokenLogprobs>)> {
    let mut state = new_state(model);
    let (last, before) = prompt.split_last().unwrap();
    model.prefill(state.as_mut(), &Prompt::from(before), &never()).unwrap();
    let mut current =
        model.step(state.as_mut(), StepInput::Read(&Prompt::from(&[*last])), sampling, report, 0).unwrap();
    let mut read = Vec::new();
    for step in 1..=count {
        let input = StepInput::Pending(current.as_ref());
        let next = model.step(state.as_mut(), input, sampling, report, step).unwrap();
        read.push(current.read().unwrap());
        current = next;
    }
    assert_eq!(state.offset(), prompt.len() as u64 + count);
    read
}

fn tokens(read: &[(u32, Option<TokenLogprobs>)]) -> Vec<u32> {
    read.iter().map(|(token, _)| *token).collect()
}

#[test]
fn greedy_steps_take_the_best_scores() {
    let model = model();
    let prompt = prompt(12);
    let found = tokens(&generate(&model, &prompt, &Sampling::default(), LogprobReport::default(), 300));
    let mut state = new_state(&model);
    let mut next = prompt.clone();
    for token in &found {
        let scores = model.logits(state.as_mut(), &Prompt::from(&next), &never()).unwrap();
        let best = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(scores[*token as usize], best);
        next = vec![*token];
    }
    let distinct: std::collections::BTreeSet<_> = found.iter().collect();
    assert!(distinct.len() > 5, "the model repeats itself: {found:?}");
}

#[test]
fn b48_a_seed_gives_one_text() {
    let model = model();
    let run = |seed: u64| {
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        tokens(&generate(&model, &prompt(5), &sampling, LogprobReport::default(), 20))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_ne!(run(0), run(1));
    assert_ne!(run(0), run(u64::MAX));
}

#[test]
fn reports_do_not_change_the_tokens() {
    let model = model();
    let sampling = Sampling { temperature: 0.8, top_k: 8, top_p: 0.9, min_p: 0.01, seed: 4 };
    let quiet = generate(&model, &prompt(9), &sampling, LogprobReport::default(), 15);
    assert!(quiet.iter().all(|(_, told)| told.is_none()));
    let report = LogprobReport { chosen: true, top: 6 };
    let told = generate(&model, &prompt(9), &sampling, report, 15);
    assert_eq!(tokens(&quiet), tokens(&told));
    for (token, told) in told {
        let told = told.unwrap();
        assert_eq!(told.top.len(), 6);
        assert!(told.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert!(told.top.iter().all(|(id, value)| *id != token || *value == told.chosen));
        assert!(told.chosen <= told.top[0].1);
        let mass: f32 = told.top.iter().map(|(_, value)| value.exp()).sum();
        assert!(mass > 0.0 && mass <= 1.0 + 1e-5);
    }
}
