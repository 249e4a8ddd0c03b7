//! Recurrent states, compressed keys and values, lists of caches, and states that are good for so many tokens.

use super::test_support::{Look, plane_columns};
use super::{
    CompositeCache, LatentCache, LatentDims, LatentRole, LayerCache, PlainCache, Precision, RecurrentCache,
    RotatingCache, of_kind, reusable_from,
};
use crate::base::Code;
use crate::mlx::{Array, Mask};

const LOOK: Look = Look::SMALL;

#[test]
fn recurrent_states_are_replaced_and_never_trimmed() {
    let mut cache = RecurrentCache::new(2);
    assert_eq!((cache.offset(), cache.bytes(), cache.state().unwrap().len()), (0, 0, 0));
    cache.set(1, Array::from_slice(&[1f32, 2.0], &[1, 2]).unwrap()).unwrap();
    cache.advance(5);
    assert_eq!((cache.offset(), cache.bytes(), cache.signature().to_string()), (5, 8, "ssm".into()));
    assert!(cache.slots()[0].is_none());
    let fork = cache.fork();
    cache.set(1, Array::from_slice(&[3f32, 4.0], &[1, 2]).unwrap()).unwrap();
    assert_eq!(fork.state().unwrap()[0].to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(cache.state().unwrap()[0].to_vec::<f32>().unwrap(), [3.0, 4.0]);
    assert_eq!((cache.can_forget(1), cache.forget(1), cache.offset()), (false, 0, 5));
    assert!(cache.can_forget(0));
    assert!(matches!(cache.mask(7, None).unwrap(), Mask::None));
    assert!(cache.set(2, Array::scalar(0.0).unwrap()).is_err());
    assert_eq!(cache.append(&LOOK.keys(&[1]), &LOOK.values(&[1])).unwrap_err().code(), Code::Internal);
    assert!(cache.encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().is_none());
}

fn part(size: usize, ids: &[u32]) -> Array {
    Look { heads: 1, key_dims: size, ..LOOK }.keys(ids)
}

#[test]
fn latent_parts_grow_together() {
    for (role, index) in
        [(LatentRole::Target, None), (LatentRole::TargetWithIndex, Some(3)), (LatentRole::Draft, None)]
    {
        let mut cache = LatentCache::new(role, LatentDims { latent: 6, rope: 4, index }).unwrap();
        let mut all: Vec<u32> = Vec::new();
        for count in [1, 2, 255, 3] {
            let new: Vec<u32> = (all.len() as u32..all.len() as u32 + count).collect();
            all.extend(&new);
            let indexed = index.map(|size| part(size, &new));
            let found = cache.append_parts(&part(6, &new), &part(4, &new), indexed.as_ref()).unwrap();
            assert_eq!(plane_columns(&[found.latent]), plane_columns(&[part(6, &all)]));
            assert_eq!(plane_columns(&[found.rope]), plane_columns(&[part(4, &all)]));
            assert_eq!(found.index.is_some(), index.is_some());
            if let (Some(found), Some(size)) = (found.index, index) {
                assert_eq!(plane_columns(&[found]), plane_columns(&[part(size, &all)]));
            }
        }
        assert_eq!((cache.forget(5), cache.offset()), (5, 256));
        assert!(matches!(cache.mask(2, None).unwrap(), Mask::Causal));
        let narrow = part(5, &[1]);
        let indexed = index.map(|size| part(size, &[1]));
        assert!(cache.append_parts(&narrow, &part(4, &[1]), indexed.as_ref()).is_err());
        let wrong = if index.is_some() { None } else { Some(part(3, &[1])) };
        assert!(cache.append_parts(&part(6, &[1]), &part(4, &[1]), wrong.as_ref()).is_err());
        assert!(cache.append(&part(6, &[1]), &part(4, &[1])).is_err());
        assert_eq!(cache.offset(), 256);
    }
    assert!(LatentCache::new(LatentRole::Draft, LatentDims { latent: 1, rope: 1, index: Some(1) }).is_err());
    assert!(LatentCache::new(LatentRole::Target, LatentDims { latent: 0, rope: 1, index: None }).is_err());
}

#[test]
fn lists_forget_only_what_all_parts_can() {
    let parts: Vec<Box<dyn LayerCache>> =
        vec![Box::new(PlainCache::new()), Box::new(RotatingCache::new(4, 0).unwrap())];
    let mut list = CompositeCache::new(parts).unwrap();
    assert!(CompositeCache::new(Vec::new()).is_err());
    for id in 0..3 {
        list.parts_mut().iter_mut().for_each(|part| drop(LOOK.append(&mut **part, &[id])));
    }
    assert_eq!(list.signature().to_string(), "list(kv:plain,kv:rotating-plain)");
    assert_eq!((list.forget(1), list.offset(), list.parts()[1].offset()), (1, 2, 2));
    let mut fork = list.fork();
    for id in 3..5 {
        list.parts_mut().iter_mut().for_each(|part| drop(LOOK.append(&mut **part, &[id])));
    }
    assert_eq!((list.can_forget(1), list.forget(1), list.offset()), (false, 0, 4));
    assert_eq!((fork.forget(9), fork.offset()), (2, 0));
    assert_eq!(list.state().unwrap().len(), 4);
    assert!(list.append(&LOOK.keys(&[1]), &LOOK.values(&[1])).is_err());
    let mixed: Vec<Box<dyn LayerCache>> =
        vec![Box::new(RecurrentCache::new(1)), Box::new(RotatingCache::new(4, 0).unwrap())];
    let list = CompositeCache::new(mixed).unwrap();
    let encoded = list.encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().unwrap();
    assert_eq!(encoded.signature().to_string(), "list(ssm,kv:rotating-quant:4:32)");
    let fixed = CompositeCache::new(vec![Box::new(RecurrentCache::new(1))]).unwrap();
    assert!(fixed.encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().is_none());
}

#[test]
fn a_least_reusable_offset_stays_with_the_state() {
    let mut cache = reusable_from(Box::new(PlainCache::new()), 7);
    let look = Look::WIDE;
    look.append(&mut *cache, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!((cache.minimum_reusable_offset(), cache.offset(), cache.forget(1)), (7, 9, 1));
    assert_eq!(cache.fork().minimum_reusable_offset(), 7);
    let encoded = cache.encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().unwrap();
    assert_eq!(
        (encoded.minimum_reusable_offset(), encoded.signature().to_string()),
        (7, "kv:quant:4:32".into())
    );
    assert!(of_kind::<PlainCache>(&mut *cache).is_ok());
    assert_eq!(cache.signature().to_string(), "kv:plain");
    assert_eq!(reusable_from(cache, 3).minimum_reusable_offset(), 7);
    let list = CompositeCache::new(vec![
        reusable_from(Box::new(PlainCache::new()), 2),
        reusable_from(Box::new(PlainCache::new()), 4),
    ]);
    assert_eq!(list.unwrap().minimum_reusable_offset(), 4);
}
