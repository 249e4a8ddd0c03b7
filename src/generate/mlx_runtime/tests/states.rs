//! Cancelling, truncating and forking states.

use std::time::Duration;

use super::tiny::{CONTEXT, LAYERS, Tiny, exact, load, never, new_state, prompt, read};
use crate::base::Code;
use crate::base::Prompt;
use crate::base::options::{CacheOptions, ModelOptions};
use crate::generate::mlx_runtime::model::MlxModel;
use crate::generate::runtime::TokenModel;

fn model() -> MlxModel {
    load(Tiny::new(false, false).write().path(), &exact()).unwrap()
}

#[test]
fn truncated_tokens_are_forgotten() {
    let model = model();
    let tokens = prompt(30);
    let expected = read(&model, new_state(&model).as_mut(), &tokens, 64);
    let mut state = new_state(&model);
    read(&model, state.as_mut(), &prompt(50), 64);
    state.truncate(70).unwrap();
    assert_eq!(state.offset(), 50);
    state.truncate(0).unwrap();
    assert_eq!(state.offset(), 0);
    assert_eq!(read(&model, state.as_mut(), &tokens, 64), expected);
    state.truncate(29).unwrap();
    assert_eq!(model.logits(state.as_mut(), &Prompt::from(&tokens[29..]), &never()).unwrap(), expected);
}

#[test]
fn forks_do_not_disturb_each_other() {
    let model = model();
    let (tokens, other) = (prompt(20), prompt(33));
    let expected = read(&model, new_state(&model).as_mut(), &tokens, 64);
    let mut state = new_state(&model);
    model.prefill(state.as_mut(), &Prompt::from(&tokens[..19]), &never()).unwrap();
    let mut fork = state.fork().unwrap();
    assert_eq!((fork.offset(), fork.bytes()), (19, state.bytes()));
    read(&model, fork.as_mut(), &other, 64);
    assert_eq!(model.logits(state.as_mut(), &Prompt::from(&tokens[19..]), &never()).unwrap(), expected);
    fork.truncate(19).unwrap();
    drop(state);
    assert_eq!(model.logits(fork.as_mut(), &Prompt::from(&tokens[19..]), &never()).unwrap(), expected);
}

#[test]
fn layers_tell_what_they_hold() {
    let model = model();
    let mut state = new_state(&model);
    assert_eq!(state.bytes(), 0);
    model.prefill(state.as_mut(), &Prompt::from(&prompt(3)), &never()).unwrap();
    let layers = state.layers();
    assert_eq!(layers.len(), LAYERS);
    assert!(layers.iter().all(|layer| layer.signature == "kv:plain" && layer.offset == 3 && layer.trimmable));
    assert_eq!(layers.iter().map(|layer| layer.bytes).sum::<u64>(), state.bytes());
}

#[test]
fn a_cancelled_prefill_covers_nothing_new() {
    let model = model();
    let tokens = prompt(600);
    let expected = read(&model, new_state(&model).as_mut(), &tokens, 600);
    let before = never();
    before.request();
    let mut state = new_state(&model);
    assert_eq!(
        model.prefill(state.as_mut(), &Prompt::from(&tokens), &before).unwrap_err().code(),
        Code::Cancelled
    );
    assert_eq!(
        model.logits(state.as_mut(), &Prompt::from(&tokens), &before).unwrap_err().code(),
        Code::Cancelled
    );
    assert_eq!(state.offset(), 0);
    for delay in 0..8 {
        let cancel = never();
        let id = cancel.id();
        let asker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(delay * 5));
            id.request();
        });
        match model.prefill(state.as_mut(), &Prompt::from(&tokens[..599]), &cancel) {
            Err(error) => assert_eq!((error.code(), state.offset()), (Code::Cancelled, 0)),
            Ok(()) => assert_eq!(state.offset(), 599),
        }
        asker.join().unwrap();
        state.truncate(0).unwrap();
    }
    assert_eq!(read(&model, state.as_mut(), &tokens, 600), expected);
}

#[test]
fn the_context_is_never_exceeded() {
    let model = model();
    let mut state = new_state(&model);
    model.prefill(state.as_mut(), &Prompt::from(&vec![3; CONTEXT - 1]), &never()).unwrap();
    assert_eq!(
        model.prefill(state.as_mut(), &Prompt::from(&[1, 2]), &never()).unwrap_err().code(),
        Code::ContextFull
    );
    assert_eq!(state.offset(), CONTEXT as u64 - 1);
    model.logits(state.as_mut(), &Prompt::from(&[1]), &never()).unwrap();
    assert_eq!(
        model.logits(state.as_mut(), &Prompt::from(&[1]), &never()).unwrap_err().code(),
        Code::ContextFull
    );
    let mut small = model.new_state(&CacheOptions { capacity: 4, ..CacheOptions::default() }).unwrap();
    assert_eq!(
        model.prefill(small.as_mut(), &Prompt::from(&[1; 5]), &never()).unwrap_err().code(),
        Code::ContextFull
    );
    let limited = ModelOptions { context_limit: 6, ..exact() };
    let limited = load(Tiny::new(false, false).write().path(), &limited).unwrap();
    let mut state = new_state(&limited);
    assert_eq!(
        limited.prefill(state.as_mut(), &Prompt::from(&[1; 7]), &never()).unwrap_err().code(),
        Code::ContextFull
    );
}

#[test]
fn bad_calls_change_nothing() {
    let (model, other) = (model(), model());
    let mut state = new_state(&model);
    model.prefill(state.as_mut(), &Prompt::from(&[1, 2, 3]), &never()).unwrap();
    let error = other.prefill(state.as_mut(), &Prompt::from(&[1]), &never()).unwrap_err();
    assert_eq!((error.code(), error.detail().field.as_deref()), (Code::InvalidArgument, Some("cache")));
    assert_eq!(
        model.prefill(state.as_mut(), &Prompt::from(&[]), &never()).unwrap_err().code(),
        Code::InvalidArgument
    );
    let error = model.prefill(state.as_mut(), &Prompt::from(&[1, 40]), &never()).unwrap_err();
    assert_eq!((error.code(), error.detail().position), (Code::InvalidArgument, Some(1)));
    assert_eq!(state.offset(), 3);
}
