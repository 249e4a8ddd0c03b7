//! From options to caches, what they cost, and when they change.

use super::test_support::Look;
use super::{Backing, KvSizes, LayerCache, LayerNeeds, Scheme, Signature};
use crate::base::options::{
    AffineGroups, AffineLayers, AffineOptions, CacheOptions, PageOptions, TurboQuantOptions, WindowOptions,
};
use crate::base::{Code, Result};
use crate::mlx::ops::{CausalAttention, Rope};
use crate::mlx::{Dtype, eval, has_cpu_kernels, prim};

const LOOK: Look = Look { heads: 2, key_dims: 64, value_dims: 64, dtype: Dtype::Float16 };
const CHUNK: u64 = 64;

fn layer(window: Option<usize>) -> LayerNeeds {
    LayerNeeds { sizes: KvSizes { kv_heads: 2, key_dims: 64, value_dims: 64 }, window }
}

fn scheme(options: &CacheOptions, layers: &[LayerNeeds], backing: Backing) -> Result<Scheme> {
    Scheme::new(options, layers, backing, LOOK.dtype, CHUNK)
}

fn plain() -> CacheOptions {
    CacheOptions::default()
}

fn uniform(bits: u32, group: u32, start: Option<u64>) -> CacheOptions {
    let layers = AffineLayers::Uniform(AffineGroups { bits, group });
    CacheOptions { affine: Some(AffineOptions { layers, start }), ..plain() }
}

fn table(layers: &[usize]) -> CacheOptions {
    let layers = layers.iter().map(|layer| (*layer, AffineGroups { bits: 4, group: 32 })).collect();
    CacheOptions {
        affine: Some(AffineOptions { layers: AffineLayers::Table(layers), start: None }),
        ..plain()
    }
}

fn turboquant(start: u64) -> CacheOptions {
    let turboquant = TurboQuantOptions { key_bits: 8, value_bits: 3, start, deferred: true };
    CacheOptions { turboquant: Some(turboquant), ..plain() }
}

fn window(tokens: u64, keep: u64) -> CacheOptions {
    CacheOptions { window: Some(WindowOptions { tokens, keep }), ..plain() }
}

fn pages(tokens: u32, capacity: u64) -> CacheOptions {
    CacheOptions { pages: Some(PageOptions { tokens, capacity }), ..plain() }
}

fn backings() -> Vec<Backing> {
    if has_cpu_kernels() { vec![Backing::Arrays, Backing::Segments] } else { vec![Backing::Arrays] }
}

/// Appends the tokens `from..to` to a cache of any backing.
fn append(cache: &mut dyn LayerCache, from: u64, to: u64) {
    let ids: Vec<u32> = (from as u32..to as u32).collect();
    match cache.signature() {
        Signature::Segments(_) | Signature::Pages { .. } => {
            let look = Look { heads: 4, dtype: Dtype::Float32, ..LOOK };
            let kv = prim::reshape(&look.keys(&ids), &[1, ids.len() as i32, 4 * 64]).unwrap();
            let rope = Rope::plain(64, false, 10000.0, 1.0);
            cache.store(&kv, &CausalAttention::new(2, 2, 64, 0.125, &rope).unwrap()).unwrap();
            cache.settle();
        }
        _ => drop(cache.append(&LOOK.keys(&ids), &LOOK.values(&ids)).unwrap()),
    }
}

fn append_to_all(caches: &mut [Box<dyn LayerCache>], from: u64, to: u64) {
    for cache in caches.iter_mut() {
        append(&mut **cache, from, to);
        eval(&cache.state().unwrap()).unwrap();
    }
}

fn kinds(caches: &[Box<dyn LayerCache>]) -> Vec<String> {
    caches.iter().map(|cache| cache.signature().to_string()).collect()
}

#[test]
fn options_give_each_layer_its_kind() {
    // A layer without a window and one with: as they are made, and once they cover tokens.
    let cases = [
        (plain(), ["plain", "rotating-plain"], None, ["segments:float16"; 2], None),
        (
            uniform(4, 32, Some(0)),
            ["plain", "rotating-plain"],
            Some(["quant:4:32", "rotating-quant:4:32"]),
            ["segments:quant:4:32"; 2],
            None,
        ),
        (
            uniform(8, 64, Some(3)),
            ["plain", "rotating-plain"],
            Some(["quant:8:64", "rotating-quant:8:64"]),
            ["segments:float16"; 2],
            Some(["segments:quant:8:64"; 2]),
        ),
        (uniform(8, 64, None), ["plain", "rotating-plain"], None, ["segments:float16"; 2], None),
        (
            table(&[1]),
            ["plain", "rotating-plain"],
            Some(["plain", "rotating-quant:4:32"]),
            ["segments:float16", "segments:quant:4:32"],
            None,
        ),
        (
            turboquant(0),
            ["plain", "rotating-plain"],
            Some(["turboquant:8:3", "rotating-plain"]),
            ["segments:turboquant:8:3", "segments:float16"],
            None,
        ),
        (window(40, 4), ["rotating-plain"; 2], None, ["segments:float16"; 2], None),
        (pages(16, 0), ["paged", "rotating-plain"], None, ["pages:16:float16", "segments:float16"], None),
        (
            CacheOptions { affine: uniform(4, 32, Some(0)).affine, ..pages(16, 0) },
            ["paged:4:32", "rotating-plain"],
            Some(["paged:4:32", "rotating-quant:4:32"]),
            ["pages:16:quant:4:32", "segments:quant:4:32"],
            None,
        ),
        // TurboQuant wins over affine groups.
        (
            CacheOptions { affine: uniform(4, 32, Some(0)).affine, ..turboquant(2) },
            ["plain", "rotating-plain"],
            Some(["turboquant:8:3", "rotating-plain"]),
            ["segments:float16"; 2],
            Some(["segments:turboquant:8:3", "segments:float16"]),
        ),
    ];
    for (options, arrays, arrays_later, segments, segments_later) in cases {
        for backing in backings() {
            let (new, later) = match backing {
                Backing::Arrays => (arrays, arrays_later),
                Backing::Segments => (segments, segments_later),
            };
            let named = |kinds: [&str; 2]| kinds.map(|kind| format!("kv:{kind}")).to_vec();
            let scheme = scheme(&options, &[layer(None), layer(Some(20))], backing).unwrap();
            let mut caches = scheme.caches().unwrap();
            assert_eq!(kinds(&caches), named(new), "{options:?}");
            // Without tokens nothing changes.
            scheme.maintenance().run(&mut caches).unwrap();
            assert_eq!(kinds(&caches), named(new), "{options:?}");
            append_to_all(&mut caches, 0, 5);
            scheme.maintenance().run(&mut caches).unwrap();
            assert_eq!(kinds(&caches), named(later.unwrap_or(new)), "{options:?}");
            assert!(caches.iter().all(|cache| cache.offset() == 5));
        }
    }
}

#[test]
fn what_cannot_be_is_refused_by_its_name_and_layer() {
    let narrow = LayerNeeds { sizes: KvSizes { key_dims: 80, ..layer(None).sizes }, window: None };
    let layers = [layer(None), narrow];
    let both = [Backing::Arrays, Backing::Segments];
    let (arrays, segments) = ([Backing::Arrays], [Backing::Segments]);
    let (bad, unsupported) = (Code::InvalidArgument, Code::Unsupported);
    let affine_pages = CacheOptions { turboquant: turboquant(0).turboquant, ..pages(16, 0) };
    /// Options, where they are refused, the code, the field and the layer.
    type Case<'a> = (CacheOptions, &'a [Backing], Code, &'a str, Option<u64>);
    let cases: [Case<'_>; 16] = [
        (uniform(7, 64, Some(0)), &both, bad, "kv_bits", Some(0)),
        (uniform(4, 48, Some(0)), &both, bad, "kv_group", Some(0)),
        (uniform(4, 64, Some(0)), &both, unsupported, "kv_group", Some(1)),
        // However late it would be quantised.
        (uniform(4, 64, Some(1 << 40)), &both, unsupported, "kv_group", Some(1)),
        (table(&[0, 1]), &both, unsupported, "kv_config", Some(1)),
        (table(&[0, 2]), &both, bad, "kv_config", Some(2)),
        (table(&[0, 0]), &both, bad, "kv_config", Some(0)),
        (turboquant(9), &both, unsupported, "turboquant_key_bits", Some(1)),
        (window(0, 0), &both, bad, "window", None),
        (window(1 << 31, 0), &both, bad, "window", None),
        (window(4, 4), &both, bad, "window_keep", None),
        (pages(0, 0), &both, bad, "page_tokens", None),
        (pages(65_537, 0), &both, bad, "page_tokens", None),
        (CacheOptions { pages: pages(16, 0).pages, ..window(40, 0) }, &both, bad, "page_tokens", None),
        (pages(24, 0), &segments, unsupported, "page_tokens", None),
        (affine_pages, &arrays, unsupported, "page_tokens", None),
    ];
    for (options, backings, code, field, position) in cases {
        for backing in backings {
            let error = scheme(&options, &layers, *backing).unwrap_err();
            let detail = error.detail();
            assert_eq!(
                (error.code(), detail.field.as_deref(), detail.position),
                (code, Some(field), position),
                "{options:?}"
            );
        }
    }
    // A table that leaves out what does not fit.
    for backing in both {
        scheme(&table(&[0]), &layers, backing).unwrap();
    }
    scheme(&pages(24, 0), &layers, Backing::Arrays).unwrap();
}

/// Reads `end` tokens in chunks, then some one by one, and compares what is held with what was foretold.
fn check_bytes(options: &CacheOptions, layers: &[LayerNeeds], backing: Backing) {
    let scheme = scheme(options, layers, backing).unwrap();
    let mut caches = scheme.caches().unwrap();
    let held = |caches: &[Box<dyn LayerCache>]| caches.iter().map(|cache| cache.bytes() as u64).sum::<u64>();
    let mut end = 0;
    let mut step = |caches: &mut Vec<Box<dyn LayerCache>>, wanted: u64| {
        scheme.maintenance().run(caches).unwrap();
        let tokens = wanted.min(scheme.maintenance().max_forward(caches).unwrap_or(wanted));
        append_to_all(caches, end, end + tokens);
        end += tokens;
        for _ in 0..2 {
            let (held, foretold) = (held(caches), scheme.bytes_for(end));
            assert!(held <= foretold, "{held} of {foretold} bytes at {end}: {options:?} {backing:?}");
            // And once what is due was converted.
            scheme.maintenance().run(caches).unwrap();
        }
        end
    };
    for tokens in [1, 7, CHUNK, 1, 1, 60] {
        step(&mut caches, tokens);
    }
    while step(&mut caches, CHUNK) < 300 {}
    for _ in 0..8 {
        step(&mut caches, 1);
    }
    while step(&mut caches, CHUNK) < 4090 {}
    while step(&mut caches, 1) < 4096 {}
    let (held, foretold) = (held(&caches), scheme.bytes_for(4096));
    assert!(foretold <= 2 * held, "{held} of {foretold} bytes: {options:?} {backing:?}");
}

#[test]
fn bytes_are_foretold() {
    let layers = [layer(None), layer(Some(700))];
    for backing in backings() {
        for options in [
            plain(),
            uniform(4, 32, Some(0)),
            uniform(8, 64, Some(100)),
            uniform(8, 64, Some(5000)),
            table(&[0]),
            turboquant(0),
            turboquant(100),
            window(700, 4),
            pages(16, 0),
            pages(64, 8000),
            CacheOptions { affine: uniform(4, 32, Some(100)).affine, ..pages(16, 0) },
        ] {
            check_bytes(&options, &layers, backing);
        }
    }
}

#[test]
fn keys_and_values_are_reduced_at_the_first_boundary_behind_the_start() {
    for (options, kind) in
        [(uniform(4, 32, Some(100)), "kv:quant:4:32"), (turboquant(100), "kv:turboquant:8:3")]
    {
        let scheme = scheme(&options, &[layer(None); 2], Backing::Arrays).unwrap();
        let mut caches = scheme.caches().unwrap();
        let maintenance = scheme.maintenance();
        assert_eq!(
            (maintenance.max_forward(&caches), maintenance.max_append_tokens(&caches)),
            (None, Some(100))
        );
        append_to_all(&mut caches, 0, 64);
        maintenance.run(&mut caches).unwrap();
        assert_eq!(kinds(&caches), ["kv:plain"; 2]);
        assert_eq!(
            (maintenance.max_forward(&caches), maintenance.max_append_tokens(&caches)),
            (None, Some(36))
        );
        append_to_all(&mut caches, 64, 128);
        maintenance.run(&mut caches).unwrap();
        assert_eq!(kinds(&caches), [kind; 2]);
        assert!(caches.iter().all(|cache| cache.minimum_reusable_offset() == 128 && cache.offset() == 128));
        assert_eq!(maintenance.max_append_tokens(&caches), None);
        // Once is enough.
        append_to_all(&mut caches, 128, 130);
        maintenance.run(&mut caches).unwrap();
        assert!(caches.iter().all(|cache| cache.minimum_reusable_offset() == 128));
    }
    // From the first token on, whatever was made of more tokens is as if it had been made of these.
    let scheme = scheme(&uniform(4, 32, Some(0)), &[layer(None)], Backing::Arrays).unwrap();
    let mut caches = scheme.caches().unwrap();
    append_to_all(&mut caches, 0, 64);
    scheme.maintenance().run(&mut caches).unwrap();
    assert_eq!((caches[0].minimum_reusable_offset(), kinds(&caches)), (0, vec!["kv:quant:4:32".to_owned()]));
}

#[test]
fn forwards_over_segments_end_where_the_precision_changes() {
    if !has_cpu_kernels() {
        return;
    }
    for (options, form) in [(uniform(4, 32, Some(100)), "quant:4:32"), (turboquant(100), "turboquant:8:3")] {
        let scheme = scheme(&options, &[layer(None); 2], Backing::Segments).unwrap();
        let mut caches = scheme.caches().unwrap();
        let maintenance = scheme.maintenance();
        assert_eq!(maintenance.max_forward(&caches), Some(100));
        append_to_all(&mut caches, 0, 64);
        maintenance.run(&mut caches).unwrap();
        assert_eq!(
            (kinds(&caches), maintenance.max_forward(&caches)),
            (vec!["kv:segments:float16".into(); 2], Some(36))
        );
        append_to_all(&mut caches, 64, 100);
        maintenance.run(&mut caches).unwrap();
        assert_eq!(
            (kinds(&caches), maintenance.max_forward(&caches)),
            (vec![format!("kv:segments:{form}"); 2], None)
        );
        assert!(caches.iter().all(|cache| cache.minimum_reusable_offset() == 100));
    }
}
