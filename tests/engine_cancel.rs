//! B144: cancellation in every place, and what is left afterwards.
#![cfg(all(feature = "fake", not(feature = "mlx")))]

mod support;

use std::thread;
use std::time::{Duration, Instant};

use mlxgen::base::event::{EndReason, Event};
use mlxgen::base::options::{CacheOptions, GenerateOptions, ModelOptions};
use mlxgen::base::{CancelToken, Code};
use mlxgen::engine::{CacheSet, Model, Stream};
use support::*;

const ROUNDS: usize = 200;

fn with(cancel: &CancelToken) -> GenerateOptions {
    GenerateOptions { cancel: Some(cancel.clone()), ..most(300) }
}

/// What is left after a cancellation continues as if it had never been.
fn assert_continues(model: &Model, cache: &CacheSet, whole_prompt: &[u32], expected: &[u32]) {
    let kept = cache.tokens().unwrap();
    let whole = [whole_prompt, expected].concat();
    assert_eq!(kept, whole[..kept.len()]);
    // What was kept is the next prompt, as far as it covers the whole one.
    let (begin, rest) = whole.split_at(kept.len().max(whole_prompt.len()));
    let count = rest.len().min(60);
    let said = generate(model, Some(cache), begin, &most(count as u64));
    assert_eq!(said.tokens, rest[..count]);
}

#[test]
fn b144_in_prefill() {
    // 5000 tokens in chunks of 2048 take 50 ms; the cancel comes somewhere inside.
    let json = r#"{"context_limit": 8192, "prefill_chunk": 2048, "prefill_micros_per_token": 10}"#;
    let model = load(json);
    let prompt = prompt(5000, 0);
    let expected = generate(&model, None, &prompt, &most(3)).tokens;
    for round in 0..ROUNDS {
        let cancel = CancelToken::try_new().unwrap();
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let stream = Stream::open(&model, Some(&cache), &prompt, &with(&cancel)).unwrap();
        let delay = Duration::from_micros(round as u64 * 11 % 2000);
        let asked = thread::scope(|scope| {
            let asker = scope.spawn(|| {
                thread::sleep(delay);
                cancel.request();
                Instant::now()
            });
            let said = drain(&stream);
            assert_eq!(said.reason(), EndReason::Cancelled);
            assert!(said.tokens.is_empty());
            asker.join().unwrap()
        });
        assert!(asked.elapsed() < Duration::from_millis(250), "{:?}", asked.elapsed());
        stream.close().unwrap();
        assert_eq!(cache.token_count().unwrap() % 2048, 0, "whole chunks");
        if round % 50 == 0 {
            assert_continues(&model, &cache, &prompt, &expected);
        }
    }
}

#[test]
fn b144_between_tokens() {
    let model = load(r#"{"step_micros": 30}"#);
    let prompt = prompt(50, 1);
    let expected = generate(&model, None, &prompt, &most(300)).tokens;
    for round in 0..ROUNDS {
        let cancel = CancelToken::try_new().unwrap();
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let stream = Stream::open(&model, Some(&cache), &prompt, &with(&cancel)).unwrap();
        for _ in 0..round % 40 {
            first_token(&stream);
        }
        cancel.request();
        let said = drain(&stream);
        assert_eq!(said.reason(), EndReason::Cancelled);
        let generated = said.end.unwrap().usage.generated_tokens as usize;
        if generated > 0 {
            assert_eq!(cache.token_count().unwrap(), 50 + generated - 1);
        }
        stream.close().unwrap();
        assert_continues(&model, &cache, &prompt, &expected);
    }
}

#[test]
fn b144_inside_a_callback() {
    let model = load(r#"{"step_micros": 30}"#);
    for round in 0..ROUNDS {
        let cancel = CancelToken::try_new().unwrap();
        let stream = Stream::open(&model, None, &prompt(50, 2), &with(&cancel)).unwrap();
        let theirs = cancel.clone();
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let wakeup = move || {
            if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == round % 20 {
                theirs.request();
            }
        };
        stream.set_wakeup(Some(Box::new(wakeup))).unwrap();
        assert_eq!(drain(&stream).reason(), EndReason::Cancelled);
    }
}

#[test]
fn b144_before_the_start_and_after_the_end() {
    let model = load("{}");
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    for _ in 0..ROUNDS {
        let cancel = CancelToken::try_new().unwrap();
        cancel.request();
        assert_eq!(cache.append(&[1], Some(&cancel)).unwrap_err().code(), Code::Cancelled);
        assert_eq!(generate(&model, Some(&cache), &[1, 2], &with(&cancel)).reason(), EndReason::Cancelled);
        assert_eq!(cache.token_count().unwrap(), 0);

        let cancel = CancelToken::try_new().unwrap();
        let options = GenerateOptions { max_tokens: Some(2), ..with(&cancel) };
        let stream = Stream::open(&model, None, &prompt(5, 0), &options).unwrap();
        assert_eq!(drain(&stream).reason(), EndReason::MaxTokens);
        cancel.request();
        assert_eq!(stream.next(None).unwrap(), None);
        stream.close().unwrap();
    }
}

#[test]
fn b144_an_append_keeps_whole_chunks() {
    let model = load(r#"{"prefill_micros_per_token": 20}"#);
    let tokens = prompt(1000, 3);
    let whole = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    whole.append(&tokens, None).unwrap();
    let expected = whole.logits().unwrap();
    for round in 0..ROUNDS / 4 {
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let cancel = CancelToken::try_new().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_micros(round as u64 * 400));
                cancel.request();
            });
            match cache.append(&tokens, Some(&cancel)) {
                Ok(()) => assert_eq!(cache.token_count().unwrap(), 1000),
                Err(error) => {
                    assert_eq!(error.code(), Code::Cancelled);
                    let kept = cache.token_count().unwrap();
                    assert!(kept.is_multiple_of(64) || kept == 999, "{kept}");
                }
            }
        });
        let kept = cache.token_count().unwrap();
        if kept < 1000 {
            cache.append(&tokens[kept..], None).unwrap();
        }
        assert_eq!(cache.logits().unwrap(), expected);
    }
}

#[test]
fn b144_a_load_keeps_nothing() {
    let engine = engine();
    let files = FakeModel::new(r#"{"weight_bytes": 1000000, "piece_bytes": 10000, "piece_micros": 20}"#);
    for round in 0..ROUNDS / 2 {
        let cancel = CancelToken::try_new().unwrap();
        let mut told = 0;
        let error = Model::load(&engine, files.path(), &ModelOptions::default(), Some(&cancel), &mut |_| {
            told += 1;
            if told > round {
                cancel.request();
            }
        })
        .err()
        .unwrap();
        assert_eq!(error.code(), Code::Cancelled);
        let memory = engine.memory().unwrap();
        assert_eq!(memory.models, 0);
        assert!(memory.active < 1_000_000);
    }
    Model::load(&engine, files.path(), &ModelOptions::default(), None, &mut |_| {}).unwrap();
}

#[test]
fn a_close_interrupts_a_prefill() {
    let json = r#"{"context_limit": 8192, "prefill_chunk": 4096, "prefill_micros_per_token": 500}"#;
    let model = load(json);
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let stream = Stream::open(&model, Some(&cache), &prompt(5000, 0), &most(1)).unwrap();
    assert!(matches!(stream.next(Some(LONG)).unwrap(), Some(Event::Prefill { done: 0, .. })));
    let start = Instant::now();
    stream.close().unwrap();
    assert!(start.elapsed() < Duration::from_millis(250));
    assert_eq!(cache.token_count().unwrap(), 0);
    cache.append(&[1], None).unwrap();
    // So does the release of the last share.
    let stream = Stream::open(&model, Some(&cache), &prompt(5000, 0), &most(1)).unwrap();
    let start = Instant::now();
    drop(stream);
    assert!(start.elapsed() < Duration::from_millis(250));
    assert_eq!(cache.token_count().unwrap(), 0);
    cache.append(&[1], None).unwrap();
}

#[test]
fn a_cancel_reaches_a_row_whose_consumer_rests() {
    let model = load("{}");
    let cancel = CancelToken::try_new().unwrap();
    let options = GenerateOptions { cancel: Some(cancel.clone()), ..GenerateOptions::default() };
    let stream = Stream::open(&model, None, &prompt(5, 0), &options).unwrap();
    thread::sleep(Duration::from_millis(30));
    cancel.request();
    assert_eq!(drain(&stream).reason(), EndReason::Cancelled);
}
