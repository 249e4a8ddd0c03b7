//! Many threads and many streams at once.
#![cfg(all(feature = "fake", not(feature = "mlx")))]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mlxgen::base::event::{EndReason, Event};
use mlxgen::base::options::{CacheOptions, GenerateOptions, ModelOptions};
use mlxgen::base::{CancelToken, Code};
use mlxgen::engine::{CacheSet, Engine, Model, Stream};
use support::*;

/// How long the threads of the mixed tests go on.
fn duration() -> Duration {
    let seconds = std::env::var("MLXGEN_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

#[test]
fn b142_every_thread_gets_what_it_would_get_alone() {
    let shared = load(r#"{"step_micros": 50}"#);
    for threads in [2, 4] {
        let expected: Vec<_> = (0..threads)
            .map(|salt| generate(&shared, None, &prompt(100 + salt, salt), &most(50)).tokens)
            .collect();
        for own_model in [false, true] {
            thread::scope(|scope| {
                for salt in 0..threads {
                    let (shared, expected) = (&shared, &expected);
                    scope.spawn(move || {
                        let own =
                            own_model.then(|| try_load(shared.engine(), r#"{"step_micros": 50}"#).unwrap());
                        let model = own.as_ref().unwrap_or(shared);
                        for _ in 0..5 {
                            let said = generate(model, None, &prompt(100 + salt, salt), &most(50));
                            assert_eq!(said.tokens, expected[salt]);
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn b142_loads_and_releases_beside_generations() {
    let model = load("{}");
    let expected = generate(&model, None, &prompt(80, 1), &most(100)).tokens;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let other = try_load(model.engine(), r#"{"weight_bytes": 300000}"#).unwrap();
                let stream = Stream::open(&other, None, &prompt(10, 0), &most(5)).unwrap();
                drop(other);
                assert_eq!(drain(&stream).tokens.len(), 5);
            }
        });
        for _ in 0..50 {
            assert_eq!(generate(&model, None, &prompt(80, 1), &most(100)).tokens, expected);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn open_next_cancel_and_close_from_eight_threads() {
    let model = load(r#"{"step_micros": 20, "prefill_micros_per_token": 2}"#);
    let expected = generate(&model, None, &prompt(200, 0), &most(400)).tokens;
    let until = Instant::now() + duration();
    let rounds = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..8usize {
            let (model, expected, rounds) = (&model, &expected, &rounds);
            scope.spawn(move || {
                let cache = CacheSet::new(model, &CacheOptions::default()).unwrap();
                let mut round = number;
                while Instant::now() < until {
                    round += 1;
                    rounds.fetch_add(1, Ordering::Relaxed);
                    let cancel = CancelToken::try_new().unwrap();
                    let options = GenerateOptions { cancel: Some(cancel.clone()), ..most(400) };
                    let lent = (round % 3 != 0).then_some(&cache);
                    let stream = Stream::open(model, lent, &prompt(200, 0), &options).unwrap();
                    let mut tokens = Vec::new();
                    for _ in 0..round % 50 {
                        match stream.next(Some(Duration::from_micros(300))) {
                            Ok(Some(Event::Text(text))) => tokens.extend(text.tokens),
                            Ok(_) => {}
                            Err(error) => assert_eq!(error.code(), Code::Timeout),
                        }
                    }
                    match round % 4 {
                        0 => cancel.request(),
                        1 => thread::scope(|scope| {
                            // Another thread closes while this one may wait.
                            let other = stream.clone();
                            scope.spawn(move || other.close().unwrap());
                            while let Ok(Some(_)) = stream.next(None) {}
                        }),
                        2 => stream.close().unwrap(),
                        _ => drop(stream.clone()),
                    }
                    assert_eq!(tokens, expected[..tokens.len()]);
                    drop(stream);
                    if lent.is_some() {
                        let kept = cache.tokens().unwrap();
                        let whole = [prompt(200, 0), expected.clone()].concat();
                        assert_eq!(kept, whole[..kept.len()]);
                        cache.truncate(kept.len() / 2).unwrap();
                    }
                }
            });
        }
    });
    assert!(rounds.load(Ordering::Relaxed) > 8);
}

#[test]
fn two_streams_take_turns() {
    let model = load(r#"{"step_micros": 300}"#);
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let streams: Vec<_> = (0..2)
        .map(|number| {
            let stream = Stream::open(&model, None, &prompt(10, number), &most(60)).unwrap();
            let order = Arc::clone(&order);
            stream.set_wakeup(Some(Box::new(move || order.lock().push(number)))).unwrap();
            stream
        })
        .collect();
    for stream in &streams {
        assert_eq!(drain(stream).tokens.len(), 60);
    }
    let order = order.lock().clone();
    let longest = order.chunk_by(|a, b| a == b).map(<[usize]>::len).max().unwrap();
    assert!(longest < 20, "one stream spoke {longest} times in a row");
}

#[test]
fn a_decoding_row_waits_no_longer_than_a_chunk() {
    // A chunk takes 64 x 200 us = 12.8 ms, the whole prompt 50 times that. Three rows prefill.
    let model = load(r#"{"prefill_micros_per_token": 200, "step_micros": 100}"#);
    let decoding = Stream::open(&model, None, &prompt(2, 0), &GenerateOptions::default()).unwrap();
    first_token(&decoding);
    let others: Vec<_> =
        (0..3).map(|salt| Stream::open(&model, None, &prompt(3200, salt), &most(1)).unwrap()).collect();
    let mut longest = Duration::ZERO;
    let mut turns = Vec::new();
    for _ in 0..30 {
        let before = Instant::now();
        first_token(&decoding);
        longest = longest.max(before.elapsed());
        turns.push(longest);
    }
    assert!(longest < Duration::from_millis(60), "{turns:?}");
    for stream in &others {
        stream.close().unwrap();
    }
}

#[test]
fn one_next_at_a_time() {
    let model = load(r#"{"prefill_micros_per_token": 1000}"#);
    let stream = Stream::open(&model, None, &prompt(2000, 0), &most(1)).unwrap();
    while stream.next(Some(Duration::ZERO)).is_ok() {}
    thread::scope(|scope| {
        let waiting = stream.clone();
        let waiter = scope.spawn(move || {
            while let Ok(event) = waiting.next(None) {
                assert!(event.is_some());
            }
            waiting.next(None).unwrap_err()
        });
        wait_until("the other thread to wait", || match stream.next(Some(Duration::ZERO)) {
            Err(error) => error.code() == Code::Busy,
            Ok(_) => false,
        });
        stream.close().unwrap();
        assert_eq!(waiter.join().unwrap().code(), Code::WrongState);
    });
}

#[test]
fn a_wakeup_comes_for_what_is_already_there_and_never_after_close() {
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let model = load("{}");
    for round in 0..100 {
        let (calls, drops) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let stream = Stream::open(&model, None, &prompt(20, 0), &most(20 + round % 5)).unwrap();
        let count = |calls: &Arc<AtomicUsize>| -> mlxgen::engine::Wakeup {
            let (calls, held) = (Arc::clone(calls), Count(Arc::clone(&drops)));
            Box::new(move || {
                let _held = &held;
                calls.fetch_add(1, Ordering::SeqCst);
            })
        };
        if round % 2 == 0 {
            let _ = stream.next(Some(LONG)).unwrap();
        }
        stream.set_wakeup(Some(count(&calls))).unwrap();
        wait_until("a wake-up", || calls.load(Ordering::SeqCst) > 0);
        stream.set_wakeup(Some(count(&calls))).unwrap();
        if round % 3 == 0 {
            drain(&stream);
        }
        stream.close().unwrap();
        let after = calls.load(Ordering::SeqCst);
        assert_eq!(drops.load(Ordering::SeqCst), 2, "each closure is dropped once");
        assert_eq!(stream.set_wakeup(Some(Box::new(|| {}))).unwrap_err().code(), Code::WrongState);
        assert_eq!(calls.load(Ordering::SeqCst), after);
    }
}

#[test]
fn any_order_of_release_is_right() {
    let orders: Vec<[usize; 4]> = (0..24)
        .map(|number| {
            let mut left = vec![0, 1, 2, 3];
            [number / 6, number / 2 % 3, number % 2, 0].map(|at| left.remove(at))
        })
        .collect();
    for order in orders {
        let engine = engine();
        let model = try_load(&engine, r#"{"step_micros": 50}"#).unwrap();
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let stream = Stream::open(&model, Some(&cache), &prompt(20, 0), &most(1000)).unwrap();
        first_token(&stream);
        let (mut engine, mut model, mut cache, mut stream) =
            (Some(engine), Some(model), Some(cache), Some(stream));
        for which in order {
            match which {
                0 => drop(engine.take()),
                1 => drop(model.take()),
                2 => drop(cache.take()),
                _ => drop(stream.take()),
            }
            if let Some(stream) = &stream {
                first_token(stream);
            }
        }
    }
}

#[test]
fn the_owner_thread_ends_with_its_last_user_and_starts_again() {
    // In a child, since other tests of this binary keep the thread alive.
    if child::role().is_none() {
        let name = "the_owner_thread_ends_with_its_last_user_and_starts_again";
        return child::expect(name, "restart", &[], 0);
    }
    let running = || {
        std::fs::read_dir("/proc/self/task").unwrap().flatten().any(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.starts_with("mlxgen-owner"))
        })
    };
    let mut tokens = Vec::new();
    for _ in 0..20 {
        assert!(!running());
        let engine = Engine::new(&Default::default()).unwrap();
        let second = Engine::new(&Default::default()).unwrap();
        assert!(running());
        let model = try_load(&engine, "{}").unwrap();
        let stream = Stream::open(&model, None, &prompt(20, 0), &most(10)).unwrap();
        tokens.push(drain(&stream).tokens);
        drop((engine, second, model));
        assert!(running());
        drop(stream);
        wait_until("the end of the thread", || !running());
    }
    assert!(tokens.iter().all(|each| *each == tokens[0]));
}

#[test]
fn a_load_tells_its_progress_in_order_on_the_calling_thread() {
    let engine = engine();
    let files = FakeModel::new(r#"{"weight_bytes": 100000, "piece_bytes": 7000}"#);
    let caller = thread::current().id();
    let mut told = Vec::new();
    Model::load(&engine, files.path(), &ModelOptions::default(), None, &mut |progress| {
        assert_eq!(thread::current().id(), caller);
        told.push((progress.phase as i32, progress.done, progress.total));
    })
    .unwrap();
    assert!(told.is_sorted());
    assert_eq!(told.iter().filter(|(phase, ..)| *phase == 1).count(), 1 + 15);
    for phase in 0..3 {
        let last = told.iter().rfind(|(told, ..)| *told == phase).unwrap();
        assert_eq!(last.1, last.2);
    }
}

#[test]
fn cancelled_streams_say_so_once() {
    let model = load("{}");
    let cancel = CancelToken::try_new().unwrap();
    cancel.request();
    let options = GenerateOptions { cancel: Some(cancel), ..GenerateOptions::default() };
    let said = generate(&model, None, &prompt(20, 0), &options);
    assert_eq!(said.reason(), EndReason::Cancelled);
    assert_eq!(said.events.len(), 1);
}
