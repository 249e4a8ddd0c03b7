//! Compressed keys in segments against MLX's operations over arrays, and against themselves.

use std::sync::Arc;

use super::test_support::Random;
use super::{
    Entry, IndexStep, LatentCache, LatentDims, LatentLayout, LatentRole, LayerCache, Precision, Provider,
    SEGMENT, SegmentedLatentCache, of_kind,
};
use crate::base::Code;
use crate::mlx::ops::{self, KeysValues, LatentAttention, Pools, Rope, TokenIndexer, rotation};
use crate::mlx::{Array, Dtype, Mask, prim};

const HEADS: i32 = 6;
const LATENT: i32 = 40;
const ROPE: i32 = 16;
const DIMS: i32 = LATENT + ROPE;
const INDEX_HEADS: i32 = 3;
const INDEX: i32 = 24;
const SCALE: f32 = 0.3;
const MASKED: LatentRole = LatentRole::TargetWithIndex;

fn rope() -> Rope {
    Rope::plain(ROPE, true, 1000.0, 1.0)
}

fn attention() -> LatentAttention {
    LatentAttention {
        heads: HEADS as usize,
        latent: LATENT as usize,
        rope: ROPE as usize,
        scale: SCALE,
        rotation: rotation(Some(&rope())).unwrap(),
    }
}

fn indexer(chosen: usize) -> TokenIndexer {
    // The halves of a pair lie apart, unlike those of the keys.
    let rotation = rotation(Some(&Rope::plain(ROPE, false, 1000.0, 1.0))).unwrap();
    TokenIndexer { heads: INDEX_HEADS as usize, dims: INDEX as usize, chosen, rotation }
}

fn layout(role: LatentRole, dtype: Dtype, segment: usize) -> LatentLayout {
    let index = (role == MASKED).then_some(INDEX as usize);
    let dims = LatentDims { latent: LATENT as usize, rope: ROPE as usize, index };
    LatentLayout { role, dims, dtype, segment }
}

fn new(role: LatentRole, dtype: Dtype) -> SegmentedLatentCache {
    SegmentedLatentCache::new(layout(role, dtype, SEGMENT), Pools::new(1, None)).unwrap()
}

/// Rows of `width` numbers for these tokens, other ones for each `what`.
fn rows(what: u32, ids: &[u32], width: i32) -> Array {
    let number = |id: u32, index: i32| {
        let hash = (id.wrapping_mul(977) + what).wrapping_mul(7919).wrapping_add(index as u32);
        (hash.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let numbers: Vec<f32> =
        ids.iter().flat_map(|id| (0..width).map(move |index| number(*id, index))).collect();
    Array::from_slice(&numbers, &[1, ids.len() as i32, width]).unwrap()
}

/// Appends tokens and returns what they attend.
fn append(cache: &mut dyn LayerCache, ids: &[u32], chosen: usize) -> Vec<f32> {
    let cache: &mut SegmentedLatentCache = of_kind(cache).unwrap();
    let (queries, keys) = (rows(1, ids, HEADS * DIMS), rows(2, ids, DIMS));
    let of_index = [(3, INDEX_HEADS * INDEX), (4, INDEX), (5, INDEX_HEADS)];
    let [index_queries, index_keys, weights] = of_index.map(|(what, width)| rows(what, ids, width));
    let indexer = indexer(chosen);
    let step = IndexStep { queries: &index_queries, keys: &index_keys, weights: &weights, indexer: &indexer };
    let step = (cache.layout().role == MASKED).then_some(step);
    let attended = cache.attend_latent(&queries, &keys, &attention(), step).unwrap();
    cache.settle();
    attended.to_vec::<f32>().unwrap()
}

fn ids(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

/// `[1, heads, tokens, dims]` of `[1, tokens, heads * dims]`, the last dimensions rotated.
fn heads_of(rows: &Array, heads: i32, offset: i32) -> Array {
    let split = ops::split_heads(rows, heads).unwrap();
    let tokens = split.dim(2);
    let latent = prim::slice(&split, &[0, 0, 0, 0], &[1, heads, tokens, LATENT]).unwrap();
    let rotated = prim::slice(&split, &[0, 0, 0, LATENT], &[1, heads, tokens, DIMS]).unwrap();
    let rotated = ops::rope(&rotated, &rope(), offset).unwrap();
    prim::concatenate(&[&latent, &rotated], -1).unwrap()
}

/// What MLX gives for the last `count` of these tokens, which may attend the others as `mask` says.
fn reference(ids: &[u32], count: usize, mask: &Mask) -> Vec<f32> {
    let before = (ids.len() - count) as i32;
    let queries = heads_of(&rows(1, &ids[before as usize..], HEADS * DIMS), HEADS, before);
    // The array's cache, which has the parts apart.
    let dims = layout(LatentRole::Target, Dtype::Float32, SEGMENT).dims;
    let mut cache = LatentCache::new(LatentRole::Target, dims).unwrap();
    let keys = heads_of(&rows(2, ids, DIMS), 1, 0);
    let tokens = ids.len() as i32;
    let part = |from: i32, to: i32| prim::slice(&keys, &[0, 0, 0, from], &[1, 1, tokens, to]).unwrap();
    let columns = cache.append_parts(&part(0, LATENT), &part(LATENT, DIMS), None).unwrap();
    let keys = prim::concatenate(&[&columns.latent, &columns.rope], -1).unwrap();
    let read = KeysValues::Plain { keys, values: columns.latent };
    let attended = ops::attention(&queries, &read, SCALE, mask).unwrap();
    prim::contiguous(&ops::merge_heads(&attended).unwrap()).unwrap().to_vec::<f32>().unwrap()
}

fn assert_near(found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= bound, "{index}: {found} is not {expected}");
    }
}

#[test]
fn attention_is_that_of_mlx_in_any_chunks() {
    let all = ids(0, 600);
    let expected = reference(&all, 600, &Mask::Causal);
    for (dtype, bound) in [(Dtype::Float32, 2e-5), (Dtype::Float16, 2e-3), (Dtype::Bfloat16, 2e-2)] {
        let whole = append(&mut new(LatentRole::Target, dtype), &all, 0);
        assert_near(&whole, &expected, bound);
        for (role, chunks) in [(LatentRole::Draft, [1, 250, 6, 300, 43]), (MASKED, [300, 299, 1, 0, 0])] {
            let mut cache = new(role, dtype);
            let (mut pieces, mut from) = (Vec::new(), 0);
            for chunk in chunks.into_iter().filter(|chunk| *chunk > 0) {
                pieces.extend(append(&mut cache, &ids(from, from + chunk), 600));
                from += chunk;
            }
            assert!(pieces == whole, "{dtype:?} {chunks:?}");
        }
    }
}

/// The positions that a float64 indexer chooses for the last of these tokens, and whether float32 could choose others.
fn chosen_of(tokens: &[u32], chosen: usize) -> (Vec<bool>, bool) {
    let numbers = |what, ids: &[u32], width: i32| rows(what, ids, width).to_vec::<f32>().unwrap();
    let rotated = |head: &[f32], position: usize| -> Vec<f64> {
        let mut head: Vec<f64> = head.iter().map(|number| f64::from(*number)).collect();
        let pairs = ROPE as usize / 2;
        for pair in 0..pairs {
            let angle = position as f64 * 1000_f64.powf(-(pair as f64) / pairs as f64);
            let (a, b) = (head[pair], head[pair + pairs]);
            head[pair] = a * angle.cos() - b * angle.sin();
            head[pair + pairs] = a * angle.sin() + b * angle.cos();
        }
        head
    };
    let last = tokens.len() - 1;
    let queries = numbers(3, &tokens[last..], INDEX_HEADS * INDEX);
    let queries: Vec<Vec<f64>> = queries.chunks(INDEX as usize).map(|query| rotated(query, last)).collect();
    let weights = numbers(5, &tokens[last..], INDEX_HEADS);
    let keys = numbers(4, tokens, INDEX);
    let scores = keys.chunks(INDEX as usize).enumerate().map(|(position, key)| {
        let key = rotated(key, position);
        let product = |query: &[f64]| query.iter().zip(&key).map(|(q, k)| q * k).sum::<f64>().max(0.0);
        queries.iter().zip(&weights).map(|(query, weight)| product(query) * f64::from(*weight)).sum::<f64>()
    });
    let scores: Vec<f64> = scores.collect();
    // Scores to which no head adds are zeros in any arithmetic.
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let gap = scores[order[chosen - 1]] - scores[order[chosen]];
    let mut attended = vec![false; scores.len()];
    order[..chosen].iter().for_each(|position| attended[*position] = true);
    (attended, gap != 0.0 && gap < 1e-4)
}

#[test]
fn an_indexer_chooses_what_is_attended() {
    let (all, chosen) = (ids(0, 540), 50);
    let mut cache = new(MASKED, Dtype::Float32);
    let whole = append(&mut cache, &all, chosen);
    let width = (HEADS * LATENT) as usize;
    let (mut compared, mut differs) = (0, 0);
    for tokens in [51, 60, 200, 256, 257, 300, 400, 512, 513, 539, 540] {
        let (attended, unclear) = chosen_of(&all[..tokens], chosen);
        assert_eq!(attended.iter().filter(|attended| **attended).count(), chosen);
        if unclear {
            continue;
        }
        let bytes: Vec<u8> = attended.into_iter().map(u8::from).collect();
        let mask = Array::from_slice(&bytes, &[1, tokens as i32]).unwrap();
        let mask = Mask::Array(prim::astype(&mask, Dtype::Bool).unwrap());
        let found = &whole[(tokens - 1) * width..][..width];
        assert_near(found, &reference(&all[..tokens], 1, &mask), 2e-5);
        let everything = reference(&all[..tokens], 1, &Mask::None);
        differs += usize::from(found.iter().zip(&everything).any(|(a, b)| (a - b).abs() > 1e-2));
        compared += 1;
    }
    assert!(compared >= 8 && differs == compared, "{compared} {differs}");
    // While there are no more tokens than are chosen, all are.
    let few = append(&mut new(LatentRole::Target, Dtype::Float32), &all[..chosen], 0);
    assert!(whole[..few.len()] == few);
    let mut pieces = Vec::new();
    let mut cache = new(MASKED, Dtype::Float32);
    for piece in [&all[..49], &all[49..51], &all[51..52], &all[52..400], &all[400..]] {
        pieces.extend(append(&mut cache, piece, chosen));
    }
    assert!(pieces == whole);
}

fn saved(cache: &dyn LayerCache) -> Entry {
    let entry = Provider::built_in().snapshot(cache).unwrap();
    let header = serde_json::from_str(&serde_json::to_string(&entry.header).unwrap()).unwrap();
    Entry { header, ..entry }
}

/// Any sequence of operations gives, to the last bit, what a new cache gives for the tokens that are left.
#[test]
fn a_state_is_that_of_its_tokens() {
    for seed in 1..40 {
        let mut random = Random(seed);
        let role = [LatentRole::Target, MASKED, LatentRole::Draft][random.below(3)];
        let dtype = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16][random.below(3)];
        let segment = [16, 48, SEGMENT][random.below(3)];
        let chosen = [1, 20, 100][random.below(3)];
        let pools = Pools::new(1, None);
        let fresh = || SegmentedLatentCache::new(layout(role, dtype, segment), Arc::clone(&pools)).unwrap();
        let mut held: Vec<(Box<dyn LayerCache>, Vec<u32>)> = vec![(Box::new(fresh()), Vec::new())];
        for step in 0..14 {
            let (at, count_held) = (random.below(held.len()), held.len());
            let (cache, tokens) = &mut held[at];
            match random.below(6) {
                0 | 1 => {
                    let count = [1, 1, 5, 70][random.below(4)];
                    let new: Vec<u32> =
                        (0..count).map(|index| seed as u32 * 1000 + step * 100 + index).collect();
                    tokens.extend(&new);
                    let found = append(&mut **cache, &new, chosen);
                    let expected = append(&mut fresh(), tokens, chosen);
                    assert!(found == expected[expected.len() - found.len()..], "{seed} {step} {role:?}");
                }
                2 => {
                    let count = random.below(80);
                    let dropped = cache.forget(count);
                    assert_eq!(dropped, count.min(tokens.len()));
                    tokens.truncate(tokens.len() - dropped);
                }
                3 if count_held < 4 => {
                    let fork = (cache.fork(), tokens.clone());
                    held.push(fork);
                }
                4 => *cache = Provider::with_pools(Arc::clone(&pools)).load(&saved(&**cache)).unwrap(),
                _ => {
                    assert!(cache.encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().is_none());
                }
            }
            for (cache, tokens) in &held {
                assert_eq!(cache.offset(), tokens.len());
            }
        }
        // What a slab holds depends on the tokens alone.
        for (cache, tokens) in &mut held {
            let mut twin = fresh();
            if !tokens.is_empty() {
                append(&mut twin, tokens, chosen);
            }
            let bytes = |cache: &dyn LayerCache| -> Vec<Vec<u8>> {
                saved(cache).tensors.iter().map(|tensor| tensor.bytes().unwrap().into_owned()).collect()
            };
            assert!(bytes(&**cache) == bytes(&twin), "{seed} {role:?}");
        }
        drop(held);
        assert_eq!(pools.used(), 0);
    }
}

#[test]
fn forks_share_segments_and_copy_one_of_each_part() {
    let mut cache = new(MASKED, Dtype::Float16);
    append(&mut cache, &ids(0, 600), 700);
    let segment = (DIMS + INDEX) as usize * 2 * SEGMENT;
    assert_eq!((cache.bytes(), cache.shared_bytes(), cache.copied_bytes()), (3 * segment, 0, 0));
    let mut fork = cache.fork();
    assert_eq!((fork.bytes(), fork.shared_bytes(), fork.copied_bytes()), (3 * segment, 3 * segment, segment));
    assert_eq!((fork.fork_bytes(), fork.own_bytes()), (0, 0));
    append(&mut *fork, &[600], 700);
    assert_eq!(
        (fork.shared_bytes(), cache.shared_bytes(), cache.copied_bytes()),
        (2 * segment, 2 * segment, 0)
    );
    assert_eq!(cache.signature().to_string(), "kv:mla:target:dsa:segments:float16");
    let pages =
        SegmentedLatentCache::new(layout(LatentRole::Draft, Dtype::Bfloat16, 64), Pools::new(1, None));
    assert_eq!(pages.unwrap().signature().to_string(), "kv:mla:mtp:pages:64:bfloat16");
}

#[test]
fn what_fails_leaves_the_tokens_as_they_were() {
    // Room for three blocks: two of 16 tokens with their index take four.
    let pools = Pools::new(1, Some(3));
    let mut cache =
        SegmentedLatentCache::new(layout(MASKED, Dtype::Float32, 16), Arc::clone(&pools)).unwrap();
    append(&mut cache, &ids(0, 10), 5);
    let attend = |cache: &mut SegmentedLatentCache,
                  count: u32,
                  heads: i32,
                  attention: &LatentAttention,
                  indexed| {
        let new = ids(10, 10 + count);
        let (queries, keys) = (rows(1, &new, heads * DIMS), rows(2, &new, DIMS));
        let of_index = [(3, INDEX_HEADS * INDEX), (4, INDEX), (5, INDEX_HEADS)];
        let [index_queries, index_keys, weights] = of_index.map(|(what, width)| rows(what, &new, width));
        let indexer = indexer(5);
        let step =
            IndexStep { queries: &index_queries, keys: &index_keys, weights: &weights, indexer: &indexer };
        cache
            .attend_latent(&queries, &keys, attention, if indexed { Some(step) } else { None })
            .unwrap_err()
            .code()
    };
    let code = attend(&mut cache, 10, HEADS, &attention(), true);
    assert_eq!((code, cache.offset(), pools.used()), (Code::OutOfMemory, 10, 2));
    // Parts that are not this cache's.
    assert_eq!(attend(&mut cache, 2, HEADS, &attention(), false), Code::Internal);
    assert_eq!(attend(&mut cache, 2, HEADS - 1, &attention(), true), Code::Internal);
    let narrow = LatentAttention { latent: 32, ..attention() };
    assert_eq!(attend(&mut cache, 2, HEADS, &narrow, true), Code::Internal);
    let mut draft = new(LatentRole::Draft, Dtype::Float32);
    assert_eq!(attend(&mut draft, 2, HEADS, &attention(), true), Code::Internal);
    let keys = rows(2, &ids(10, 12), DIMS);
    assert_eq!(draft.append(&keys, &keys).unwrap_err().code(), Code::Internal);
    assert_eq!((draft.offset(), cache.offset()), (0, 10));
    let expected = append(
        &mut SegmentedLatentCache::new(layout(MASKED, Dtype::Float32, 16), Pools::new(1, None)).unwrap(),
        &ids(0, 12),
        5,
    );
    let found = append(&mut cache, &ids(10, 12), 5);
    assert!(found == expected[expected.len() - found.len()..]);
    let wrong = LatentLayout { role: LatentRole::Target, ..layout(MASKED, Dtype::Float32, 16) };
    assert!(SegmentedLatentCache::new(wrong, Pools::new(1, None)).is_err());
    assert!(SegmentedLatentCache::new(layout(MASKED, Dtype::Int32, 16), Pools::new(1, None)).is_err());
}
