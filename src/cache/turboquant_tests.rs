//! Keys and values as codes of TurboQuant.

use serde_json::json;

use super::test_support::{Look, raw};
use super::{
    AffineCache, Backing, Entry, KvSizes, LayerCache, LayerNeeds, PlainCache, Precision, Provider, Scheme,
    TurboQuantCache, of_kind,
};
use crate::base::Code;
use crate::base::options::{AffineGroups, AffineLayers, AffineOptions, CacheOptions, TurboQuantOptions};
use crate::mlx::ops::{self, KeysValues};
use crate::mlx::{Array, Dtype, prim};

const LOOK: Look = Look { heads: 2, key_dims: 64, value_dims: 128, dtype: Dtype::Float32 };

fn ids(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

fn plain(look: Look, tokens: u32) -> PlainCache {
    let mut cache = PlainCache::new();
    look.append(&mut cache, &ids(0, tokens));
    cache
}

fn encoded(cache: &PlainCache, key_bits: u32, value_bits: u32, deferred: bool) -> TurboQuantCache {
    TurboQuantCache::of_plain(cache, key_bits, value_bits, deferred).unwrap().unwrap()
}

fn stored(cache: &TurboQuantCache) -> Vec<Vec<u8>> {
    cache.columns.used().unwrap().iter().map(raw).collect()
}

#[test]
fn ten_tokens_and_six_are_sixteen() {
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        for (key_bits, value_bits) in [(2, 2), (4, 3), (5, 4), (8, 5), (4, 8)] {
            for deferred in [false, true] {
                let look = Look { dtype, ..LOOK };
                let mut cache = encoded(&plain(look, 10), key_bits, value_bits, deferred);
                assert_eq!(cache.signature().to_string(), format!("kv:turboquant:{key_bits}:{value_bits}"));
                let new = ids(10, 16);
                let read = cache.append(&look.keys(&new), &look.values(&new)).unwrap();
                assert_eq!(
                    stored(&cache),
                    stored(&encoded(&plain(look, 16), key_bits, value_bits, deferred))
                );
                let (keys, values) = match read {
                    KeysValues::Plain { keys, values } if !deferred => (keys, values),
                    KeysValues::Rotated { keys, values, .. } if deferred => (keys, values),
                    other => panic!("{other:?}"),
                };
                for (array, dims) in [(keys, 64), (values, 128)] {
                    assert_eq!((array.dtype(), array.shape()), (dtype, &[1, 2, 16, dims][..]));
                }
                // What is forgotten is overwritten.
                assert_eq!(cache.forget(3), 3);
                look.append(&mut cache, &ids(50, 53));
                let mut mixed = plain(look, 13);
                look.append(&mut mixed, &ids(50, 53));
                assert_eq!(stored(&cache), stored(&encoded(&mixed, key_bits, value_bits, deferred)));
            }
        }
    }
}

#[test]
fn planes_have_the_types_and_widths_of_the_format() {
    for (key_bits, numbers) in [(8, Dtype::Int8), (4, Dtype::Uint8), (2, Dtype::Uint8), (5, Dtype::Uint8)] {
        for value_bits in [2, 3, 4, 5, 8] {
            let cache = encoded(&plain(LOOK, 300), key_bits, value_bits, false);
            let half = Dtype::Float16;
            let expected = [
                (numbers, 64 * key_bits as i32 / 8),
                (half, 2),
                (half, 2),
                (Dtype::Uint8, 128 * value_bits as i32 / 8),
                (half, 4),
            ];
            let planes = cache.columns.planes();
            assert_eq!(planes.len(), expected.len());
            // The room behind the tokens is not encoded.
            for (plane, (dtype, width)) in planes.iter().zip(expected) {
                assert_eq!((plane.dtype(), plane.shape()), (dtype, &[1, 2, 300, width][..]));
            }
            assert!(cache.bytes() * 2 < plain(LOOK, 300).bytes());
        }
    }
}

/// A defect of the format that others rely on.
#[test]
fn a_constant_group_of_eight_bit_keys_has_an_infinite_zero() {
    let mut cache = PlainCache::new();
    let keys = Array::from_slice(&[[1f32; 32], [0.0; 32]].concat(), &[1, 1, 1, 64]).unwrap();
    cache.append(&keys, &LOOK.values(&[0])).unwrap_err();
    cache.append(&keys, &Look { heads: 1, ..LOOK }.values(&[0])).unwrap();
    let cache = encoded(&cache, 8, 3, false);
    let [_, scales, zeros, ..] = cache.columns.planes() else { panic!() };
    let halves = |array: &Array| prim::astype(array, Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
    assert_eq!((halves(scales), halves(zeros)), (vec![0.0, 0.0], vec![f32::INFINITY, 0.0]));
}

#[test]
fn deferred_attention_is_near_the_eager_one() {
    for (dtype, bound) in [(Dtype::Float32, 2e-5), (Dtype::Bfloat16, 0.04)] {
        let look = Look { dtype, ..LOOK };
        let queries = Look { heads: 4, ..look }.keys(&[70, 71, 72]);
        let answers: Vec<Vec<f32>> = [false, true]
            .into_iter()
            .map(|deferred| {
                let mut cache = encoded(&plain(look, 40), 8, 4, deferred);
                let mask = cache.mask(3, None).unwrap();
                let read = cache.append(&look.keys(&[40, 41, 42]), &look.values(&[40, 41, 42])).unwrap();
                let attended = ops::attention(&queries, &read, 0.125, &mask).unwrap();
                assert_eq!((attended.dtype(), attended.shape()), (dtype, &[1, 4, 3, 128][..]));
                prim::astype(&attended, Dtype::Float32).unwrap().to_vec().unwrap()
            })
            .collect();
        for (eager, deferred) in answers[0].iter().zip(&answers[1]) {
            assert!((eager - deferred).abs() < bound, "{eager} and {deferred}");
        }
        assert_ne!(answers[0], answers[1]);
    }
}

#[test]
fn what_does_not_continue_the_tokens_is_refused_without_a_change() {
    let mut cache = encoded(&plain(LOOK, 4), 8, 3, false);
    let before = stored(&cache);
    for look in [
        Look { dtype: Dtype::Bfloat16, ..LOOK },
        Look { key_dims: 128, ..LOOK },
        Look { value_dims: 64, ..LOOK },
        Look { heads: 3, ..LOOK },
    ] {
        assert!(cache.append(&look.keys(&[4]), &look.values(&[4])).is_err());
        assert_eq!((stored(&cache), cache.offset()), (before.clone(), 4));
    }
    assert!(cache.encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().is_none());
    let turbo = Precision::TurboQuant { key_bits: 4, value_bits: 4, deferred: false };
    assert!(cache.encoded(turbo).unwrap().is_none());
    assert!(AffineCache::new(4, 32).unwrap().encoded(turbo).unwrap().is_none());
    // One that forgot everything has no tokens to make codes of.
    let mut emptied = plain(LOOK, 4);
    emptied.forget(4);
    assert!(emptied.encoded(turbo).unwrap().is_none());
    let narrow = plain(Look { key_dims: 96, ..LOOK }, 4);
    assert_eq!(narrow.encoded(turbo).err().unwrap().code(), Code::Unsupported);
}

fn needs(dims: usize, window: Option<usize>) -> LayerNeeds {
    LayerNeeds { sizes: KvSizes { kv_heads: 2, key_dims: dims, value_dims: dims }, window }
}

fn turboquant(key_bits: u32, value_bits: u32) -> CacheOptions {
    let turboquant = TurboQuantOptions { key_bits, value_bits, start: 0, deferred: false };
    CacheOptions { turboquant: Some(turboquant), ..CacheOptions::default() }
}

#[test]
fn b71_heads_without_a_rotation_and_unknown_widths_are_refused_when_a_set_is_made() {
    for backing in [Backing::Arrays, Backing::Segments] {
        let scheme = |options: &CacheOptions, dims: usize| {
            let layers = [needs(64, None), needs(dims, None)];
            Scheme::new(options, &layers, backing, Dtype::Float16, 512)
        };
        for dims in [64, 128, 256, 512] {
            scheme(&turboquant(8, 3), dims).unwrap();
        }
        for dims in [80, 96] {
            let error = scheme(&turboquant(8, 3), dims).unwrap_err();
            assert_eq!(error.code(), Code::Unsupported);
            assert_eq!(error.detail().field.as_deref(), Some("turboquant_key_bits"));
            assert_eq!(error.detail().position, Some(1));
        }
        for (key_bits, value_bits, field) in
            [(3, 3, "turboquant_key_bits"), (8, 6, "turboquant_value_bits"), (0, 0, "turboquant_key_bits")]
        {
            let error = scheme(&turboquant(key_bits, value_bits), 64).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert_eq!(error.detail().field.as_deref(), Some(field));
        }
    }
}

fn saved(provider: &Provider, cache: &dyn LayerCache) -> Entry {
    let entry = provider.snapshot(cache).unwrap();
    let header = serde_json::from_str(&serde_json::to_string(&entry.header).unwrap()).unwrap();
    Entry { header, ..entry }
}

/// Each layer's kind survives copies and files, that of a layer that is left as it is too.
#[test]
fn b73_layers_that_are_left_out_stay_so() {
    let look = Look { key_dims: 64, value_dims: 64, ..LOOK };
    let groups = AffineGroups { bits: 4, group: 32 };
    let table = AffineOptions { layers: AffineLayers::Table(vec![(0, groups), (1, groups)]), start: None };
    let cases = [
        (turboquant(4, 4), Some(100), ["kv:turboquant:4:4", "kv:turboquant:4:4", "kv:rotating-plain"]),
        (
            CacheOptions { affine: Some(table), ..CacheOptions::default() },
            None,
            ["kv:quant:4:32", "kv:quant:4:32", "kv:plain"],
        ),
    ];
    let provider = Provider::built_in();
    for (options, window, kinds) in cases {
        let layers = [needs(64, None), needs(64, None), needs(64, window)];
        let scheme = Scheme::new(&options, &layers, Backing::Arrays, Dtype::Float32, 512).unwrap();
        let mut caches = scheme.caches().unwrap();
        caches.iter_mut().for_each(|cache| drop(look.append(&mut **cache, &ids(0, 40))));
        scheme.maintenance().run(&mut caches).unwrap();
        for (cache, kind) in caches.iter_mut().zip(kinds) {
            let mut copy = provider.copy(&**cache).unwrap();
            let entry = saved(&provider, &**cache);
            let mut loaded = provider.load(&entry).unwrap();
            for cache in [&*cache, &copy, &loaded] {
                assert_eq!((cache.signature().to_string().as_str(), cache.offset()), (kind, 40));
                assert_eq!(cache.minimum_reusable_offset(), 0);
            }
            look.append(&mut *copy, &ids(90, 95));
            for id in 40..50 {
                let next = look.append(&mut **cache, &[id]);
                assert!(look.append(&mut *loaded, &[id]) == next, "{kind}: {id}");
            }
            copy.forget(5);
            assert_eq!(copy.offset(), 40);
            let name = if kind.starts_with("kv:quant") { "bits" } else { "kBits" };
            if entry.header.contains_key(name) {
                for value in [2, 3, 5, 8] {
                    let mut changed = entry.clone();
                    changed.header.insert(name.into(), json!(value));
                    let error = provider.load(&changed).err().unwrap();
                    assert_eq!(error.code(), Code::IncompatibleCheckpoint, "{kind}: {value}");
                }
            }
        }
    }
}

#[test]
fn a_file_that_does_not_say_it_is_good_for_no_less_than_all_its_tokens() {
    let provider = Provider::built_in();
    let mut cache = encoded(&plain(LOOK, 9), 8, 3, true);
    let entry = saved(&provider, &cache);
    assert_eq!(entry.header["minimumReusableOffset"], 0);
    assert_eq!(provider.load(&entry).unwrap().minimum_reusable_offset(), 0);
    let mut silent = entry.clone();
    silent.header.remove("minimumReusableOffset");
    let mut loaded = provider.load(&silent).unwrap();
    assert_eq!(loaded.minimum_reusable_offset(), 9);
    assert!(!provider.snapshot(&*loaded).unwrap().header.contains_key("minimumReusableOffset"));
    // The way that values are read is kept, and so are the next tokens.
    let new = (LOOK.keys(&[9]), LOOK.values(&[9]));
    let inner: &mut TurboQuantCache = of_kind(&mut *loaded).unwrap();
    assert!(matches!(inner.append(&new.0, &new.1).unwrap(), KeysValues::Rotated { .. }));
    cache.append(&new.0, &new.1).unwrap();
    assert_eq!(stored(inner), stored(&cache));
    cache.forget(10);
    assert!(provider.is_empty(&cache).unwrap());
    assert_eq!(provider.snapshot(&cache).unwrap_err().code(), Code::WrongState);
}
