//! The interleaved cache against MLX's rotation and attention over everything at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::LayerCache;
use super::segmented::{KvSizes, SEGMENT, SegmentedCache};
use super::{Precision, SegmentForm, Signature};
use crate::base::Code;
use crate::mlx::ops::{self, CausalAttention, Pools, Rope, Visible};
use crate::mlx::{Array, Dtype, Mask, prim};

const HEADS: i32 = 4;
const KV_HEADS: i32 = 2;
const DIMS: i32 = 64;
const WIDTH: i32 = (HEADS + 2 * KV_HEADS) * DIMS;

fn rope() -> Rope {
    Rope::plain(DIMS, false, 10000.0, 1.0)
}

fn attention() -> CausalAttention {
    CausalAttention::new(HEADS as usize, KV_HEADS as usize, DIMS as usize, 0.25, &rope()).unwrap()
}

const SIZES: KvSizes =
    KvSizes { kv_heads: KV_HEADS as usize, key_dims: DIMS as usize, value_dims: DIMS as usize };

const FORMS: [SegmentForm; 4] = [
    SegmentForm::Float(Dtype::Float16),
    SegmentForm::Affine { bits: 4, group: 64 },
    SegmentForm::Affine { bits: 8, group: 32 },
    SegmentForm::TurboQuant { key_bits: 8, value_bits: 3 },
];

fn new(dtype: Dtype) -> SegmentedCache {
    with(SegmentForm::Float(dtype), Visible::default())
}

fn with(form: SegmentForm, visible: Visible) -> SegmentedCache {
    SegmentedCache::new(form, SIZES, SEGMENT, visible, Pools::new(1, None)).unwrap()
}

/// Queries, keys and values of positions `from..to`, reproducible.
fn projected(from: i32, to: i32) -> Array {
    let values: Vec<f32> = (from * WIDTH..to * WIDTH)
        .map(|index| ((index as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect();
    Array::from_slice(&values, &[1, to - from, WIDTH]).unwrap()
}

fn attend(cache: &mut SegmentedCache, from: i32, to: i32) -> Vec<f32> {
    let attended = cache.attend(&projected(from, to), &attention()).unwrap().to_vec::<f32>().unwrap();
    cache.settle();
    attended
}

/// The same by MLX's operations, all positions at once.
fn reference(to: i32) -> Vec<f32> {
    let all = projected(0, to);
    let part = |from: i32, heads: i32| {
        let cut = prim::slice(&all, &[0, 0, from * DIMS], &[1, to, (from + heads) * DIMS]).unwrap();
        ops::split_heads(&cut, heads).unwrap()
    };
    let queries = ops::rope(&part(0, HEADS), &rope(), 0).unwrap();
    let keys = ops::rope(&part(HEADS, KV_HEADS), &rope(), 0).unwrap();
    let values = part(HEADS + KV_HEADS, KV_HEADS);
    let attended =
        ops::attention(&queries, &ops::KeysValues::Plain { keys, values }, 0.25, &Mask::Causal).unwrap();
    let merged = ops::merge_heads(&attended).unwrap();
    prim::contiguous(&merged).unwrap().to_vec::<f32>().unwrap()
}

#[test]
fn attention_is_that_of_mlx_in_any_chunks_to_the_last_bit_of_the_whole() {
    let end = 600;
    let expected = reference(end);
    for (dtype, bound) in [(Dtype::Float32, 2e-5), (Dtype::Float16, 2e-3), (Dtype::Bfloat16, 2e-2)] {
        let whole = attend(&mut new(dtype), 0, end);
        for (index, (a, b)) in whole.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() < bound, "{index}: {a} and {b}");
        }
        for chunks in [vec![1, 1, 30, 256, 1, 300, 11], vec![255, 2, 343], vec![16; 38]] {
            let mut cache = new(dtype);
            let (mut from, mut found) = (0, Vec::new());
            for chunk in chunks {
                let to = end.min(from + chunk);
                found.extend(attend(&mut cache, from, to));
                from = to;
            }
            assert_eq!((from, cache.offset()), (end, end as usize));
            assert_eq!(found, whole);
        }
    }
}

#[test]
fn what_is_stored_alone_is_attended_later() {
    let mut cache = new(Dtype::Float32);
    let all = projected(0, 20);
    let kv = prim::slice(&all, &[0, 0, HEADS * DIMS], &[1, 20, WIDTH]).unwrap();
    cache.store(&prim::contiguous(&kv).unwrap(), &attention()).unwrap();
    let mut whole = new(Dtype::Float32);
    attend(&mut whole, 0, 20);
    assert_eq!(attend(&mut cache, 20, 23), attend(&mut whole, 20, 23));
}

#[test]
fn memory_grows_by_segments() {
    let mut cache = new(Dtype::Float16);
    assert_eq!(cache.bytes(), 0);
    attend(&mut cache, 0, 1);
    let step = SEGMENT * (2 * KV_HEADS * DIMS * 2) as usize;
    assert_eq!(cache.bytes(), step);
    attend(&mut cache, 1, SEGMENT as i32);
    assert_eq!(cache.bytes(), step);
    attend(&mut cache, SEGMENT as i32, SEGMENT as i32 + 1);
    assert_eq!(cache.bytes(), 2 * step);
    assert_eq!(cache.signature().to_string(), "kv:segments:float16");
}

#[test]
fn trimmed_tokens_are_overwritten_and_never_read() {
    let mut cache = new(Dtype::Float16);
    attend(&mut cache, 0, 10);
    attend(&mut cache, 90, 130);
    assert_eq!(cache.forget(40), 40);
    let mut straight = new(Dtype::Float16);
    attend(&mut straight, 0, 10);
    assert_eq!(attend(&mut cache, 10, 12), attend(&mut straight, 10, 12));
    assert_eq!(cache.forget(100), 12);
    assert_eq!(attend(&mut cache, 0, 3), attend(&mut new(Dtype::Float16), 0, 3));
}

#[test]
fn forks_go_their_own_ways() {
    let mut cache = new(Dtype::Float16);
    attend(&mut cache, 0, 5);
    let mut fork = cache.fork();
    let other = fork.attend(&projected(70, 71), &attention()).unwrap().to_vec::<f32>().unwrap();
    let mut straight = new(Dtype::Float16);
    attend(&mut straight, 0, 5);
    assert_eq!((fork.offset(), cache.offset()), (6, 5));
    assert_eq!(attend(&mut cache, 5, 6), attend(&mut straight, 5, 6));
    let mut branch = new(Dtype::Float16);
    attend(&mut branch, 0, 5);
    assert_eq!(other, attend(&mut branch, 70, 71));
    let more = fork.attend(&projected(71, 73), &attention()).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(more, attend(&mut branch, 71, 73));
}

#[test]
fn keys_and_values_are_not_handed_out() {
    let mut cache = new(Dtype::Float16);
    let columns = Array::from_slice(&[0f32; 32], &[1, 2, 1, 16]).unwrap();
    assert!(cache.append(&columns, &columns).is_err());
    assert_eq!(cache.offset(), 0);
}

/// What a cache was given: ranges of positions of `projected`.
type History = Vec<(i32, i32)>;

fn replayed(history: &History, form: SegmentForm) -> SegmentedCache {
    let mut cache = with(form, Visible::default());
    for (from, to) in history {
        attend(&mut cache, *from, *to);
    }
    cache
}

/// Keeps the first `keep` tokens of a history.
fn cut(history: &mut History, keep: i32) {
    let mut left = keep;
    history.retain_mut(|(from, to)| {
        let tokens = (*to - *from).min(left);
        *to = *from + tokens;
        left -= tokens;
        tokens > 0
    });
}

/// A small generator of numbers below `bound`.
fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// Appends, cuts and forks in any order: each cache is to the bit the one that was given its tokens alone.
#[test]
fn forks_and_cuts_in_any_order_are_as_if_each_cache_were_alone() {
    for (seed, form) in (0..4u64).zip(FORMS) {
        let mut state = seed;
        let mut caches: Vec<(SegmentedCache, History)> = vec![(with(form, Visible::default()), vec![])];
        for _ in 0..30 {
            let chosen = draw(&mut state, caches.len() as u64) as usize;
            match draw(&mut state, 8) {
                0 | 1 if caches.len() < 5 => {
                    let (cache, history) = &caches[chosen];
                    let fork = cache.fork();
                    let fork = fork.as_any().downcast_ref::<SegmentedCache>().unwrap().clone();
                    let history = history.clone();
                    caches.push((fork, history));
                }
                2 if caches.len() > 1 => drop(caches.swap_remove(chosen)),
                3 | 4 => {
                    let (cache, history) = &mut caches[chosen];
                    let tokens = draw(&mut state, 200) as usize;
                    let before = cache.offset();
                    assert_eq!(cache.forget(tokens), tokens.min(before));
                    cut(history, before.saturating_sub(tokens) as i32);
                }
                _ => {
                    let (cache, history) = &mut caches[chosen];
                    let from = draw(&mut state, 5000) as i32;
                    let tokens = [1, 1, 2, 15, 16, 17, 100, 300][draw(&mut state, 8) as usize];
                    attend(cache, from, from + tokens);
                    history.push((from, from + tokens));
                }
            }
        }
        for (mut cache, history) in caches {
            assert_eq!(cache.offset() as i32, history.iter().map(|(from, to)| to - from).sum::<i32>());
            assert_eq!(attend(&mut cache, 9000, 9003), attend(&mut replayed(&history, form), 9000, 9003));
        }
    }
}

#[test]
fn a_fork_takes_one_segment_at_most_once_both_have_moved_on() {
    let counter = Arc::new(AtomicU64::new(7));
    let counted = || counter.load(Ordering::Relaxed) as usize - 7;
    let new = || {
        let form = SegmentForm::Float(Dtype::Float16);
        let pools = Pools::counted_in(1, None, Arc::clone(&counter));
        SegmentedCache::new(form, SIZES, SEGMENT, Visible::default(), pools).unwrap()
    };
    let mut cache = new();
    attend(&mut cache, 0, 4 * SEGMENT as i32 + 10);
    let (before, segment) = (cache.bytes(), cache.bytes() / 5);
    let mut fork = cache.clone();
    assert_eq!((cache.shared_bytes(), counted(), cache.copied_bytes()), (before, before, segment));
    attend(&mut cache, 2000, 2001);
    attend(&mut fork, 3000, 3001);
    assert_eq!((cache.bytes(), fork.bytes(), fork.copied_bytes()), (before, before, 0));
    assert_eq!((cache.shared_bytes(), fork.shared_bytes()), (before - segment, before - segment));
    assert_eq!(counted(), before + segment);
    drop(cache);
    assert_eq!((fork.shared_bytes(), counted()), (0, before));
    drop(fork);
    assert_eq!(counted(), 0);
    // At a boundary between segments nothing is copied.
    let mut even = new();
    attend(&mut even, 0, SEGMENT as i32);
    let mut fork = even.clone();
    assert_eq!(even.copied_bytes(), 0);
    attend(&mut even, 300, 301);
    attend(&mut fork, 400, 401);
    assert_eq!((even.shared_bytes(), counted()), (segment, 3 * segment));
}

#[test]
fn pages_that_are_used_up_are_an_error_that_changes_nothing() {
    let pools = Pools::new(1, Some(4));
    let form = SegmentForm::Float(Dtype::Float16);
    let mut cache = SegmentedCache::new(form, SIZES, 16, Visible::default(), Arc::clone(&pools)).unwrap();
    assert_eq!(cache.signature().to_string(), "kv:pages:16:float16");
    attend(&mut cache, 0, 40);
    let mut fork = cache.clone();
    assert_eq!(pools.used(), 3);
    // The fork needs its own copy of the last page, and then there is none for the other.
    attend(&mut fork, 40, 48);
    assert_eq!(pools.used(), 4);
    let refused = fork.attend(&projected(48, 49), &attention()).unwrap_err();
    assert_eq!((refused.code(), fork.offset()), (Code::OutOfMemory, 48));
    attend(&mut cache, 50, 58);
    assert!(cache.attend(&projected(58, 60), &attention()).is_err());
    drop(fork);
    assert_eq!(pools.used(), 3);
    attend(&mut cache, 58, 60);
    let mut straight = new(Dtype::Float16);
    for (from, to) in [(0, 40), (50, 58), (58, 60)] {
        attend(&mut straight, from, to);
    }
    assert_eq!(attend(&mut cache, 60, 61), attend(&mut straight, 60, 61));
    drop(cache);
    assert_eq!(pools.used(), 0);
}

#[test]
fn no_form_depends_on_how_tokens_were_cut() {
    for form in FORMS {
        for visible in [
            Visible::default(),
            Visible { window: Some(70), keep: 0 },
            Visible { window: Some(300), keep: 5 },
            Visible { window: Some(1), keep: 300 },
        ] {
            let end = 560;
            // At once nothing is given up before it is looked at.
            let whole = attend(&mut with(form, visible), 0, end);
            for chunks in [vec![280, 280], vec![1, 255, 1, 70, 233]] {
                let mut cache = with(form, visible);
                let (mut from, mut found) = (0, Vec::new());
                for chunk in chunks {
                    found.extend(attend(&mut cache, from, from + chunk));
                    from += chunk;
                }
                assert_eq!(from, end);
                assert!(found == whole, "{form} {visible:?}");
            }
        }
    }
}

#[test]
fn what_a_window_has_left_behind_is_given_up_and_little_can_be_forgotten() {
    let visible = Visible { window: Some(100), keep: 4 };
    let mut cache = with(SegmentForm::Float(Dtype::Float16), visible);
    let mut straight = cache.clone();
    for from in (0..1500).step_by(100) {
        attend(&mut cache, from, from + 100);
        assert!(
            cache.bytes() <= 4 * 256 * (2 * KV_HEADS * DIMS * 2) as usize,
            "{} bytes at {from}",
            cache.bytes()
        );
        // A token that was taken back is as if it had not been there.
        assert!(cache.can_forget(1) && cache.can_forget(64));
        attend(&mut cache, 9000, 9060);
        assert_eq!(cache.forget(60), 60);
        attend(&mut straight, from, from + 100);
    }
    assert!(!cache.can_forget(700));
    assert_eq!((cache.forget(700), cache.offset()), (0, 1500));
    // What is not settled yet can be taken back however much it is.
    let before = cache.bytes();
    cache.attend(&projected(9000, 9900), &attention()).unwrap();
    assert_eq!((cache.forget(900), cache.offset(), cache.bytes()), (900, 1500, before));
    assert_eq!(attend(&mut cache, 1500, 1503), attend(&mut straight, 1500, 1503));
}

#[test]
fn numbers_are_converted_as_if_they_had_been_stored_so() {
    for form in FORMS.into_iter().skip(1) {
        let precision = match form {
            SegmentForm::Affine { bits, group } => Precision::Affine { bits, group },
            SegmentForm::TurboQuant { key_bits, value_bits } => {
                Precision::TurboQuant { key_bits, value_bits, deferred: true }
            }
            SegmentForm::Float(_) => unreachable!(),
        };
        // From float32 nothing is lost on the way.
        let mut cache = with(SegmentForm::Float(Dtype::Float32), Visible::default());
        attend(&mut cache, 0, 300);
        let mut converted = cache.encoded(precision).unwrap().unwrap();
        assert_eq!((converted.offset(), cache.offset()), (300, 300));
        assert_eq!(converted.signature(), Signature::Segments(form));
        assert!(converted.bytes() < cache.bytes() / 2);
        let mut direct = with(form, Visible::default());
        attend(&mut direct, 0, 300);
        let found = converted.attend(&projected(300, 301), &attention()).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(found, attend(&mut direct, 300, 301));
        assert!(converted.encoded(precision).unwrap().is_none());
    }
}

#[test]
fn b68_b71_heads_that_a_form_cannot_take_are_refused_before_anything_is_stored() {
    let refused = |form: SegmentForm, dims: usize| {
        let sizes = KvSizes { kv_heads: 2, key_dims: dims, value_dims: dims };
        let made = SegmentedCache::new(form, sizes, SEGMENT, Visible::default(), Pools::new(1, None));
        made.err().map(|error| error.code())
    };
    let affine = |bits, group| SegmentForm::Affine { bits, group };
    let turbo = |key_bits, value_bits| SegmentForm::TurboQuant { key_bits, value_bits };
    assert_eq!(refused(affine(4, 32), 96), None);
    assert_eq!(refused(affine(4, 64), 96), Some(Code::Unsupported));
    assert_eq!(refused(affine(4, 32), 80), Some(Code::Unsupported));
    assert_eq!(refused(affine(7, 32), 96), Some(Code::Unsupported));
    for dims in [64, 128, 256, 512] {
        assert_eq!(refused(turbo(8, 3), dims), None);
    }
    for dims in [32, 80, 96, 1024] {
        assert_eq!(refused(turbo(8, 3), dims), Some(Code::Unsupported));
    }
    assert_eq!(refused(turbo(3, 3), 64), Some(Code::Unsupported));
}
