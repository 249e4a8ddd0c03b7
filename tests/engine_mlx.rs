//! The engine over MLX: what a fake back end cannot show.
#![cfg(feature = "mlx")]

mod support;

use std::fs::OpenOptions;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mlxgen::base::event::{EndReason, Event};
use mlxgen::base::options::{CacheOptions, EngineOptions, GenerateOptions, ModelOptions, Numerics};
use mlxgen::base::{CancelToken, Code, LoadPhase, Progress};
use mlxgen::engine::{CacheSet, Engine, Model, Stream, shutdown};
use support::tiny_llama::{SMALL, Shape, TinyLlama};
use support::*;

/// Ids that the tiny model's vocabulary has, without its EOS.
fn ids(count: usize, salt: usize) -> Vec<u32> {
    prompt(count, salt).into_iter().map(|id| id + 1).collect()
}

fn endless(tokens: u64) -> GenerateOptions {
    GenerateOptions { ignore_eos: true, ..most(tokens) }
}

fn load_on(engine: &Engine, files: &TinyLlama) -> Model {
    load_with(engine, files, &ModelOptions::default())
}

fn load_with(engine: &Engine, files: &TinyLlama, options: &ModelOptions) -> Model {
    Model::load(engine, files.path(), options, None, &mut |_| {}).unwrap()
}

fn small() -> Model {
    load_on(&engine(), &TinyLlama::new(SMALL))
}

/// Forwards of a chunk take long enough to be met by something. Short chunks, because without optimisation one of 512
/// tokens takes seconds, and many of them where several programs share the cores.
fn slow() -> Model {
    let options = ModelOptions { prefill_chunk: 128, ..ModelOptions::default() };
    load_with(&engine(), &TinyLlama::new(Shape { hidden: 128, layers: 4, ..SMALL }), &options)
}

#[test]
fn a_pipelined_stream_equals_steps_by_hand() {
    let model = small();
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    cache.append(&ids(70, 0), None).unwrap();
    let mut by_hand = Vec::new();
    for _ in 0..32 {
        let logits = cache.logits().unwrap();
        let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
        by_hand.push(best);
        cache.append(&[best], None).unwrap();
    }
    let lent = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let said = generate(&model, Some(&lent), &ids(70, 0), &endless(32));
    assert_eq!(said.tokens, by_hand);
    assert_eq!(lent.tokens().unwrap(), [ids(70, 0), by_hand[..31].to_vec()].concat());
    let distinct: std::collections::BTreeSet<_> = by_hand.iter().collect();
    assert!(distinct.len() > 10, "a model that says something: {by_hand:?}");
}

#[test]
fn b142_threads_get_what_they_would_get_alone() {
    let model = small();
    let expected: Vec<_> =
        (0..4).map(|salt| generate(&model, None, &ids(50 + salt, salt), &endless(40)).tokens).collect();
    thread::scope(|scope| {
        for salt in 0..4 {
            let (model, expected) = (&model, &expected);
            scope.spawn(move || {
                let own = (salt % 2 == 0).then(|| load_on(model.engine(), &TinyLlama::new(SMALL)));
                for _ in 0..3 {
                    let model = own.as_ref().unwrap_or(model);
                    assert_eq!(
                        generate(model, None, &ids(50 + salt, salt), &endless(40)).tokens,
                        expected[salt]
                    );
                }
            });
        }
    });
}

#[test]
fn b144_a_cancelled_prefill_goes_on_exactly() {
    let model = slow();
    let prompt = ids(400, 1);
    let expected = generate(&model, None, &prompt, &endless(10)).tokens;
    for round in 0..16 {
        let cancel = CancelToken::try_new().unwrap();
        let options = GenerateOptions { cancel: Some(cancel.clone()), ..endless(5000) };
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let stream = Stream::open(&model, Some(&cache), &prompt, &options).unwrap();
        thread::sleep(Duration::from_millis(round * 5));
        cancel.request();
        let said = drain(&stream);
        stream.close().unwrap();
        assert_eq!(said.reason(), EndReason::Cancelled);
        let kept = cache.tokens().unwrap();
        let read = kept.len().min(prompt.len());
        assert_eq!(kept[..read], prompt[..read]);
        if round % 8 == 7 {
            assert_eq!(generate(&model, Some(&cache), &prompt, &endless(10)).tokens, expected);
        }
    }
}

#[test]
fn suspended_streams_go_on_exactly() {
    let model = slow();
    let prompt = ids(200, 2);
    let start = Instant::now();
    let expected = generate(&model, None, &prompt, &endless(40)).tokens;
    let whole = start.elapsed();
    for round in 0..5 {
        let stream = Stream::open(&model, None, &prompt, &endless(40)).unwrap();
        thread::sleep(whole * round / 6);
        model.engine().suspend(LONG).unwrap();
        model.engine().resume().unwrap();
        assert_eq!(drain(&stream).tokens, expected);
    }
}

#[test]
fn forks_and_reuse_say_the_same() {
    let model = small();
    let cold = |prompt: &[u32]| generate(&model, None, prompt, &endless(20)).tokens;
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    cache.append(&ids(600, 3), None).unwrap();
    let fork = cache.fork().unwrap();
    let one = [ids(600, 3), ids(40, 4)].concat();
    let two = [ids(600, 3), ids(40, 5)].concat();
    // Numbers may differ in near-ties for another cut of the prompt; these do not.
    assert_eq!(generate(&model, Some(&cache), &one, &endless(20)).tokens, cold(&one));
    assert_eq!(generate(&model, Some(&fork), &two, &endless(20)).tokens, cold(&two));
    assert_eq!(generate(&model, Some(&cache), &two, &endless(20)).tokens, cold(&two));
}

#[test]
fn the_thread_restarts_and_leaves_nothing() {
    const NAME: &str = "the_thread_restarts_and_leaves_nothing";
    if child::role().is_none() {
        return child::expect(NAME, "child", &[], 0);
    }
    let files = TinyLlama::new(SMALL);
    let mut tokens = Vec::new();
    for round in 0..12 {
        let engine = engine();
        let model = load_on(&engine, &files);
        tokens.push(generate(&model, None, &ids(100, 0), &endless(20)).tokens);
        match round % 3 {
            0 => drop((model, engine)),
            1 => drop((engine, model)),
            _ => shutdown(LONG).unwrap(),
        }
    }
    assert!(tokens.iter().all(|each| *each == tokens[0]));
    let memory = engine().memory().unwrap();
    assert!(memory.active < 1 << 16, "{memory:?}");
}

/// When the caller hears of it, not when the thread does its next work.
#[test]
fn a_load_that_does_not_end_well_gives_its_memory_back() {
    const NAME: &str = "a_load_that_does_not_end_well_gives_its_memory_back";
    if child::role().is_none() {
        return child::expect(NAME, "child", &[], 0);
    }
    let engine = engine();
    let before = engine.memory().unwrap().active;
    for numerics in [Numerics::Fast, Numerics::Exact] {
        // Met by their first piece, when many more are ready.
        for damaged in [false, true] {
            let files = TinyLlama::new(Shape { hidden: 128, layers: 4, ..SMALL });
            let weights =
                OpenOptions::new().write(true).open(files.path().join("model.safetensors")).unwrap();
            let cancel = CancelToken::try_new().unwrap();
            let mut meet = |progress: Progress| match (progress.phase, progress.done) {
                (LoadPhase::Weights, 1..) if damaged => weights.set_len(4000).unwrap(),
                (LoadPhase::Weights, 1..) => cancel.request(),
                _ => {}
            };
            let options = ModelOptions { numerics, ..ModelOptions::default() };
            let error = Model::load(&engine, files.path(), &options, Some(&cancel), &mut meet).err().unwrap();
            assert_eq!(error.code(), if damaged { Code::InvalidModel } else { Code::Cancelled });
            let memory = engine.memory().unwrap();
            assert_eq!((memory.active, memory.models), (before, 0), "{numerics:?}, damaged: {damaged}");
        }
    }
}

/// The names of this process's threads.
#[cfg(target_os = "linux")]
fn thread_names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn no_thread_of_ours_is_left_after_a_shutdown() {
    const NAME: &str = "no_thread_of_ours_is_left_after_a_shutdown";
    if child::role().is_none() {
        return child::expect(NAME, "child", &[], 0);
    }
    let ours = || thread_names().into_iter().filter(|name| name.starts_with("mlxgen")).collect::<Vec<_>>();
    let files = TinyLlama::new(SMALL);
    for round in 0..6 {
        let engine = Engine::new(&EngineOptions { threads: 4, ..EngineOptions::default() }).unwrap();
        let model = load_on(&engine, &files);
        generate(&model, None, &ids(100, 0), &endless(20));
        let mut working = ours();
        working.sort();
        let kernels = ["mlxgen-kernel-1", "mlxgen-kernel-2", "mlxgen-kernel-3"];
        assert_eq!(working, [&kernels[..], &["mlxgen-owner"]].concat());
        // Also when the last handle went before, and the threads end by themselves.
        if round % 2 == 0 {
            drop((model, engine));
        }
        shutdown(LONG).unwrap();
        // The system wakes who waits for a thread a moment before it takes that from the list.
        let start = Instant::now();
        while !ours().is_empty() {
            assert!(start.elapsed() < Duration::from_millis(500), "{:?}", thread_names());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn limits_refuse_and_let_in() {
    let files = TinyLlama::new(Shape { hidden: 128, layers: 4, ..SMALL });
    let engine = Engine::new(&EngineOptions { memory_limit: 4 << 20, ..EngineOptions::default() }).unwrap();
    let load = || Model::load(&engine, files.path(), &ModelOptions::default(), None, &mut |_| {});
    let error = load().err().unwrap();
    assert_eq!(error.code(), Code::OutOfMemory);
    engine.set_limits(1 << 30, 0).unwrap();
    let model = load().unwrap();
    assert_eq!(generate(&model, None, &ids(10, 0), &endless(5)).tokens.len(), 5);
    engine.set_limits(engine.memory().unwrap().models + (4 << 20), 0).unwrap();
    let refused = Stream::open(&model, None, &ids(8000, 0), &endless(1)).err().unwrap();
    assert_eq!(refused.code(), Code::OutOfMemory);
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_address_space_refuses_what_does_not_fit() {
    const NAME: &str = "a_limit_on_the_address_space_refuses_what_does_not_fit";
    let Some(role) = child::role() else {
        // What the process takes before it begins, and 400 MB.
        let output = child::run(NAME, "measure", &[]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let size = text.lines().find_map(|line| line.strip_prefix("VmSize "));
        let limit = size.unwrap_or_else(|| panic!("{text}")).parse::<u64>().unwrap() + 400_000;
        let limited = format!("ulimit -v {limit}; exec \"$@\"");
        // About 500 MB of weights.
        let files =
            TinyLlama::new(Shape { hidden: 1024, layers: 8, vocabulary: 30_000, zero: true, ..SMALL });
        let role = files.path().to_str().unwrap();
        return child::expect(NAME, role, &["sh", "-c", &limited, "sh"], 0);
    };
    let engine = engine();
    let model = load_on(&engine, &TinyLlama::new(SMALL));
    assert_eq!(generate(&model, None, &ids(10, 0), &endless(5)).tokens.len(), 5);
    if role == "measure" {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        println!("\nVmSize {}", size.split_whitespace().next().unwrap());
        return;
    }
    let load = Model::load(&engine, role.as_ref(), &ModelOptions::default(), None, &mut |_| {});
    let error = load.err().unwrap();
    assert_eq!(error.code(), Code::OutOfMemory);
    assert!(error.message().contains("the system can give"), "{error}");
    assert_eq!(generate(&model, None, &ids(10, 0), &endless(5)).tokens.len(), 5);
}

/// The time, as two processes have it in common.
fn since_the_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

/// A prefill and a decode in progress, then `end`.
fn amid_work(end: impl FnOnce(&Stream)) {
    let model = slow();
    let decoding = Stream::open(&model, None, &ids(20, 0), &endless(5000)).unwrap();
    first_token(&decoding);
    let reading = decoding.clone();
    thread::spawn(move || drain(&reading));
    let preparing = Stream::open(&model, None, &ids(8000, 1), &endless(5)).unwrap();
    thread::sleep(Duration::from_millis(30));
    end(&preparing);
}

#[test]
fn an_exit_during_generations_ends_in_time() {
    const NAME: &str = "an_exit_during_generations_ends_in_time";
    if child::role().is_some() {
        amid_work(|_| {
            println!("\nexits at {}", since_the_epoch().as_millis());
            std::process::exit(7)
        });
    }
    for _ in 0..10 {
        let output = child::run(NAME, "child", &[]);
        let end = since_the_epoch();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(7), "{text}");
        let begin = text.lines().find_map(|line| line.strip_prefix("exits at ")).unwrap().parse().unwrap();
        // Work in progress has two seconds; the rest is for a machine that has other things to do.
        let took = end.saturating_sub(Duration::from_millis(begin));
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_forked_child_ends_well() {
    const NAME: &str = "a_forked_child_ends_well";
    if child::role().is_none() {
        return child::expect(NAME, "parent", &[], 0);
    }
    amid_work(|stream| (0..4).for_each(|_| fork_once(stream)));
}

#[cfg(unix)]
fn fork_once(stream: &Stream) {
    // SAFETY: the child calls nothing but the library under test, which has to cope with this.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = stream.next(None).err().is_some_and(|error| error.code() == Code::WrongState);
        std::process::exit(if refused { 3 } else { 4 });
    }
    let mut status = 0;
    let start = Instant::now();
    // SAFETY: `status` is a variable of ours.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } != pid {
        assert!(start.elapsed() < Duration::from_secs(20), "the child hangs");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 3, "{status:x}");
    // The parent goes on.
    while let Some(event) = stream.next(Some(LONG)).unwrap() {
        if matches!(event, Event::Prefill { .. }) {
            return;
        }
    }
    panic!("the stream ended");
}
