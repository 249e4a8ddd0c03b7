//! Keys and values in affine groups.

use super::test_support::{Look, affine, columns};
use super::{AffineCache, LayerCache, PlainCache, Precision};
use crate::base::Code;
use crate::mlx::ops::{self, KeysValues};
use crate::mlx::{Dtype, Mask, prim};

fn ids(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

#[test]
fn two_pieces_are_one_and_trimmed_columns_are_overwritten() {
    for (bits, group) in [(4, 32), (8, 32), (4, 64), (8, 64)] {
        let look = Look { key_dims: 128, ..Look::WIDE };
        let mut cache = AffineCache::new(bits, group).unwrap();
        look.append(&mut cache, &ids(0, 5));
        let found = look.append(&mut cache, &ids(5, 9));
        assert_eq!(found, look.expected(&ids(0, 9), Some(affine(bits, group))));
        assert_eq!(cache.forget(3), 3);
        let again: Vec<u32> = ids(0, 6).into_iter().chain(50..53).collect();
        assert_eq!(look.append(&mut cache, &ids(50, 53)), look.expected(&again, Some(affine(bits, group))));
    }
}

#[test]
fn b69_keys_and_values_of_unequal_sizes_across_the_steps_of_growth() {
    for bits in [4, 8] {
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            let look = Look { dtype, ..Look::WIDE };
            let mut cache = AffineCache::new(bits, 32).unwrap();
            let mut end = 0;
            for count in [255, 1, 1, 300] {
                let found = look.append(&mut cache, &ids(end, end + count));
                end += count;
                assert!(found == look.expected(&ids(0, end), Some(affine(bits, 32))), "{bits} {end}");
            }
            cache.forget(5);
            let found = look.append(&mut cache, &ids(552, 557));
            assert!(found == look.expected(&ids(0, 557), Some(affine(bits, 32))));
            let read = cache.append(&look.keys(&[9]), &look.values(&[9])).unwrap();
            let KeysValues::Affine { keys: [words, scales, biases], .. } = read else { panic!() };
            assert_eq!((words.dtype(), words.dim(3)), (Dtype::Uint32, 96 * bits as i32 / 32));
            assert_eq!((scales.dtype(), scales.dim(3)), (dtype, 3));
            assert_eq!((biases.dtype(), biases.dim(3)), (dtype, 3));
        }
    }
}

#[test]
fn b68_heads_that_do_not_fall_into_groups_are_refused_before_anything_changes() {
    for (bits, group, field) in [(7, 64, "bits"), (2, 64, "bits"), (4, 48, "group"), (8, 0, "group")] {
        let error = AffineCache::new(bits, group).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(error.detail().field.as_deref(), Some(field));
    }
    let look = Look { key_dims: 96, value_dims: 96, ..Look::WIDE };
    look.append(&mut AffineCache::new(4, 32).unwrap(), &[1]);
    for (dims, group) in [(80, 64), (96, 64), (80, 32)] {
        let look = Look { key_dims: dims, value_dims: 64, ..Look::WIDE };
        let mut cache = AffineCache::new(4, group).unwrap();
        let error = cache.append(&look.keys(&[1]), &look.values(&[1])).unwrap_err();
        assert_eq!(error.code(), Code::Unsupported);
        assert!(error.message().contains(&format!("size {dims}")), "{error}");
        assert_eq!((cache.offset(), cache.bytes()), (0, 0));
        let mut plain = PlainCache::new();
        look.append(&mut plain, &[1, 2]);
        let error = plain.encoded(Precision::Affine { bits: 4, group }).err().unwrap();
        assert_eq!(error.code(), Code::Unsupported);
        assert_eq!(plain.offset(), 2);
    }
    assert!(affine(4, 32).check_head(96).is_ok());
    assert_eq!(affine(4, 64).check_head(80).unwrap_err().code(), Code::Unsupported);
}

#[test]
fn u04_a_running_cache_is_quantised_as_if_it_had_been_from_the_start() {
    let look = Look::WIDE;
    let mut plain = PlainCache::new();
    look.append(&mut plain, &ids(0, 300));
    plain.forget(10);
    let mut cache = plain.encoded(Precision::Affine { bits: 8, group: 32 }).unwrap().unwrap();
    assert_eq!(cache.signature().to_string(), "kv:quant:8:32");
    assert_eq!((cache.offset(), plain.offset()), (290, 290));
    // Room for the tokens to come is converted, too.
    assert_eq!(cache.state().unwrap()[0].dim(2), 512);
    let found = look.append(&mut *cache, &ids(290, 320));
    assert!(found == look.expected(&ids(0, 320), Some(affine(8, 32))));
    assert!(cache.encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().is_none());
    let mut empty = PlainCache::new().encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().unwrap();
    assert_eq!(look.append(&mut *empty, &[3]), look.expected(&[3], Some(affine(4, 32))));
}

#[test]
fn attention_over_groups_is_near_that_over_numbers() {
    let look = Look { key_dims: 64, ..Look::WIDE };
    let queries = Look { heads: 4, ..look }.keys(&[70, 71]);
    let mut plain = PlainCache::new();
    let mut cache = AffineCache::new(8, 32).unwrap();
    let mut answers = Vec::new();
    for cache in [&mut plain as &mut dyn LayerCache, &mut cache] {
        look.append(cache, &ids(0, 20));
        let mask = cache.mask(2, None).unwrap();
        assert!(matches!(mask, Mask::Causal));
        let read = cache.append(&look.keys(&[20, 21]), &look.values(&[20, 21])).unwrap();
        let attended = ops::attention(&queries, &read, 0.125, &mask).unwrap();
        answers.push(prim::contiguous(&attended).unwrap().to_vec::<f32>().unwrap());
    }
    for (exact, near) in answers[0].iter().zip(&answers[1]) {
        assert!((exact - near).abs() < 0.05, "{exact} and {near}");
    }
}

#[test]
fn views_and_forks_keep_their_values() {
    let look = Look::WIDE;
    let mut cache = AffineCache::new(4, 32).unwrap();
    look.append(&mut cache, &ids(0, 10));
    let early = cache.append(&look.keys(&[10]), &look.values(&[10])).unwrap();
    let mut fork = cache.fork();
    cache.forget(1);
    look.append(&mut cache, &[99]);
    assert_eq!(columns(&early), look.expected(&ids(0, 11), Some(affine(4, 32))));
    assert_eq!(look.append(&mut *fork, &[11]), look.expected(&ids(0, 12), Some(affine(4, 32))));
}
