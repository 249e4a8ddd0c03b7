//! The plain cache against a list of columns.

use super::planes::STEP;
use super::{LayerCache, PlainCache};
use crate::mlx::ops::KeysValues;
use crate::mlx::{Array, Dtype, Mask};

/// `[1, 2, tokens, 3]` with values that name their position.
fn columns(first: usize, tokens: usize, sign: f32) -> Array {
    let mut values = Vec::new();
    for head in 0..2 {
        for position in first..first + tokens {
            for dim in 0..3 {
                values.push(sign * (position * 10 + head * 3 + dim) as f32);
            }
        }
    }
    Array::from_slice(&values, &[1, 2, tokens as i32, 3]).unwrap()
}

fn assert_covers(fetched: &(Array, Array), tokens: usize) {
    assert_eq!(fetched.0.to_vec::<f32>().unwrap(), columns(0, tokens, 1.0).to_vec::<f32>().unwrap());
    assert_eq!(fetched.1.to_vec::<f32>().unwrap(), columns(0, tokens, -1.0).to_vec::<f32>().unwrap());
}

fn pair(fetched: KeysValues) -> (Array, Array) {
    let KeysValues::Plain { keys, values } = fetched else { panic!("not plain") };
    (keys, values)
}

fn append(cache: &mut PlainCache, tokens: usize) -> (Array, Array) {
    let first = cache.offset();
    let fetched = cache.append(&columns(first, tokens, 1.0), &columns(first, tokens, -1.0)).unwrap();
    pair(fetched)
}

fn capacity(cache: &PlainCache) -> usize {
    cache.state().unwrap().first().map_or(0, |keys| keys.dim(2) as usize)
}

#[test]
fn appends_return_all_tokens_in_order() {
    let mut cache = PlainCache::new();
    let mut covered = 0;
    for tokens in [1, 1, 7, 255, 256, 1, 300, 512, 3] {
        let fetched = append(&mut cache, tokens);
        covered += tokens;
        assert_eq!(cache.offset(), covered);
        assert_covers(&fetched, covered);
    }
}

#[test]
fn slabs_grow_in_steps_and_are_cut_before_they_grow() {
    let mut cache = PlainCache::new();
    append(&mut cache, 1);
    assert_eq!(capacity(&cache), STEP);
    append(&mut cache, 255);
    assert_eq!((cache.offset(), capacity(&cache)), (STEP, STEP));
    append(&mut cache, 1);
    assert_eq!(capacity(&cache), 2 * STEP);
    // 257 is no multiple of the step: the slab is cut to it, then grows by two steps.
    let fetched = append(&mut cache, 300);
    assert_eq!(capacity(&cache), 257 + 2 * STEP);
    assert_covers(&fetched, 557);
    assert!(PlainCache::capacity_for(557) >= capacity(&cache) as u64);
    let bytes = 2 * 2 * 3 * 4 * capacity(&cache);
    assert_eq!(cache.bytes(), bytes);
}

#[test]
fn trimmed_tokens_are_overwritten_and_never_read() {
    let mut cache = PlainCache::new();
    append(&mut cache, 10);
    assert_eq!(cache.forget(4), 4);
    assert_eq!(cache.offset(), 6);
    assert_covers(&append(&mut cache, 2), 8);
    assert_eq!(cache.forget(100), 8);
    assert_covers(&append(&mut cache, 3), 3);
}

#[test]
fn forks_go_their_own_ways() {
    let mut cache = PlainCache::new();
    append(&mut cache, 5);
    let mut fork = cache.fork();
    let other = columns(90, 1, 1.0);
    let (keys, _) = pair(fork.append(&other, &other).unwrap());
    assert_eq!((fork.offset(), keys.dim(2)), (6, 6));
    assert_eq!(cache.offset(), 5);
    assert_covers(&append(&mut cache, 1), 6);
    let (keys, _) = pair(fork.append(&other, &other).unwrap());
    assert_eq!(keys.to_vec::<f32>().unwrap()[5 * 3], 900.0);
}

#[test]
fn views_keep_their_values_when_the_cache_moves_on() {
    let mut cache = PlainCache::new();
    let early = append(&mut cache, 4);
    cache.forget(2);
    let other = columns(50, 2, 1.0);
    let later = pair(cache.append(&other, &other).unwrap());
    later.0.eval().unwrap();
    assert_covers(&early, 4);
}

#[test]
fn a_failed_append_changes_nothing() {
    let mut cache = PlainCache::new();
    append(&mut cache, 3);
    let wide = Array::from_slice(&[0f32; 8], &[1, 2, 1, 4]).unwrap();
    assert!(cache.append(&wide, &wide).is_err());
    assert_eq!(cache.offset(), 3);
    assert_covers(&append(&mut cache, 1), 4);
}

#[test]
fn masks_follow_the_positions() {
    let mut cache = PlainCache::new();
    assert!(matches!(cache.mask(1, None).unwrap(), Mask::None));
    assert!(matches!(cache.mask(5, None).unwrap(), Mask::Causal));
    assert!(matches!(cache.mask(5, Some(8)).unwrap(), Mask::Causal));
    append(&mut cache, 3);
    assert!(matches!(cache.mask(5, None).unwrap(), Mask::Causal));
    let Mask::Array(mask) = cache.mask(2, Some(2)).unwrap() else { panic!("a window needs an array") };
    assert_eq!(mask.dtype(), Dtype::Bool);
    let mask = crate::mlx::prim::astype(&mask, Dtype::Int32).unwrap();
    // Queries at 3 and 4; each sees itself and the one before.
    assert_eq!(mask.to_vec::<i32>().unwrap(), [0, 0, 1, 1, 0, 0, 0, 0, 1, 1]);
}

#[test]
fn capacities_are_those_of_the_specification() {
    let mut cache = PlainCache::new();
    append(&mut cache, 257);
    assert_eq!(capacity(&cache), 512);
    append(&mut cache, 43);
    assert_eq!((cache.offset(), capacity(&cache)), (300, 512));
    let fetched = append(&mut cache, 300);
    assert_eq!((cache.offset(), capacity(&cache)), (600, 812));
    assert_covers(&fetched, 600);
}

#[test]
fn b77_every_view_holds_what_was_appended() {
    // As the type rounds whole numbers.
    let rounded = |dtype, number: f32| match dtype {
        Dtype::Float16 => half::f16::from_f32(number).to_f32(),
        Dtype::Bfloat16 => half::bf16::from_f32(number).to_f32(),
        _ => number,
    };
    let rows = |from: usize, to: usize, dtype| {
        let values: Vec<f32> = (0..2).flat_map(|_| (from..to).flat_map(|row| [row as f32; 64])).collect();
        let rows = Array::from_slice(&values, &[1, 2, (to - from) as i32, 64]).unwrap();
        crate::mlx::prim::astype(&rows, dtype).unwrap()
    };
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        for pieces in [vec![1; 600], vec![255, 1, 1], vec![256, 1], vec![1000, 1]] {
            let mut cache = PlainCache::new();
            let mut held = Vec::new();
            let mut end = 0;
            for count in pieces {
                let new = rows(end, end + count, dtype);
                let (keys, values) = pair(cache.append(&new, &new).unwrap());
                end += count;
                held.push((keys, end));
                // Views that are still held, too: all around a step, and every now and then.
                if end % 64 < 3 || end == 600 {
                    held.push((values, end));
                    for (view, tokens) in held.drain(..) {
                        let floats = crate::mlx::prim::astype(&view, Dtype::Float32).unwrap();
                        let found = floats.to_vec::<f32>().unwrap();
                        assert_eq!(found.len(), 2 * tokens * 64);
                        for (at, found) in found.iter().enumerate() {
                            assert_eq!(*found, rounded(dtype, (at / 64 % tokens) as f32));
                        }
                    }
                } else if held.len() > 3 {
                    held.remove(0);
                }
            }
        }
    }
}
