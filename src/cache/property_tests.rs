//! Every kind, driven by random operations, against the list of all tokens in float64.
//!
//! After each append each query must see exactly the columns that the list says, as the bytes that the tokens alone are
//! encoded as; and what is encoded stands for the list's numbers within what the encoding may err.

use std::collections::HashMap;
use std::sync::Arc;

use super::encoding::{Affine, Encoding};
use super::test_support::{Look, Random, affine, plane_columns, raw, seen};
use super::{
    AffineCache, CompositeCache, Entry, LatentCache, LatentDims, LatentRole, LayerCache, PagedCache,
    PagedForm, PlainCache, Precision, Provider, RecurrentCache, RotatingAffineCache, RotatingCache, Tensor,
    TurboQuantCache, TurboQuantCodes, of_kind, reusable_from,
};
use crate::base::Code;
use crate::mlx::{Array, Dtype, prim};

/// What a cache should be.
struct Model {
    look: Look,
    /// Sizes of compressed parts, of kinds that keep these.
    latent: Option<LatentDims>,
    history: Vec<u32>,
    next: u32,
    /// Size and number of kept tokens.
    window: Option<(usize, usize)>,
    quantised: Option<Affine>,
    codes: Option<TurboQuantCodes>,
    /// What a plain cache is reduced to.
    target: Precision,
    least_reusable: usize,
    encoded: HashMap<u32, Vec<u8>>,
}

impl Model {
    fn new(look: Look, window: Option<(usize, usize)>, quantised: Option<Affine>) -> Self {
        Model {
            look,
            latent: None,
            history: Vec::new(),
            next: 0,
            window,
            quantised,
            codes: None,
            target: Precision::Affine { bits: 8, group: 32 },
            least_reusable: 0,
            encoded: HashMap::new(),
        }
    }

    fn parts(&self, dims: LatentDims, ids: &[u32]) -> [Option<Array>; 3] {
        let part = |size: usize| Look { heads: 1, key_dims: size, ..self.look }.keys(ids);
        [Some(part(dims.latent)), Some(part(dims.rope)), dims.index.map(part)]
    }

    fn append(&self, cache: &mut dyn LayerCache, ids: &[u32]) -> Vec<Vec<u8>> {
        let Some(dims) = self.latent else { return self.look.append(cache, ids) };
        let [latent, rope, index] = self.parts(dims, ids);
        let cache: &mut LatentCache = of_kind(cache).unwrap();
        let found = cache.append_parts(&latent.unwrap(), &rope.unwrap(), index.as_ref()).unwrap();
        let planes: Vec<Array> =
            [Some(found.latent), Some(found.rope), found.index].into_iter().flatten().collect();
        plane_columns(&planes)
    }

    fn encode(&self, ids: &[u32]) -> Vec<Vec<u8>> {
        match (self.latent, &self.codes) {
            (None, None) => self.look.expected(ids, self.quantised),
            (None, Some(codes)) => self.look.expected_in(ids, codes),
            (Some(dims), _) => {
                let parts: Vec<Array> = self.parts(dims, ids).into_iter().flatten().collect();
                plane_columns(&parts)
            }
        }
    }

    /// Makes the expected columns of these tokens and checks them against float64.
    fn learn(&mut self, ids: &[u32]) {
        if self.latent.is_none() && self.codes.is_none() {
            assert_near(self.look, ids, self.quantised);
        }
        let encoded = self.encode(ids);
        self.encoded.extend(ids.iter().copied().zip(encoded));
    }

    /// Appends new tokens and compares what each of them sees.
    fn step(&mut self, cache: &mut dyn LayerCache, count: usize, asked: Option<usize>) {
        let ids: Vec<u32> = (self.next..self.next + count as u32).collect();
        self.next += count as u32;
        self.learn(&ids);
        let mask = cache.mask(count, asked).unwrap();
        let found = self.append(cache, &ids);
        let first = self.history.len();
        self.history.extend(&ids);
        assert_eq!(cache.offset(), self.history.len());
        for (query, row) in seen(&mask, count, found.len()).into_iter().enumerate() {
            let position = first + query;
            let (window, keep) = self.window.unwrap_or((usize::MAX, 0));
            let latest = asked.map_or(window, |asked| asked.min(window)).saturating_sub(keep).max(1);
            let visible = (0..=position).filter(|&key| key < keep || position - key < latest);
            let mut expected: Vec<&Vec<u8>> = visible.map(|key| &self.encoded[&self.history[key]]).collect();
            let mut found: Vec<&Vec<u8>> =
                found.iter().zip(row).filter(|(_, seen)| *seen).map(|(column, _)| column).collect();
            if self.window.is_some() {
                // A ring's columns lie in no order of time.
                expected.sort();
                found.sort();
            }
            assert!(found == expected, "query {query} of {count} after {first}, window {:?}", self.window);
        }
    }

    fn forget(&mut self, cache: &mut dyn LayerCache, count: usize) {
        let possible = self.window.is_none_or(|(window, _)| self.history.len() < window);
        let expected = if possible { count.min(self.history.len()) } else { 0 };
        assert_eq!(
            cache.can_forget(count.min(self.history.len())),
            possible || count == 0 || self.history.is_empty()
        );
        assert_eq!(cache.forget(count), expected);
        self.history.truncate(self.history.len() - expected);
        assert_eq!(cache.offset(), self.history.len());
    }

    fn convert(&mut self, cache: &dyn LayerCache) -> Option<Box<dyn LayerCache>> {
        let converted = cache.encoded(self.target).unwrap()?;
        assert!(self.quantised.is_none() && self.codes.is_none());
        match self.target {
            Precision::Affine { bits, group } => self.quantised = Some(affine(bits, group)),
            Precision::TurboQuant { .. } => {
                self.codes =
                    Some(of_kind::<TurboQuantCache>(&mut *converted.fork()).unwrap().encoding.clone());
            }
        }
        let all: Vec<u32> = self.history.clone();
        if !all.is_empty() {
            self.learn(&all);
            self.least_reusable = self.least_reusable.max(all.len());
        }
        Some(reusable_from(converted, self.least_reusable))
    }

    /// Through what a store keeps, and back.
    fn reload(&mut self, cache: Box<dyn LayerCache>, random: &mut Random) -> Box<dyn LayerCache> {
        let provider = Provider::built_in();
        if provider.is_empty(&*cache).unwrap() {
            return match provider.snapshot(&*cache) {
                Ok(entry) => provider.load(&entry).unwrap(),
                Err(error) => {
                    assert_eq!(error.code(), Code::WrongState);
                    cache
                }
            };
        }
        let entry = provider.snapshot(&*cache).unwrap();
        let text = serde_json::to_string(&entry.header).unwrap();
        let header = serde_json::from_str(&text).unwrap();
        let tensors = if random.below(2) == 0 { entry.tensors } else { host(&entry.tensors) };
        assert_eq!(provider.header_trimmable(&entry.kind, &header).unwrap(), cache.can_forget(1));
        let loaded = provider.load(&Entry { kind: entry.kind, header, tensors }).unwrap();
        assert_eq!(loaded.signature(), cache.signature());
        self.least_reusable = self.least_reusable.min(self.history.len());
        assert_eq!(loaded.minimum_reusable_offset(), self.least_reusable);
        loaded
    }

    fn run(mut self, mut cache: Box<dyn LayerCache>, seed: u64, steps: usize) {
        let mut random = Random(seed);
        for _ in 0..steps {
            match random.below(20) {
                0..=6 => self.step(&mut *cache, 1, None),
                7..=10 => {
                    let count = 1 + random.below(12);
                    self.step(&mut *cache, count, None);
                }
                11 => {
                    let (count, asked) = (1 + random.below(4), 1 + random.below(12));
                    self.step(&mut *cache, count, Some(asked));
                }
                12 if self.history.len() < 200 => {
                    let count = 30 + random.below(300);
                    self.step(&mut *cache, count, None);
                }
                12..=14 => self.forget(&mut *cache, random.below(6)),
                15 if random.below(3) == 0 => {
                    let all = self.history.len();
                    self.forget(&mut *cache, all);
                }
                15..=16 => {
                    let mut other = cache.fork();
                    let junk: Vec<u32> = (0..1 + random.below(3) as u32).map(|id| 1_000_000 + id).collect();
                    if random.below(2) == 0 {
                        std::mem::swap(&mut cache, &mut other);
                    }
                    self.append(&mut *other, &junk);
                    assert_eq!(cache.offset(), self.history.len());
                }
                17 => {
                    if random.below(4) == 0
                        && let Some(converted) = self.convert(&*cache)
                    {
                        cache = converted;
                    }
                }
                _ => cache = self.reload(cache, &mut random),
            }
        }
        // All of it encoded in one go.
        let all = self.encode(&self.history);
        assert!(self.history.iter().zip(&all).all(|(id, column)| self.encoded[id] == *column));
    }
}

/// The same tensors in memory of the host.
fn host(tensors: &[Tensor]) -> Vec<Tensor> {
    let copied = |tensor: &Tensor| {
        let data: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(raw(&tensor.to_array().unwrap()));
        Tensor::Bytes { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), data }
    };
    tensors.iter().map(copied).collect()
}

/// What is stored of tokens stands for their numbers: within the rounding of the type, and for affine groups within one
/// step of the group.
fn assert_near(look: Look, ids: &[u32], quantised: Option<Affine>) {
    let floats = |array: &Array| prim::astype(array, Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
    let epsilon = match look.dtype {
        Dtype::Float16 => 1e-3,
        Dtype::Bfloat16 => 8e-3,
        _ => 1e-6,
    };
    let (keys, values) = (look.keys(ids), look.values(ids));
    let planes = quantised.map(|affine| affine.encode(&keys, &values).unwrap());
    for (index, (exact, is_keys)) in [(keys, true), (values, false)].into_iter().enumerate() {
        let numbers = look.numbers(ids, is_keys);
        let (found, steps) = match (&planes, quantised) {
            (Some(planes), Some(affine)) => {
                let [words, scales, biases] = &planes[3 * index..3 * index + 3] else { panic!() };
                let (group, bits) = (affine.group(), affine.bits());
                let found = prim::dequantize(words, scales, biases, group, bits).unwrap();
                let steps: Vec<f32> =
                    floats(scales).into_iter().flat_map(|scale| vec![scale.abs(); group as usize]).collect();
                (floats(&found), steps)
            }
            _ => (floats(&exact), vec![0.0; numbers.len()]),
        };
        assert_eq!((found.len(), steps.len()), (numbers.len(), numbers.len()));
        for ((found, step), number) in found.iter().zip(steps).zip(numbers) {
            let bound = f64::from(step) * (1.0 + 2.0 * epsilon) + 4.0 * epsilon;
            assert!((f64::from(*found) - number).abs() <= bound, "{found} for {number}, step {step}");
        }
    }
}

const SEEDS: u64 = 6;
const STEPS: usize = 60;

fn look(seed: u64) -> Look {
    let looks = [
        Look { heads: 2, key_dims: 64, value_dims: 32, dtype: Dtype::Float32 },
        Look { heads: 1, key_dims: 32, value_dims: 32, dtype: Dtype::Bfloat16 },
        Look { heads: 3, key_dims: 32, value_dims: 96, dtype: Dtype::Float16 },
    ];
    looks[seed as usize % looks.len()]
}

#[test]
fn plain_and_quantised_caches_keep_every_token() {
    for seed in 0..SEEDS {
        let look = look(seed);
        Model::new(look, None, None).run(Box::new(PlainCache::new()), seed, STEPS);
        for bits in [4, 8] {
            let cache = AffineCache::new(bits, 32).unwrap();
            Model::new(look, None, Some(affine(bits, 32))).run(Box::new(cache), seed, STEPS);
        }
    }
}

#[test]
fn caches_of_codes_keep_every_token() {
    let looks = [
        Look { heads: 2, key_dims: 64, value_dims: 128, dtype: Dtype::Float32 },
        Look { heads: 1, key_dims: 128, value_dims: 64, dtype: Dtype::Bfloat16 },
        Look { heads: 2, key_dims: 64, value_dims: 64, dtype: Dtype::Float16 },
    ];
    for seed in 0..SEEDS {
        let (key_bits, value_bits) = [(8, 3), (4, 4), (2, 8), (5, 5), (8, 2)][seed as usize % 5];
        let target = Precision::TurboQuant { key_bits, value_bits, deferred: seed % 2 == 1 };
        let mut model = Model { target, ..Model::new(looks[seed as usize % 3], None, None) };
        let mut cache: Box<dyn LayerCache> = Box::new(PlainCache::new());
        // Without tokens nothing tells what the codes are like.
        assert!(model.convert(&*cache).is_none());
        model.step(&mut *cache, 1 + seed as usize, None);
        cache = model.convert(&*cache).unwrap();
        model.run(cache, seed, STEPS / 2);
    }
}

#[test]
fn rotating_caches_keep_a_window() {
    for seed in 0..SEEDS {
        let look = look(seed);
        for (window, keep) in [(1, 0), (2, 1), (8, 0), (8, 2), (9, 8), (40, 4), (300, 0)] {
            let cache = RotatingCache::new(window, keep).unwrap();
            Model::new(look, Some((window, keep)), None).run(Box::new(cache), seed, STEPS);
            let cache = RotatingAffineCache::new(window, keep, 4, 32).unwrap();
            let model = Model::new(look, Some((window, keep)), Some(affine(4, 32)));
            model.run(Box::new(cache), seed + 100, STEPS / 2);
        }
    }
}

#[test]
fn paged_caches_keep_every_token() {
    for seed in 0..SEEDS {
        let look = look(seed);
        for (block, capacity) in [(1, 10), (4, 0), (7, 500), (256, 100)] {
            for quantised in [None, Some(affine(4, 32)), Some(affine(8, 32))] {
                let cache = PagedCache::new(PagedForm { block, capacity, limit: None, quantised }).unwrap();
                Model::new(look, None, quantised).run(Box::new(cache), seed, STEPS / 4);
            }
        }
    }
}

#[test]
fn latent_caches_keep_every_token() {
    for seed in 0..SEEDS {
        for (role, index) in
            [(LatentRole::Target, None), (LatentRole::TargetWithIndex, Some(5)), (LatentRole::Draft, None)]
        {
            let dims = LatentDims { latent: 24, rope: 8, index };
            let cache = LatentCache::new(role, dims).unwrap();
            let model = Model { latent: Some(dims), ..Model::new(look(seed), None, None) };
            model.run(Box::new(cache), seed, STEPS);
        }
    }
}

#[test]
fn recurrent_caches_hold_the_last_states() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let slots = 1 + random.below(4);
        let mut cache: Box<dyn LayerCache> = Box::new(RecurrentCache::new(slots));
        let mut model: Vec<Option<Vec<f32>>> = vec![None; slots];
        let mut offset = 0;
        for _ in 0..STEPS {
            match random.below(6) {
                0..=2 => {
                    let (slot, number) = (random.below(slots), random.below(1000) as f32);
                    let state = vec![number, number / 7.0, -number];
                    let array = Array::from_slice(&state, &[1, 3]).unwrap();
                    let inner: &mut RecurrentCache = of_kind(&mut *cache).unwrap();
                    inner.set(slot, array).unwrap();
                    inner.advance(2);
                    offset += 2;
                    model[slot] = Some(state);
                }
                3 => assert_eq!(cache.forget(1 + random.below(3)), 0),
                4 => {
                    let mut other = cache.fork();
                    std::mem::swap(&mut cache, &mut other);
                    let inner: &mut RecurrentCache = of_kind(&mut *other).unwrap();
                    inner.set(0, Array::scalar(-1.0).unwrap()).unwrap();
                }
                _ => {
                    let provider = Provider::built_in();
                    match provider.snapshot(&*cache) {
                        Ok(entry) => {
                            let tensors = host(&entry.tensors);
                            cache = provider.load(&Entry { tensors, ..entry }).unwrap();
                        }
                        Err(error) => {
                            assert_eq!(error.code(), Code::WrongState);
                            assert!(model.iter().all(Option::is_none));
                        }
                    }
                }
            }
            let inner: &mut RecurrentCache = of_kind(&mut *cache).unwrap();
            let found: Vec<Option<Vec<f32>>> =
                inner.slots().iter().map(|slot| slot.as_ref().map(|array| array.to_vec().unwrap())).collect();
            assert_eq!((found, inner.offset()), (model.clone(), offset));
        }
    }
}

#[test]
fn lists_are_their_parts() {
    let look = Look::SMALL;
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let parts: Vec<Box<dyn LayerCache>> =
            vec![Box::new(PlainCache::new()), Box::new(RotatingCache::new(8, 1).unwrap())];
        let mut twins: Vec<Box<dyn LayerCache>> = parts.iter().map(|part| part.fork()).collect();
        let mut list: Box<dyn LayerCache> = Box::new(CompositeCache::new(parts).unwrap());
        for step in 0..STEPS as u32 {
            match random.below(8) {
                0..=3 => {
                    let ids: Vec<u32> = (0..1 + random.below(3) as u32).map(|at| step * 4 + at).collect();
                    let inner: &mut CompositeCache = of_kind(&mut *list).unwrap();
                    for (part, twin) in inner.parts_mut().iter_mut().zip(&mut twins) {
                        assert_eq!(look.append(&mut **part, &ids), look.append(&mut **twin, &ids));
                    }
                }
                4..=5 => {
                    let count = random.below(3);
                    let possible = twins.iter().all(|twin| twin.can_forget(count));
                    let dropped = list.forget(count);
                    assert_eq!(dropped > 0, possible && count > 0 && twins[0].offset() > 0);
                    twins.iter_mut().for_each(|twin| assert_eq!(twin.forget(dropped), dropped));
                }
                6 => list = list.fork(),
                _ => {
                    let provider = Provider::built_in();
                    if !provider.is_empty(&*list).unwrap() {
                        let entry = provider.snapshot(&*list).unwrap();
                        let trimmable = provider.header_trimmable("list", &entry.header).unwrap();
                        assert_eq!(trimmable, list.can_forget(1));
                        list = provider.load(&entry).unwrap();
                    }
                }
            }
            let inner: &mut CompositeCache = of_kind(&mut *list).unwrap();
            for (part, twin) in inner.parts().iter().zip(&twins) {
                assert_eq!((part.offset(), part.signature()), (twin.offset(), twin.signature()));
            }
        }
    }
}

#[test]
fn u03_a_copy_keeps_the_row_that_the_original_trims() {
    let look = look(0);
    let form = PagedForm { block: 4, capacity: 20, limit: None, quantised: None };
    let kinds: Vec<(Box<dyn LayerCache>, Option<Affine>)> = vec![
        (Box::new(PlainCache::new()), None),
        (Box::new(AffineCache::new(8, 32).unwrap()), Some(affine(8, 32))),
        (Box::new(RotatingCache::new(16, 0).unwrap()), None),
        (Box::new(RotatingAffineCache::new(16, 2, 4, 32).unwrap()), Some(affine(4, 32))),
        (Box::new(PagedCache::new(form).unwrap()), None),
    ];
    for (mut cache, quantised) in kinds {
        let before: Vec<u32> = (0..11).collect();
        look.append(&mut *cache, &before[..10]);
        look.append(&mut *cache, &before[10..]);
        let mut copy = cache.fork();
        assert_eq!(cache.forget(1), 1);
        let original = [&before[..10], &[50]].concat();
        assert_eq!(look.append(&mut *cache, &[50]), look.expected(&original, quantised));
        let copied = [&before[..], &[11]].concat();
        assert_eq!(look.append(&mut *copy, &[11]), look.expected(&copied, quantised));
    }
}
