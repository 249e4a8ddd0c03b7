//! Admission: what does not fit is refused before it is tried.
#![cfg(all(feature = "fake", not(feature = "mlx")))]

mod support;

use mlxgen::base::Code;
use mlxgen::base::options::{CacheOptions, EngineOptions};
use mlxgen::engine::{CacheSet, Engine, Stream};
use support::*;

fn engine_of(memory_limit: u64, pool_limit: u64) -> Engine {
    Engine::new(&EngineOptions { memory_limit, pool_limit, ..EngineOptions::default() }).unwrap()
}

#[test]
fn a_limit_refuses_a_load_and_a_higher_one_lets_it_in() {
    let engine = engine_of(64 << 20, 0);
    let json = r#"{"weight_bytes": 1000, "load_bytes": 100000000}"#;
    let error = try_load(&engine, json).err().unwrap();
    assert_eq!(error.code(), Code::OutOfMemory);
    assert!(error.message().contains("100000000") && error.message().contains("67108864"), "{error}");
    engine.set_limits(128 << 20, 0).unwrap();
    let model = try_load(&engine, json).unwrap();
    assert_eq!(generate(&model, None, &prompt(5, 0), &most(5)).tokens.len(), 5);
    let memory = engine.memory().unwrap();
    assert_eq!((memory.limit, memory.models), (128 << 20, 1000));
    assert_eq!(memory.pool_limit, 16 << 20);
    // What the load set aside is free again: the next one fits as well.
    let second = try_load(&engine, json).unwrap();
    assert_eq!(engine.memory().unwrap().models, 2000);
    drop((model, second));
    wait_until("the release of the models", || engine.memory().unwrap().models == 0);
    engine.set_limits(0, 0).unwrap();
    assert!(engine.memory().unwrap().limit > 1 << 30, "0 stands for the default");
}

#[test]
fn caches_grow_up_to_the_limit() {
    // 1000 bytes a token, and room for 1000 of them beside the weights.
    let engine = engine_of(1_001_000, 1 << 20);
    let model = try_load(&engine, r#"{"weight_bytes": 1000, "cache_bytes_per_token": 1000}"#).unwrap();
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    cache.append(&prompt(600, 0), None).unwrap();
    assert_eq!(engine.memory().unwrap().caches, 600_000);
    assert_eq!(cache.info().unwrap().bytes, 600_000);
    assert_eq!(cache.fork().err().unwrap().code(), Code::OutOfMemory);
    let refused = Stream::open(&model, None, &prompt(500, 0), &most(1)).err().unwrap();
    assert_eq!(refused.code(), Code::OutOfMemory);
    let error = cache.append(&prompt(500, 0), None).unwrap_err();
    assert_eq!(error.code(), Code::OutOfMemory);
    let kept = cache.token_count().unwrap();
    assert_eq!(kept, 600 + 6 * 64, "what fits of it is whole chunks");
    cache.truncate(600).unwrap();
    // A generation runs into the limit at a token: 400 more fit, the last token is not in the cache.
    let said = {
        let stream =
            Stream::open(&model, Some(&cache), &[prompt(600, 0), vec![1]].concat(), &most(1000)).unwrap();
        let said = drain(&stream);
        stream.close().unwrap();
        said
    };
    assert_eq!(said.error.unwrap().code(), Code::OutOfMemory);
    assert_eq!(said.tokens.len(), 400);
    assert_eq!(cache.token_count().unwrap(), 1000);
    // The engine goes on once there is room.
    cache.truncate(10).unwrap();
    assert_eq!(generate(&model, Some(&cache), &prompt(100, 0), &most(50)).tokens.len(), 50);
    drop(cache);
    wait_until("the release of the cache", || engine.memory().unwrap().caches == 0);
}

#[test]
fn the_work_itself_is_admitted() {
    let engine = engine_of(1 << 20, 1 << 20);
    let json = r#"{"weight_bytes": 1000, "workspace_bytes_per_token": 20000}"#;
    let model = try_load(&engine, json).unwrap();
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    assert_eq!(cache.append(&prompt(100, 0), None).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!(cache.token_count().unwrap(), 0);
    cache.append(&prompt(40, 0), None).unwrap();
    let refused = Stream::open(&model, None, &prompt(100, 0), &most(1)).err().unwrap();
    assert_eq!(refused.code(), Code::OutOfMemory);
    engine.set_limits(2 << 20, 1 << 20).unwrap();
    cache.append(&prompt(100, 0), None).unwrap();
}

#[test]
fn b146_the_pool_stays_below_its_bound() {
    let bound = 600_000;
    let engine = engine_of(1 << 30, bound);
    let json = r#"{"weight_bytes": 1000, "workspace_bytes_per_token": 9000, "prefill_chunk": 256}"#;
    let model = try_load(&engine, json).unwrap();
    for length in (100..=3000).step_by(100) {
        assert_eq!(generate(&model, None, &prompt(length, 0), &most(3)).tokens.len(), 3);
        let memory = engine.memory().unwrap();
        assert!(memory.pooled <= bound, "{memory:?}");
        assert!(memory.peak < 10_000_000, "{memory:?}");
    }
    engine.trim().unwrap();
    assert_eq!(engine.memory().unwrap().pooled, 0);
}

#[test]
fn ten_cycles_leave_nothing_behind() {
    let engine = engine();
    let base = engine.memory().unwrap().active;
    for _ in 0..10 {
        let model = try_load(&engine, r#"{"weight_bytes": 3000000}"#).unwrap();
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        generate(&model, Some(&cache), &prompt(500, 0), &most(50));
        drop((model, cache));
        wait_until("the release", || {
            let memory = engine.memory().unwrap();
            memory.models == 0 && memory.caches == 0
        });
    }
    // Other tests of this process may hold something; each of them less than ten models.
    assert!(engine.memory().unwrap().active < base + 20_000_000);
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_address_space_refuses_a_load() {
    const NAME: &str = "a_limit_on_the_address_space_refuses_a_load";
    match child::role().as_deref() {
        None => {
            // 4 GB in all.
            child::expect(NAME, "limited", &["sh", "-c", "ulimit -v 4000000; exec \"$@\"", "sh"], 0);
            child::expect(NAME, "unlimited", &[], 0);
        }
        Some(role) => {
            let engine = engine_of(1 << 40, 0);
            let available = engine.memory().unwrap().available;
            let load = try_load(&engine, r#"{"weight_bytes": 1000, "load_bytes": 4000000000}"#);
            if role == "limited" {
                assert!(available < 4_000_000_000);
                let error = load.err().unwrap();
                assert_eq!(error.code(), Code::OutOfMemory);
                assert!(error.message().contains("the system can give"), "{error}");
                // A smaller one fits in the same process.
                let model = try_load(&engine, r#"{"weight_bytes": 1000, "load_bytes": 1000000}"#).unwrap();
                assert_eq!(generate(&model, None, &[1], &most(5)).tokens.len(), 5);
            } else if available > 4_000_000_000 {
                load.unwrap();
            }
        }
    }
}
