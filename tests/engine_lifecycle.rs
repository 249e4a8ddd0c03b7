//! Suspension, shutdown, exit, fork. Each in a process of its own.
#![cfg(all(feature = "fake", not(feature = "mlx")))]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mlxgen::base::event::EndReason;
use mlxgen::base::options::{CacheOptions, GenerateOptions, ModelOptions};
use mlxgen::base::{CancelToken, Code};
use mlxgen::engine::{CacheSet, Engine, Model, Stream, in_forked_child, shutdown};
use support::*;

/// Runs the rest of a test in a child process, which has to end with 0.
macro_rules! in_child {
    ($name:ident) => {
        if child::role().is_none() {
            return child::expect(stringify!($name), "child", &[], 0);
        }
    };
}

#[test]
fn nothing_runs_while_suspended() {
    let model = load(r#"{"step_micros": 100, "prefill_micros_per_token": 100}"#);
    let engine = model.engine();
    let expected = generate(&model, None, &prompt(100, 0), &most(300)).tokens;
    let long = generate(&model, None, &prompt(2000, 1), &most(5)).tokens;
    for round in 0..20 {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let decoding = Stream::open(&model, Some(&cache), &prompt(100, 0), &most(300)).unwrap();
        let wakeup = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        decoding.set_wakeup(Some(Box::new(wakeup))).unwrap();
        let preparing = Stream::open(&model, None, &prompt(2000, 1), &most(5)).unwrap();
        thread::sleep(Duration::from_millis(round * 2));
        let start = Instant::now();
        engine.suspend(LONG).unwrap();
        assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
        assert_eq!(engine.memory().unwrap().pooled, 0);
        let (said, kept) = (calls.load(Ordering::SeqCst), cache.tokens().unwrap());
        let whole = [prompt(100, 0), expected.clone()].concat();
        assert_eq!(kept, whole[..kept.len()]);
        // Work is refused, questions are answered, a stream has no more to say.
        for code in [
            Stream::open(&model, None, &[1], &most(1)).err().unwrap().code(),
            CacheSet::new(&model, &CacheOptions::default()).err().unwrap().code(),
            try_load(engine, "{}").err().unwrap().code(),
        ] {
            assert_eq!(code, Code::WrongState);
        }
        while preparing.next(Some(Duration::ZERO)).is_ok() {}
        assert_eq!(preparing.next(Some(Duration::from_millis(5))).unwrap_err().code(), Code::Timeout);
        assert_eq!(calls.load(Ordering::SeqCst), said);
        assert_eq!(cache.tokens().unwrap(), kept);
        engine.suspend(LONG).unwrap();
        engine.resume().unwrap();
        engine.resume().unwrap();
        assert_eq!(drain(&decoding).tokens, expected);
        assert_eq!(drain(&preparing).tokens, long);
    }
}

#[test]
fn streams_can_be_cancelled_and_closed_while_suspended() {
    let model = load(r#"{"step_micros": 100}"#);
    let engine = model.engine();
    let cancel = CancelToken::try_new().unwrap();
    let options = GenerateOptions { cancel: Some(cancel.clone()), ..GenerateOptions::default() };
    let cancelled = Stream::open(&model, None, &prompt(10, 0), &options).unwrap();
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let closed = Stream::open(&model, Some(&cache), &prompt(10, 0), &most(1000)).unwrap();
    first_token(&closed);
    engine.suspend(LONG).unwrap();
    cancel.request();
    assert_eq!(drain(&cancelled).reason(), EndReason::Cancelled);
    closed.close().unwrap();
    assert_eq!(cache.append(&[1], None).unwrap_err().code(), Code::WrongState);
    engine.resume().unwrap();
    cache.append(&[1], None).unwrap();
}

#[test]
fn appends_and_loads_wait_while_suspended() {
    let model = load(r#"{"prefill_micros_per_token": 50}"#);
    let engine = model.engine();
    let files = FakeModel::new(r#"{"weight_bytes": 1000000, "piece_bytes": 10000, "piece_micros": 200}"#);
    thread::scope(|scope| {
        let append = scope.spawn(|| {
            let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
            cache.append(&prompt(2000, 0), None).unwrap();
            Instant::now()
        });
        let load = scope.spawn(|| {
            Model::load(engine, files.path(), &ModelOptions::default(), None, &mut |_| {}).unwrap();
            Instant::now()
        });
        thread::sleep(Duration::from_millis(10));
        engine.suspend(LONG).unwrap();
        thread::sleep(Duration::from_millis(150));
        let resumed = Instant::now();
        engine.resume().unwrap();
        assert!(append.join().unwrap() > resumed);
        assert!(load.join().unwrap() > resumed);
    });
}

#[test]
fn a_suspension_that_takes_too_long_still_comes() {
    // A token takes 200 ms and cannot be interrupted.
    let model = load(r#"{"step_micros": 200000}"#);
    let engine = model.engine();
    let stream = Stream::open(&model, None, &prompt(2, 0), &most(4)).unwrap();
    first_token(&stream);
    assert_eq!(engine.suspend(Duration::from_millis(20)).unwrap_err().code(), Code::Timeout);
    engine.suspend(LONG).unwrap();
    engine.resume().unwrap();
    assert_eq!(drain(&stream).tokens.len(), 3);
}

#[test]
fn an_engine_is_suspended_alone() {
    let suspended = load("{}");
    let other = load("{}");
    suspended.engine().suspend(LONG).unwrap();
    assert_eq!(generate(&other, None, &[1], &most(20)).tokens.len(), 20);
    suspended.engine().resume().unwrap();
}

#[test]
fn a_shutdown_ends_everything_and_is_not_the_end() {
    in_child!(a_shutdown_ends_everything_and_is_not_the_end);
    shutdown(LONG).unwrap();
    for _ in 0..10 {
        let model = load(r#"{"prefill_micros_per_token": 100, "step_micros": 100}"#);
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let decoding = Stream::open(&model, Some(&cache), &prompt(2, 0), &most(100_000)).unwrap();
        first_token(&decoding);
        let preparing = Stream::open(&model, None, &prompt(4000, 1), &most(5)).unwrap();
        let appending = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        thread::scope(|scope| {
            let append = scope.spawn(|| appending.append(&prompt(4000, 2), None));
            let reader = scope.spawn(|| drain(&preparing));
            thread::sleep(Duration::from_millis(5));
            let start = Instant::now();
            shutdown(LONG).unwrap();
            assert!(start.elapsed() < Duration::from_secs(1));
            assert_eq!(reader.join().unwrap().reason(), EndReason::Cancelled);
            let code = append.join().unwrap().unwrap_err().code();
            assert!(matches!(code, Code::Cancelled | Code::WrongState), "{code:?}");
        });
        assert_eq!(drain(&decoding).reason(), EndReason::Cancelled);
        for code in [
            model.engine().memory().err().unwrap().code(),
            model.engine().trim().err().unwrap().code(),
            try_load(model.engine(), "{}").err().unwrap().code(),
            cache.append(&[1], None).err().unwrap().code(),
            cache.tokens().err().unwrap().code(),
            Stream::open(&model, None, &[1], &most(1)).err().unwrap().code(),
        ] {
            assert_eq!(code, Code::WrongState);
        }
        decoding.close().unwrap();
        drop(preparing);
        // The old handles may live on beside a new engine.
        assert_eq!(generate(&load("{}"), None, &[1], &most(3)).tokens.len(), 3);
    }
}

#[test]
fn a_shutdown_that_takes_too_long_says_so() {
    in_child!(a_shutdown_that_takes_too_long_says_so);
    let model = load(r#"{"step_micros": 300000}"#);
    let stream = Stream::open(&model, None, &prompt(2, 0), &most(100)).unwrap();
    first_token(&stream);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(shutdown(Duration::from_millis(10)).unwrap_err().code(), Code::Timeout);
    assert_eq!(model.engine().trim().unwrap_err().code(), Code::WrongState);
    shutdown(LONG).unwrap();
}

/// Work of every kind in progress, then `end`.
fn amid_work(end: impl FnOnce()) {
    let model = load(r#"{"prefill_micros_per_token": 100, "step_micros": 200}"#);
    let decoding = Stream::open(&model, None, &prompt(2, 0), &most(100_000)).unwrap();
    first_token(&decoding);
    let reading = decoding.clone();
    thread::spawn(move || drain(&reading));
    let preparing = Stream::open(&model, None, &prompt(4000, 1), &most(5)).unwrap();
    let appending = model.clone();
    thread::spawn(move || {
        let cache = CacheSet::new(&appending, &CacheOptions::default()).unwrap();
        let _ = cache.append(&prompt(4000, 2), None);
    });
    let loading = model.engine().clone();
    thread::spawn(move || try_load(&loading, r#"{"weight_bytes": 10000000, "piece_micros": 300}"#).is_ok());
    thread::sleep(Duration::from_millis(20));
    end();
    drop(preparing);
}

#[test]
fn an_exit_during_generations_ends_in_time() {
    const NAME: &str = "an_exit_during_generations_ends_in_time";
    if child::role().is_some() {
        amid_work(|| std::process::exit(7));
    }
    for _ in 0..10 {
        let start = Instant::now();
        child::expect(NAME, "child", &[], 7);
        assert!(start.elapsed() < Duration::from_secs(4));
    }
}

#[test]
fn an_exit_inside_a_callback_ends_in_time() {
    const NAME: &str = "an_exit_inside_a_callback_ends_in_time";
    if child::role().is_some() {
        let model = load("{}");
        let stream = Stream::open(&model, None, &prompt(2, 0), &most(100)).unwrap();
        stream.set_wakeup(Some(Box::new(|| std::process::exit(8)))).unwrap();
        drain(&stream);
    }
    child::expect(NAME, "child", &[], 8);
}

#[cfg(unix)]
#[test]
fn a_forked_child_is_refused_and_ends_well() {
    const NAME: &str = "a_forked_child_is_refused_and_ends_well";
    if child::role().is_none() {
        for _ in 0..10 {
            child::expect(NAME, "parent", &[], 0);
        }
        return;
    }
    let model = load(r#"{"step_micros": 50}"#);
    let engine = model.engine().clone();
    let cancel = CancelToken::try_new().unwrap();
    let options = GenerateOptions { cancel: Some(cancel), ..most(100_000) };
    let stream = Stream::open(&model, None, &prompt(2, 0), &options).unwrap();
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    stream.set_wakeup(Some(Box::new(|| {}))).unwrap();
    let reading = stream.clone();
    let reader = thread::spawn(move || (0..200).for_each(|_| first_token(&reading)));
    thread::sleep(Duration::from_millis(3));
    // SAFETY: the child calls nothing but the library under test, which has to cope with this.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = [
            engine.memory().err().map(|error| error.code()),
            engine.trim().err().map(|error| error.code()),
            Engine::new(&Default::default()).err().map(|error| error.code()),
            Stream::open(&model, None, &[1], &most(1)).err().map(|error| error.code()),
            stream.next(None).err().map(|error| error.code()),
            stream.close().err().map(|error| error.code()),
            stream.set_wakeup(None).err().map(|error| error.code()),
            cache.append(&[1], None).err().map(|error| error.code()),
            shutdown(LONG).err().map(|error| error.code()),
        ];
        let right = refused.iter().all(|code| *code == Some(Code::WrongState)) && in_forked_child();
        drop((stream, cache, model, engine));
        std::process::exit(if right { 3 } else { 4 });
    }
    let mut status = 0;
    let start = Instant::now();
    loop {
        // SAFETY: `status` is a variable of ours.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if waited == pid {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "the child hangs");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 3, "{status:x}");
    // The parent goes on.
    reader.join().unwrap();
    stream.close().unwrap();
    assert_eq!(generate(&model, None, &[1], &most(5)).tokens.len(), 5);
}
