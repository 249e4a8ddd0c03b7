//! Models over caches that are quantised, windowed or in pages.

use super::forward::{Everywhere, embedded};
use super::tiny::{Tiny, exact, load, never, prompt};
use crate::base::options::{
    AffineGroups, AffineLayers, AffineOptions, CacheOptions, ModelOptions, PageOptions, TurboQuantOptions,
    WindowOptions,
};
use crate::base::{Code, Prompt};
use crate::cache::Provider;
use crate::generate::mlx_runtime::model::MlxModel;
use crate::generate::mlx_runtime::state::MlxState;
use crate::generate::runtime::{TokenModel, TokenState};

/// Heads that all forms can take.
const HEAD_DIM: usize = 64;

fn model(options: &ModelOptions) -> MlxModel {
    load(Tiny::with_heads(false, true, HEAD_DIM).write().path(), options).unwrap()
}

fn affine(bits: u32, start: u64) -> CacheOptions {
    let layers = AffineLayers::Uniform(AffineGroups { bits, group: 32 });
    CacheOptions { affine: Some(AffineOptions { layers, start: Some(start) }), ..CacheOptions::default() }
}

fn turboquant(key_bits: u32, value_bits: u32, start: u64, deferred: bool) -> CacheOptions {
    let turboquant = TurboQuantOptions { key_bits, value_bits, start, deferred };
    CacheOptions { turboquant: Some(turboquant), ..CacheOptions::default() }
}

fn window(tokens: u64, keep: u64) -> CacheOptions {
    CacheOptions { window: Some(WindowOptions { tokens, keep }), ..CacheOptions::default() }
}

fn pages(tokens: u32) -> CacheOptions {
    CacheOptions { pages: Some(PageOptions { tokens, capacity: 0 }), ..CacheOptions::default() }
}

/// Reads `tokens` in chunks that end where a precision changes, the last token alone, and returns the scores after it.
fn read(model: &MlxModel, state: &mut dyn TokenState, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let (last, mut before) = tokens.split_last().unwrap();
    while !before.is_empty() {
        let most = state.max_forward().map_or(usize::MAX, |most| most as usize);
        let (part, rest) = before.split_at(chunk.min(most).min(before.len()));
        model.prefill(state, &Prompt::from(part), &never()).unwrap();
        before = rest;
    }
    model.logits(state, &Prompt::from(&[*last]), &never()).unwrap()
}

fn kind(state: &dyn TokenState) -> String {
    let layers = state.layers();
    assert!(layers.iter().all(|layer| layer.signature == layers[0].signature));
    layers[0].signature.clone()
}

/// Whatever caches do with keys and values, no result of our kernels depends on how the tokens came.
#[cfg(cpu_kernels)]
fn check_tokens_alone(cases: &[(CacheOptions, &str)]) {
    let model = model(&ModelOptions::default());
    let (tokens, other) = (prompt(300), prompt(333));
    let new = |options: &CacheOptions| model.new_state(options).unwrap();
    let plain = read(&model, new(&CacheOptions::default()).as_mut(), &tokens, 300);
    for (options, signature) in cases {
        let expected = read(&model, new(options).as_mut(), &tokens, 300);
        // Pages are only another place for the same numbers.
        assert_eq!(expected == plain, signature.starts_with("kv:pages"), "{options:?}");
        for chunk in [1, 7, 64] {
            let mut state = new(options);
            assert!(
                read(&model, state.as_mut(), &tokens, chunk) == expected,
                "chunks of {chunk}: {options:?}"
            );
            assert_eq!(kind(state.as_ref()), *signature);
        }

        // A fork and the one that it came from.
        for at in [20, 150] {
            let mut state = new(options);
            read(&model, state.as_mut(), &tokens[..at], 64);
            let mut fork = state.fork().unwrap();
            let last = read(&model, fork.as_mut(), &other[..60], 30);
            assert!(
                read(&model, state.as_mut(), &tokens[at..], 64) == expected,
                "forked at {at}: {options:?}"
            );
            let whole = [&tokens[..at], &other[..60]].concat();
            assert!(read(&model, new(options).as_mut(), &whole, 300) == last, "a fork of {at}: {options:?}");
        }

        // There and back, and there again.
        let mut state = new(options);
        read(&model, state.as_mut(), &tokens, 64);
        for _ in 0..2 {
            state.truncate(260).unwrap();
            read(&model, state.as_mut(), &other[..30], 7);
            assert_eq!(state.offset(), 290);
        }
        state.truncate(260).unwrap();
        assert!(read(&model, state.as_mut(), &tokens[260..], 33) == expected, "cut to 260: {options:?}");
        state.truncate(0).unwrap();
        assert_eq!((state.offset(), state.bytes(), state.minimum_reusable_offset()), (0, 0, 0));
        assert_eq!(kind(state.as_ref()), kind(new(options).as_ref()));
        assert!(read(&model, state.as_mut(), &tokens, 64) == expected, "begun again: {options:?}");
    }
}

#[test]
#[cfg(cpu_kernels)]
fn fast_scores_over_affine_groups_depend_on_the_tokens_alone() {
    let (four, eight) = ("kv:segments:quant:4:32", "kv:segments:quant:8:32");
    check_tokens_alone(&[
        (affine(4, 0), four),
        (affine(4, 37), four),
        (affine(8, 0), eight),
        (affine(8, 37), eight),
    ]);
}

#[test]
#[cfg(cpu_kernels)]
fn fast_scores_over_codes_depend_on_the_tokens_alone() {
    let codes = "kv:segments:turboquant:8:3";
    check_tokens_alone(&[(turboquant(8, 3, 0, true), codes), (turboquant(8, 3, 37, true), codes)]);
}

#[test]
#[cfg(cpu_kernels)]
fn fast_scores_over_a_window_depend_on_the_tokens_alone() {
    let quantised = CacheOptions { affine: affine(8, 37).affine, ..window(40, 4) };
    check_tokens_alone(&[(window(40, 4), "kv:segments:float16"), (quantised, "kv:segments:quant:8:32")]);
}

#[test]
#[cfg(cpu_kernels)]
fn fast_scores_over_pages_depend_on_the_tokens_alone() {
    check_tokens_alone(&[(pages(16), "kv:pages:16:float16")]);
}

/// The scores of 64 tokens one by one over codes, against those over the numbers: `bound` is the root of the mean
/// square of the differences over that of the scores.
fn check_codes(key_bits: u32, value_bits: u32, bound: f64) {
    let model = model(&exact());
    let tokens = prompt(164);
    let scores = |state: &mut dyn TokenState| -> Vec<f32> {
        read(&model, state, &tokens[..100], 64);
        tokens[100..].iter().flat_map(|token| read(&model, state, &[*token], 1)).collect()
    };
    let square = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x * x)).sum::<f64>();
    let expected = scores(model.new_state(&CacheOptions::default()).unwrap().as_mut());
    for start in [0, 37] {
        for deferred in [false, true] {
            let mut state = model.new_state(&turboquant(key_bits, value_bits, start, deferred)).unwrap();
            let found = scores(state.as_mut());
            assert_eq!((state.offset(), found.len()), (164, expected.len()));
            assert_eq!(kind(state.as_ref()), format!("kv:turboquant:{key_bits}:{value_bits}"));
            // The chunk that crossed the start was read before it was reduced.
            assert_eq!(state.minimum_reusable_offset(), if start == 0 { 0 } else { 64 });
            let differences = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
            let error = (differences / square(&mut expected.iter().copied())).sqrt();
            assert!(
                error > 0.0 && error < bound,
                "{error} with {key_bits} and {value_bits} bits: {start} {deferred}"
            );
        }
    }
}

#[test]
fn exact_scores_over_codes_are_near_the_plain_ones() {
    check_codes(8, 8, 0.03);
    check_codes(8, 3, 0.4);
}

/// Stops forwards at every point: a window that has moved on, be it by more than it keeps, is put back.
#[test]
fn a_failed_forward_leaves_a_window_as_it_was() {
    for options in [exact(), ModelOptions::default()] {
        let model = model(&options);
        let short = [window(40, 4), CacheOptions { affine: affine(4, 0).affine, ..window(40, 0) }];
        for asked in short {
            check_stops(&model, &asked, 60, 20);
        }
        check_stops(&model, &window(40, 4), 300, 600);
    }
}

/// The same where only some layers have a window, which is the model's.
#[test]
fn a_failed_forward_leaves_the_windows_of_a_model_as_they_were() {
    for options in [exact(), ModelOptions::default()] {
        check_stops(&model_with_windows(&options), &CacheOptions::default(), 300, 600);
    }
}

/// Reads `read` tokens, then stops forwards of `more`.
fn check_stops(model: &MlxModel, asked: &CacheOptions, read_tokens: usize, more: usize) {
    let first = read_tokens as u64;
    let tokens = prompt(read_tokens + more);
    let mut straight = model.new_state(asked).unwrap();
    read(model, straight.as_mut(), &tokens[..read_tokens], read_tokens);
    let expected = read(model, straight.as_mut(), &tokens[read_tokens..], more);
    let mut state = model.new_state(asked).unwrap();
    read(model, state.as_mut(), &tokens[..read_tokens], read_tokens);
    let kinds = |state: &dyn TokenState| -> Vec<String> {
        state.layers().into_iter().map(|layer| layer.signature).collect()
    };
    let before = kinds(state.as_ref());
    let mut stopped = 0;
    for stop in 1.. {
        let inner = state.as_any_mut().downcast_mut::<MlxState>().unwrap();
        let x = embedded(model, &tokens[read_tokens..]);
        let mut pace = Everywhere { points: 0, stop: Some(stop) };
        let result = inner.transaction(more, |state| model.graph.extend(&x, &mut state.caches, &mut pace));
        let Err(error) = result else { break };
        stopped += 1;
        assert_eq!(
            (error.code(), state.offset(), kinds(state.as_ref())),
            (Code::Cancelled, first, before.clone())
        );
        assert!(state.layers().iter().all(|layer| layer.offset == first));
        // Continues as if nothing had happened; long ones are tried now and then.
        if more < 100 || stop % 5 == 1 {
            let mut fork = state.fork().unwrap();
            let found = read(model, fork.as_mut(), &tokens[read_tokens..], more);
            assert!(found == expected, "stopped at {stop}: {asked:?}");
        }
    }
    assert!(stopped > 3, "{stopped} points");
}

/// A model whose first and last layer see 40 tokens.
fn model_with_windows(options: &ModelOptions) -> MlxModel {
    let folder = Tiny::with_heads(false, true, HEAD_DIM).write();
    let path = folder.path().join("config.json");
    let windows =
        r#"{"sliding_window":40,"layer_types":["sliding_attention","full_attention","sliding_attention"],"#;
    let config = std::fs::read_to_string(&path).unwrap().replacen('{', windows, 1);
    std::fs::write(path, config).unwrap();
    load(folder.path(), options).unwrap()
}

fn kinds(state: &dyn TokenState) -> Vec<String> {
    state.layers().into_iter().map(|layer| layer.signature).collect()
}

/// Both numerics: with the chunks that were read before, the next scores have the bits of a state that was never saved.
fn check_saved(model: &MlxModel, schemes: &[CacheOptions]) {
    let provider = Provider::built_in();
    let tokens = prompt(120);
    for asked in schemes {
        let mut state = model.new_state(asked).unwrap();
        read(model, state.as_mut(), &tokens[..90], 30);
        let mut loaded = state.fork().unwrap();
        let inner = loaded.as_any_mut().downcast_mut::<MlxState>().unwrap();
        for cache in &mut inner.caches {
            *cache = provider.load(&provider.snapshot(&**cache).unwrap()).unwrap();
        }
        assert_eq!(kinds(loaded.as_ref()), kinds(state.as_ref()));
        assert_eq!(loaded.minimum_reusable_offset(), state.minimum_reusable_offset());
        for rest in [&tokens[90..], &tokens[..5]] {
            let expected = read(model, state.as_mut(), rest, 20);
            assert!(read(model, loaded.as_mut(), rest, 20) == expected, "{asked:?}");
        }
        // What is read is the state and not the tokens behind it.
        let mut other = model.new_state(asked).unwrap();
        read(model, other.as_mut(), &tokens[1..91], 30);
        assert!(
            read(model, other.as_mut(), &tokens[..5], 20) != read(model, loaded.as_mut(), &tokens[..5], 20)
        );
    }
}

#[test]
fn states_continue_from_what_a_store_keeps() {
    let codes = [turboquant(8, 3, 0, false), turboquant(4, 5, 37, true)];
    let mut schemes = vec![CacheOptions::default(), affine(4, 0), affine(8, 37), window(40, 4), pages(16)];
    schemes.push(CacheOptions { pages: pages(16).pages, ..affine(8, 0) });
    schemes.push(CacheOptions { window: window(40, 4).window, ..affine(4, 37) });
    schemes.extend(codes.clone());
    for options in [exact(), ModelOptions::default()] {
        check_saved(&model(&options), &schemes);
        check_saved(&model_with_windows(&options), &schemes);
    }
    // Pages of codes: for the kernels alone.
    if cfg!(cpu_kernels) {
        let paged = codes.map(|codes| CacheOptions { pages: pages(16).pages, ..codes });
        check_saved(&model(&ModelOptions::default()), &paged);
        check_saved(&model_with_windows(&ModelOptions::default()), &paged);
    }
}
