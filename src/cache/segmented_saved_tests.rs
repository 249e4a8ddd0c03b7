//! Segmented caches through their snapshots.

use std::sync::Arc;

use super::segmented::{KvSizes, SEGMENT, SegmentedCache};
use super::test_support::Random;
use super::{Entry, LayerCache, Provider, SegmentForm, Tensor};
use crate::base::Code;
use crate::mlx::ops::{CausalAttention, Pools, Rope, Visible};
use crate::mlx::{Array, Dtype};

const SIZES: KvSizes = KvSizes { kv_heads: 2, key_dims: 64, value_dims: 64 };
const WIDTH: i32 = (4 + 2 * 2) * 64;

const FORMS: [SegmentForm; 7] = [
    SegmentForm::Float(Dtype::Float32),
    SegmentForm::Float(Dtype::Float16),
    SegmentForm::Float(Dtype::Bfloat16),
    SegmentForm::Affine { bits: 4, group: 64 },
    SegmentForm::Affine { bits: 8, group: 32 },
    SegmentForm::TurboQuant { key_bits: 8, value_bits: 3 },
    SegmentForm::TurboQuant { key_bits: 5, value_bits: 5 },
];

fn new(form: SegmentForm, segment: usize, visible: Visible) -> SegmentedCache {
    SegmentedCache::new(form, SIZES, segment, visible, Pools::new(1, None)).unwrap()
}

/// Appends the tokens `from..to` of a text without end and returns what they attend.
fn attend(cache: &mut dyn LayerCache, from: i32, to: i32) -> Vec<f32> {
    let number =
        |index: i32| ((index as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let numbers: Vec<f32> = (from * WIDTH..to * WIDTH).map(number).collect();
    let qkv = Array::from_slice(&numbers, &[1, to - from, WIDTH]).unwrap();
    let attention = CausalAttention::new(4, 2, 64, 0.25, &Rope::plain(64, false, 10000.0, 1.0)).unwrap();
    let attended = cache.attend(&qkv, &attention).unwrap().to_vec::<f32>().unwrap();
    cache.settle();
    attended
}

fn saved(cache: &dyn LayerCache) -> Entry {
    let entry = Provider::built_in().snapshot(cache).unwrap();
    let header = serde_json::from_str(&serde_json::to_string(&entry.header).unwrap()).unwrap();
    Entry { header, ..entry }
}

fn bytes(entry: &Entry) -> Vec<Vec<u8>> {
    entry.tensors.iter().map(|tensor| tensor.bytes().unwrap().into_owned()).collect()
}

#[test]
fn a_loaded_cache_continues_bit_for_bit() {
    let windows = [(None, 0), (Some(30), 0), (Some(100), 5), (Some(1), 300)];
    for (form, (window, keep)) in FORMS.into_iter().zip(windows.into_iter().cycle()) {
        let mut cache = new(form, SEGMENT, Visible { window, keep });
        let mut end = 0;
        for tokens in [5, 300, 300, 171, 1] {
            attend(&mut cache, end, end + tokens);
            end += tokens;
            let entry = saved(&cache);
            let mut loaded = Provider::built_in().load(&entry).unwrap();
            assert_eq!((loaded.offset(), loaded.signature()), (end as usize, cache.signature()));
            assert_eq!((loaded.bytes(), loaded.shared_bytes()), (cache.bytes(), 0));
            // The snapshot is what it was, whatever becomes of the two.
            let before = bytes(&entry);
            let mut twin = cache.fork();
            assert_eq!(attend(&mut *twin, 7000, 7020), attend(&mut *loaded, 7000, 7020), "{form} at {end}");
            for tokens in [3, 60] {
                assert_eq!(loaded.forget(tokens), twin.forget(tokens));
                assert_eq!(
                    attend(&mut *twin, 8000, 8001),
                    attend(&mut *loaded, 8000, 8001),
                    "{form} at {end}"
                );
            }
            assert!(bytes(&entry) == before && bytes(&saved(&cache)) == before);
        }
    }
}

#[test]
fn what_is_saved_depends_on_the_tokens_alone() {
    for form in FORMS {
        let mut first = None;
        for segment in [16, 48, 256, 512] {
            let pools = Pools::new(1, None);
            // Memory in which others have written.
            let mut other =
                SegmentedCache::new(form, SIZES, segment, Visible::default(), Arc::clone(&pools)).unwrap();
            attend(&mut other, 500, 700);
            drop(other);
            let mut cache = SegmentedCache::new(form, SIZES, segment, Visible::default(), pools).unwrap();
            attend(&mut cache, 0, 100);
            attend(&mut cache, 9000, 9100);
            cache.forget(100);
            attend(&mut cache, 100, 137);
            let entry = saved(&cache);
            assert_eq!(entry.header["segmentTokens"], segment);
            let shapes: Vec<_> = entry.tensors.iter().map(|tensor| tensor.shape()[..2].to_vec()).collect();
            assert_eq!(shapes, [[2, 9], [2, 9]]);
            let found = bytes(&entry);
            assert!(first.get_or_insert_with(|| found.clone()) == &found, "{form} in segments of {segment}");
            let mut loaded = Provider::built_in().load(&entry).unwrap();
            assert_eq!(loaded.signature(), cache.signature());
            assert_eq!(attend(&mut *loaded, 137, 140), attend(&mut cache, 137, 140));
        }
    }
}

/// Appends, cuts, forks and reloads in any order: as if nothing had ever been saved.
#[test]
fn reloads_at_any_time_change_nothing() {
    for (seed, form) in FORMS.into_iter().enumerate() {
        let mut random = Random(seed as u64);
        let (window, keep) = [(None, 0), (Some(40), 4), (Some(200), 0)][seed % 3];
        let segment = if window.is_none() { 32 } else { SEGMENT };
        let mut cache: Box<dyn LayerCache> = Box::new(new(form, segment, Visible { window, keep }));
        let mut straight = cache.fork();
        let provider = Provider::built_in();
        let mut next = 0;
        for _ in 0..25 {
            match random.below(6) {
                0 => {
                    let tokens = random.below(70);
                    assert_eq!(cache.forget(tokens), straight.forget(tokens));
                }
                1 => cache = provider.copy(&*cache).unwrap(),
                2 | 3 if cache.offset() > 0 => {
                    let entry = saved(&*cache);
                    let trimmable = provider.header_trimmable(&entry.kind, &entry.header).unwrap();
                    assert_eq!(trimmable, cache.can_forget(1));
                    cache = provider.load(&entry).unwrap();
                }
                _ => {
                    let tokens = [1, 1, 15, 16, 100, 260][random.below(6)];
                    let found = attend(&mut *cache, next, next + tokens);
                    assert!(found == attend(&mut *straight, next, next + tokens), "{form} after {next}");
                    next += tokens;
                }
            }
            assert_eq!(cache.offset(), straight.offset());
        }
    }
}

#[test]
fn a_window_that_was_cut_to_its_end_has_no_bytes_to_spare() {
    let mut cache = new(SegmentForm::Float(Dtype::Float16), SEGMENT, Visible { window: Some(1), keep: 0 });
    attend(&mut cache, 0, 321);
    assert_eq!(cache.forget(65), 65);
    let entry = saved(&cache);
    assert_eq!((entry.header["absent"].to_string(), bytes(&entry)), ("[0,256]".into(), vec![vec![], vec![]]));
    let mut loaded = Provider::built_in().load(&entry).unwrap();
    assert_eq!((loaded.bytes(), loaded.offset()), (0, 256));
    assert!(!Provider::built_in().header_trimmable("segments", &entry.header).unwrap());
    assert_eq!(attend(&mut *loaded, 256, 258), attend(&mut cache, 256, 258));
}

#[test]
fn bytes_that_are_not_those_of_the_shape_are_refused() {
    let mut cache = new(SegmentForm::Float(Dtype::Float16), 16, Visible::default());
    attend(&mut cache, 0, 20);
    let entry = saved(&cache);
    for (index, change) in [(0, -1), (1, 1), (1, -40)] {
        let mut changed = entry.clone();
        let Tensor::Bytes { data, .. } = &mut changed.tensors[index] else { panic!() };
        let length = (**data).as_ref().len() as i32 + change;
        *data = Arc::new(vec![0u8; length as usize]);
        let error = Provider::built_in().load(&changed).err().unwrap();
        assert_eq!(
            (error.code(), error.detail().field.as_deref()),
            (Code::IncompatibleCheckpoint, Some("shape"))
        );
        assert_eq!(error.detail().tensor, Some(index.to_string()));
    }
    let mut changed = entry.clone();
    changed.tensors.pop();
    let error = Provider::built_in().load(&changed).err().unwrap();
    assert_eq!(error.detail().field.as_deref(), Some("tensors"));
}

#[test]
fn loaded_segments_count_against_the_limit_of_their_pools() {
    let mut cache = new(SegmentForm::Float(Dtype::Float16), 16, Visible::default());
    attend(&mut cache, 0, 40);
    let entry = saved(&cache);
    let pools = Pools::new(1, Some(5));
    let provider = Provider::with_pools(Arc::clone(&pools));
    let loaded = provider.load(&entry).unwrap();
    assert_eq!(pools.used(), 3);
    assert_eq!(provider.load(&entry).err().unwrap().code(), Code::OutOfMemory);
    assert_eq!(pools.used(), 3);
    drop(loaded);
    assert_eq!(pools.used(), 0);
}
