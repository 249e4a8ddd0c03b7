//! What is told of a model before it is loaded, against what it takes.

use std::path::Path;

use super::tiny::{Tiny, exact, load, never, prompt};
use crate::base::options::{
    AffineGroups, AffineLayers, AffineOptions, CacheOptions, ComputeType, EngineOptions, KvType,
    ModelOptions, PageOptions, TurboQuantOptions, WindowOptions,
};
use crate::base::{Code, Prompt};
use crate::generate::estimate::{MemoryNeeds, estimate};
use crate::generate::mlx_runtime::backend;
use crate::generate::mlx_runtime::model::MlxModel;
use crate::generate::runtime::{TokenModel, TokenState};
use crate::mlx::memory;

/// Heads that all forms of caches can take.
const HEAD_DIM: usize = 64;

fn needs(path: &Path, options: &ModelOptions, cache: &CacheOptions) -> Box<dyn MemoryNeeds> {
    backend().memory_needs(path, &EngineOptions::default(), options, cache, &never()).unwrap()
}

fn assert_near(estimated: u64, measured: u64, what: &str) {
    assert!(estimated.abs_diff(measured) * 100 <= 3 * measured, "{what}: {estimated}, measured {measured}");
}

fn ways_to_load() -> Vec<ModelOptions> {
    let typed = |compute_type| ModelOptions { compute_type, ..exact() };
    let blas = ModelOptions { compute_type: ComputeType::Bfloat16, ..ModelOptions::default() };
    vec![ModelOptions::default(), exact(), typed(ComputeType::Float16), blas]
}

#[test]
fn weights_take_what_was_estimated() {
    for (tied, biases, head_dim) in [(false, false, 8), (true, false, 8), (false, true, 64)] {
        let folder = Tiny::with_heads(tied, biases, head_dim).write();
        for options in ways_to_load() {
            let what = format!("tied {tied}, biases {biases}, {options:?}");
            let needs = needs(folder.path(), &options, &CacheOptions::default());
            let before = memory::active() as u64;
            let model = load(folder.path(), &options).unwrap();
            let measured = memory::active() as u64 - before;
            // MLX makes 16-bit arrays below 16 KiB in memory for 32 bits, which in models as small as these tells.
            if head_dim == HEAD_DIM || options.compute_type == ComputeType::Auto {
                assert_near(needs.weight_bytes(), measured, &what);
            }
            assert!(needs.load_bytes() >= measured);
            drop(model);
        }
    }
}

fn affine(bits: u32, start: u64) -> CacheOptions {
    let layers = AffineLayers::Uniform(AffineGroups { bits, group: 32 });
    CacheOptions { affine: Some(AffineOptions { layers, start: Some(start) }), ..CacheOptions::default() }
}

fn schemes() -> Vec<CacheOptions> {
    let turboquant = |start| Some(TurboQuantOptions { key_bits: 8, value_bits: 3, start, deferred: false });
    let pages = |capacity| Some(PageOptions { tokens: 32, capacity });
    let window = |tokens, keep| Some(WindowOptions { tokens, keep });
    vec![
        CacheOptions::default(),
        CacheOptions { kv_type: KvType::Float32, ..CacheOptions::default() },
        affine(8, 0),
        affine(4, 150),
        CacheOptions { turboquant: turboquant(0), ..CacheOptions::default() },
        CacheOptions { turboquant: turboquant(300), ..CacheOptions::default() },
        CacheOptions { pages: pages(0), ..CacheOptions::default() },
        CacheOptions { pages: pages(1000), ..CacheOptions::default() },
        CacheOptions { pages: pages(0), ..affine(8, 0) },
        CacheOptions { window: window(100, 4), ..CacheOptions::default() },
        CacheOptions { window: window(300, 260), ..CacheOptions::default() },
    ]
}

/// Reads `count` tokens as an append does: in chunks, the last token alone.
fn read(model: &MlxModel, state: &mut dyn TokenState, count: usize, chunk: usize) {
    let mut before = count - 1;
    while before > 0 {
        let part = chunk.min(before).min(state.max_forward().map_or(usize::MAX, |most| most as usize));
        model.prefill(state, &Prompt::from(&prompt(part)), &never()).unwrap();
        before -= part;
    }
    model.logits(state, &Prompt::from(&prompt(1)), &never()).unwrap();
}

#[test]
fn caches_take_what_was_estimated() {
    let folder = Tiny::with_heads(false, true, HEAD_DIM).write();
    for options in [ModelOptions::default(), exact()] {
        let options = ModelOptions { prefill_chunk: 256, ..options };
        let model = load(folder.path(), &options).unwrap();
        for scheme in schemes() {
            let needs = needs(folder.path(), &options, &scheme);
            for tokens in [1, 100, 151, 257, 700] {
                let mut state = model.new_state(&scheme).unwrap();
                read(&model, state.as_mut(), tokens, 256);
                let what = format!("{tokens} tokens, {scheme:?}, {:?}", options.numerics);
                assert_near(needs.cache_bytes(tokens as u64), state.bytes(), &what);
                assert!(needs.cache_bytes(tokens as u64) <= state.bytes_for(tokens as u64), "{what}");
            }
        }
    }
}

#[test]
fn the_greatest_context_is_that_of_the_same_formula() {
    let folder = Tiny::with_heads(false, true, HEAD_DIM).write();
    for scheme in schemes() {
        let needs = needs(folder.path(), &ModelOptions::default(), &scheme);
        let all = estimate(needs.as_ref(), 0, u64::MAX);
        assert!(all.fits && all.max_context == all.context_limit);
        for budget in [all.load_bytes, all.load_bytes + 100_000, all.total_bytes - 1] {
            let most = estimate(needs.as_ref(), 0, budget).max_context;
            assert!(most == 0 || estimate(needs.as_ref(), most, budget).fits, "{scheme:?}");
            assert!(!estimate(needs.as_ref(), most + 1, budget).fits, "{scheme:?}");
        }
    }
    // Fewer bytes for a token, more tokens for the same bytes.
    let most = |scheme: &CacheOptions| {
        let needs = needs(folder.path(), &ModelOptions { context_limit: 1000, ..exact() }, scheme);
        estimate(needs.as_ref(), 0, 20_000_000 + needs.load_bytes()).max_context
    };
    assert!(most(&affine(4, 0)) >= most(&CacheOptions::default()));
}

#[test]
fn pages_and_capacities_bound_the_context() {
    let folder = Tiny::with_heads(false, false, HEAD_DIM).write();
    let limit = |cache: CacheOptions| needs(folder.path(), &ModelOptions::default(), &cache).context_limit();
    assert_eq!(limit(CacheOptions { capacity: 77, ..CacheOptions::default() }), 77);
    let pages = PageOptions { tokens: 32, capacity: 100 };
    assert_eq!(limit(CacheOptions { pages: Some(pages), ..CacheOptions::default() }), 128, "whole pages");
    assert_eq!(limit(CacheOptions::default()), 1024);
}

#[test]
fn what_cannot_be_loaded_or_made_is_refused_as_then() {
    let folder = Tiny::new(false, false).write();
    let refused = |path: &Path, cache: &CacheOptions| {
        let (engine, options) = (EngineOptions::default(), ModelOptions::default());
        backend().memory_needs(path, &engine, &options, cache, &never()).err().map(|error| error.code())
    };
    // Heads of 8.
    let turboquant = Some(TurboQuantOptions { key_bits: 8, value_bits: 3, start: 0, deferred: false });
    let cache = CacheOptions { turboquant, ..CacheOptions::default() };
    assert_eq!(refused(folder.path(), &cache), Some(Code::Unsupported));
    let weights = folder.path().join("model.safetensors");
    std::fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(5000).unwrap();
    assert_eq!(refused(folder.path(), &CacheOptions::default()), Some(Code::InvalidModel));
    std::fs::remove_file(&weights).unwrap();
    assert_eq!(refused(folder.path(), &CacheOptions::default()), Some(Code::NotFound));
}
