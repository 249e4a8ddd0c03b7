//! The interleaved cache against MLX's rotation and attention over everything at once.

use super::LayerCache;
use super::interleaved::InterleavedCache;
use super::plain::STEP;
use crate::mlx::ops::{self, CausalAttention, Rope};
use crate::mlx::{Array, Dtype, Mask, prim};

const HEADS: i32 = 4;
const KV_HEADS: i32 = 2;
const DIMS: i32 = 16;
const WIDTH: i32 = (HEADS + 2 * KV_HEADS) * DIMS;

fn rope() -> Rope {
    Rope::plain(DIMS, false, 10000.0, 1.0)
}

fn attention() -> CausalAttention {
    CausalAttention::new(HEADS as usize, KV_HEADS as usize, DIMS as usize, 0.25, &rope()).unwrap()
}

/// Queries, keys and values of positions `from..to`, reproducible.
fn projected(from: i32, to: i32) -> Array {
    let values: Vec<f32> = (from * WIDTH..to * WIDTH)
        .map(|index| ((index as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect();
    Array::from_slice(&values, &[1, to - from, WIDTH]).unwrap()
}

fn attend(cache: &mut InterleavedCache, from: i32, to: i32) -> Vec<f32> {
    cache.attend(&projected(from, to), &attention()).unwrap().to_vec::<f32>().unwrap()
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
        let whole = attend(&mut InterleavedCache::new(dtype), 0, end);
        for (index, (a, b)) in whole.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() < bound, "{index}: {a} and {b}");
        }
        for chunks in [vec![1, 1, 30, 256, 1, 300, 11], vec![255, 2, 343], vec![16; 38]] {
            let mut cache = InterleavedCache::new(dtype);
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
    let mut cache = InterleavedCache::new(Dtype::Float32);
    let all = projected(0, 20);
    let kv = prim::slice(&all, &[0, 0, HEADS * DIMS], &[1, 20, WIDTH]).unwrap();
    cache.store(&prim::contiguous(&kv).unwrap(), &attention()).unwrap();
    let mut whole = InterleavedCache::new(Dtype::Float32);
    attend(&mut whole, 0, 20);
    assert_eq!(attend(&mut cache, 20, 23), attend(&mut whole, 20, 23));
}

#[test]
fn slabs_grow_in_steps() {
    let mut cache = InterleavedCache::new(Dtype::Float16);
    assert_eq!(cache.bytes(), 0);
    attend(&mut cache, 0, 1);
    let step = STEP * (2 * KV_HEADS * DIMS * 2) as usize;
    assert_eq!(cache.bytes(), step);
    attend(&mut cache, 1, STEP as i32);
    assert_eq!(cache.bytes(), step);
    attend(&mut cache, STEP as i32, STEP as i32 + 1);
    assert_eq!(cache.bytes(), 2 * step);
    assert_eq!(cache.signature().to_string(), "kv:segments:float16");
}

#[test]
fn trimmed_tokens_are_overwritten_and_never_read() {
    let mut cache = InterleavedCache::new(Dtype::Float16);
    attend(&mut cache, 0, 10);
    attend(&mut cache, 90, 130);
    assert_eq!(cache.forget(40), 40);
    let mut straight = InterleavedCache::new(Dtype::Float16);
    attend(&mut straight, 0, 10);
    assert_eq!(attend(&mut cache, 10, 12), attend(&mut straight, 10, 12));
    assert_eq!(cache.forget(100), 12);
    assert_eq!(attend(&mut cache, 0, 3), attend(&mut InterleavedCache::new(Dtype::Float16), 0, 3));
}

#[test]
fn forks_go_their_own_ways() {
    let mut cache = InterleavedCache::new(Dtype::Float16);
    attend(&mut cache, 0, 5);
    let mut fork = cache.fork();
    let other = fork.attend(&projected(70, 71), &attention()).unwrap().to_vec::<f32>().unwrap();
    let mut straight = InterleavedCache::new(Dtype::Float16);
    attend(&mut straight, 0, 5);
    assert_eq!((fork.offset(), cache.offset()), (6, 5));
    assert_eq!(attend(&mut cache, 5, 6), attend(&mut straight, 5, 6));
    let mut branch = InterleavedCache::new(Dtype::Float16);
    attend(&mut branch, 0, 5);
    assert_eq!(other, attend(&mut branch, 70, 71));
    let more = fork.attend(&projected(71, 73), &attention()).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(more, attend(&mut branch, 71, 73));
}

#[test]
fn keys_and_values_are_not_handed_out() {
    let mut cache = InterleavedCache::new(Dtype::Float16);
    let columns = Array::from_slice(&[0f32; 32], &[1, 2, 1, 16]).unwrap();
    assert!(cache.append(&columns, &columns).is_err());
    assert_eq!(cache.offset(), 0);
}
