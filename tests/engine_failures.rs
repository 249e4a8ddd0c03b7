//! B139, B140: errors keep their code and place, panics fail only their own work.
#![cfg(all(feature = "fake", not(feature = "mlx")))]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlxgen::base::options::{CacheOptions, GenerateOptions, ModelOptions};
use mlxgen::base::{Code, Error};
use mlxgen::engine::{CacheSet, Engine, Model, Stream};
use support::*;

fn fault(at: &str, rest: &str) -> String {
    format!(r#"{{"faults": [{{"at": "{at}", {rest}}}]}}"#)
}

/// The engine serves everybody else as before.
fn assert_well(engine: &Engine) {
    let model = try_load(engine, r#"{"script": {"text": "well"}}"#).unwrap();
    assert_eq!(generate(&model, None, &prompt(10, 0), &GenerateOptions::default()).text, "well");
}

fn error_of_stream(model: &Model, cache: &CacheSet) -> Error {
    let stream = Stream::open(model, Some(cache), &prompt(200, 0), &most(20)).unwrap();
    let said = drain(&stream);
    assert!(said.end.is_none());
    assert_eq!(stream.next(None).unwrap(), None, "the error comes once, then DONE");
    stream.close().unwrap();
    said.error.unwrap()
}

#[test]
fn b139_models_that_cannot_be_loaded() {
    let engine = engine();
    let missing =
        Model::load(&engine, "/no/such/model".as_ref(), &ModelOptions::default(), None, &mut |_| {});
    let missing = missing.err().unwrap();
    assert_eq!(missing.code(), Code::NotFound);
    assert_eq!(missing.detail().file.as_deref(), Some("/no/such/model".as_ref()));
    for json in ["", "{", "7", r#"{"vocabulary": 0}"#, r#"{"surprise": 1}"#, r#"{"eos": [260]}"#] {
        let error = try_load(&engine, json).err().unwrap();
        assert_eq!(error.code(), Code::InvalidModel, "{json}");
        assert!(error.detail().file.is_some());
    }
    for place in ["open", "piece", "builder", "accept", "finish"] {
        for code in [6, 7, 8, 13, 16] {
            let error = try_load(&engine, &fault(place, &format!(r#""code": {code}"#))).err().unwrap();
            assert_eq!(error.code() as i32, code, "{place}");
        }
        let panic = try_load(&engine, &fault(place, r#""after": 0"#)).err().unwrap();
        assert_eq!(panic.code(), Code::Internal);
        assert!(panic.message().contains("panic"), "{panic}");
        let memory = engine.memory().unwrap();
        assert_eq!((memory.models, memory.caches), (0, 0));
    }
    // After the second piece, with others on the way.
    for place in ["piece", "accept"] {
        let error = try_load(&engine, &fault(place, r#""after": 2, "code": 13"#)).err().unwrap();
        assert_eq!(error.code(), Code::Io);
    }
    assert_well(&engine);
}

#[test]
fn b139_errors_while_generating_keep_their_code() {
    let engine = engine();
    for (place, after) in [("prefill", 1), ("step", 0), ("step", 5), ("read", 0), ("read", 5)] {
        for code in [8, 13, 14, 15, 16] {
            let json = fault(place, &format!(r#""after": {after}, "count": 1, "code": {code}"#));
            let model = try_load(&engine, &json).unwrap();
            let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
            assert_eq!(error_of_stream(&model, &cache).code() as i32, code, "{place}");
            // The cache set holds what was committed, and goes on from there.
            let kept = cache.tokens().unwrap();
            let clean = try_load(&engine, "{}").unwrap();
            let expected = generate(&clean, None, &prompt(200, 0), &most(20)).tokens;
            assert_eq!(kept, [prompt(200, 0), expected.clone()].concat()[..kept.len()]);
            assert_eq!(generate(&model, Some(&cache), &prompt(200, 0), &most(20)).tokens, expected);
        }
    }
    assert_well(&engine);
}

#[test]
fn a_failed_step_is_told_after_the_token_before_it() {
    // The step that would follow EOS fails: nobody has to hear of it.
    let json = r#"{"script": {"text": "ab"}, "faults": [{"at": "step", "after": 3, "code": 8}]}"#;
    let said = generate(&load(json), None, &[1, 2], &GenerateOptions::default());
    assert_eq!((said.text.as_str(), said.error.is_none()), ("ab", true));
    let json = r#"{"script": {"text": "abc"}, "faults": [{"at": "step", "after": 3, "code": 8}]}"#;
    let said = generate(&load(json), None, &[1, 2], &GenerateOptions::default());
    assert_eq!((said.text.as_str(), said.error.unwrap().code()), ("abc", Code::OutOfMemory));
}

#[test]
fn b139_an_append_that_fails_keeps_whole_chunks() {
    let model = load(
        r#"{"faults": [{"at": "prefill", "after": 2, "count": 1, "code": 8},
                                     {"at": "logits", "count": 1, "code": 14}]}"#,
    );
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let tokens = prompt(300, 0);
    assert_eq!(cache.append(&tokens, None).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!(cache.token_count().unwrap(), 128);
    assert_eq!(cache.append(&tokens[128..], None).unwrap_err().code(), Code::GpuTimeout);
    assert_eq!(cache.token_count().unwrap(), 299);
    assert_eq!(cache.logits().unwrap_err().code(), Code::WrongState);
    cache.append(&tokens[299..], None).unwrap();
    assert_eq!(cache.tokens().unwrap(), tokens);
}

#[test]
fn a_panic_in_a_row_ends_that_row_alone() {
    let engine = engine();
    let neighbour = try_load(&engine, r#"{"step_micros": 200}"#).unwrap();
    let running = Stream::open(&neighbour, None, &prompt(5, 0), &most(200)).unwrap();
    for (place, after) in [("prefill", 1), ("step", 0), ("step", 5), ("read", 0), ("read", 5)] {
        let model = try_load(&engine, &fault(place, &format!(r#""after": {after}, "count": 1"#))).unwrap();
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let error = error_of_stream(&model, &cache);
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("panic in a row"), "{error}");
        // The state answers as it should, so it is kept.
        let kept = cache.token_count().unwrap();
        assert_eq!(generate(&model, Some(&cache), &prompt(200, 0), &most(20)).tokens.len(), 20);
        assert!(kept >= 64);
    }
    let model = try_load(&engine, &fault("logits", r#""count": 1"#)).unwrap();
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    assert_eq!(cache.append(&[1, 2], None).unwrap_err().code(), Code::Internal);
    cache.append(&[3], None).unwrap();
    assert_eq!(drain(&running).tokens.len(), 200);
}

#[test]
fn a_cache_set_that_cannot_be_repaired_refuses_to_be_used() {
    // The step that ran ahead cannot be cut off at the end.
    for fault in [r#"{"at": "truncate", "code": 16}"#, r#"{"at": "truncate"}"#] {
        let model = load(&format!(r#"{{"script": {{"text": "abc"}}, "faults": [{fault}]}}"#));
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let stream = Stream::open(&model, Some(&cache), &[1, 2], &GenerateOptions::default()).unwrap();
        let said = drain(&stream);
        assert_eq!(said.text, "abc");
        assert!(said.end.is_some() || said.error.is_some_and(|error| error.code() == Code::Internal));
        stream.close().unwrap();
        assert_eq!(cache.append(&[1], None).unwrap_err().code(), Code::Internal);
        assert_eq!(cache.fork().err().unwrap().code(), Code::Internal);
        let again = Stream::open(&model, Some(&cache), &[1], &most(1)).err().unwrap();
        assert_eq!(again.code(), Code::Internal);
        assert_eq!(generate(&model, None, &[1, 2], &most(2)).text, "ab");
    }
}

#[test]
fn panics_in_jobs_reach_their_caller_only() {
    let model = load(
        r#"{"faults": [{"at": "new_state", "count": 1}, {"at": "fork", "count": 1},
                                    {"at": "truncate", "count": 1}]}"#,
    );
    assert_eq!(CacheSet::new(&model, &CacheOptions::default()).err().unwrap().code(), Code::Internal);
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    cache.append(&[1, 2, 3], None).unwrap();
    assert_eq!(cache.fork().err().unwrap().code(), Code::Internal);
    assert_eq!(cache.truncate(1).unwrap_err().code(), Code::Internal);
    assert_eq!(cache.fork().unwrap().token_count().unwrap(), 3);
    assert_eq!(cache.truncate(1).unwrap(), 2);
    assert_well(model.engine());
}

#[test]
fn panics_in_drops_take_nothing_with_them() {
    let engine = engine();
    for place in ["drop_state", "drop_model"] {
        let model = try_load(&engine, &fault(place, r#""after": 0"#)).unwrap();
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let stream = Stream::open(&model, Some(&cache), &prompt(5, 0), &most(5)).unwrap();
        assert_eq!(drain(&stream).tokens.len(), 5);
        drop((stream, cache, model));
        assert_well(&engine);
    }
    wait_until("the account to be right", || {
        let memory = engine.memory().unwrap();
        memory.models == 0 && memory.caches == 0
    });
}

#[test]
fn panics_in_callbacks_stay_there() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in the drop of a callback");
        }
    }
    let model = load("{}");
    let calls = Arc::new(AtomicUsize::new(0));
    let stream = Stream::open(&model, None, &prompt(5, 0), &most(30)).unwrap();
    let (counted, bomb) = (Arc::clone(&calls), Bomb);
    let wakeup = move || {
        let _held = &bomb;
        counted.fetch_add(1, Ordering::Relaxed);
        panic!("in a callback");
    };
    stream.set_wakeup(Some(Box::new(wakeup))).unwrap();
    assert_eq!(drain(&stream).tokens.len(), 30);
    stream.close().unwrap();
    assert!(calls.load(Ordering::Relaxed) > 0);

    let engine = model.engine();
    for bad in 0..4 {
        let files = FakeModel::new("{}");
        let mut told = 0;
        let error = Model::load(engine, files.path(), &ModelOptions::default(), None, &mut |_| {
            told += 1;
            assert!(told <= bad, "in a progress callback");
        });
        let error = error.err().unwrap();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("in a progress callback"), "{error}");
    }
    assert_well(engine);
}

#[test]
fn b140_calls_from_a_wakeup_are_refused() {
    let model = load("{}");
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let stream = Stream::open(&model, None, &prompt(5, 0), &most(3)).unwrap();
    let found = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (theirs, inner, model2) = (Arc::clone(&found), stream.clone(), model.clone());
    let wakeup = move || {
        let engine = model2.engine();
        theirs.lock().extend([
            inner.next(None).err().map(|error| error.code()),
            inner.close().err().map(|error| error.code()),
            cache.append(&[1], None).err().map(|error| error.code()),
            cache.token_count().err().map(|error| error.code()),
            engine.trim().err().map(|error| error.code()),
            engine.suspend(LONG).err().map(|error| error.code()),
            Engine::new(&Default::default()).err().map(|error| error.code()),
            Stream::open(&model2, None, &[1], &most(1)).err().map(|error| error.code()),
            mlxgen::engine::shutdown(LONG).err().map(|error| error.code()),
        ]);
    };
    stream.set_wakeup(Some(Box::new(wakeup))).unwrap();
    assert_eq!(drain(&stream).tokens.len(), 3);
    stream.close().unwrap();
    let found = found.lock();
    assert!(!found.is_empty());
    assert!(found.iter().all(|code| *code == Some(Code::WrongState)), "{found:?}");
}

#[test]
fn b140_the_last_share_may_go_inside_a_callback() {
    for _ in 0..50 {
        let model = load("{}");
        let stream = Stream::open(&model, None, &prompt(5, 0), &GenerateOptions::default()).unwrap();
        let share = parking_lot::Mutex::new(None);
        let held = Arc::new(share);
        let theirs = Arc::clone(&held);
        let (sender, receiver) = std::sync::mpsc::channel();
        let wakeup = move || {
            if let Some(stream) = theirs.lock().take() {
                drop::<Stream>(stream);
                let _ = sender.send(());
            }
        };
        stream.set_wakeup(Some(Box::new(wakeup))).unwrap();
        *held.lock() = Some(stream);
        receiver.recv_timeout(LONG).unwrap();
        assert_well(model.engine());
    }
}
