//! Windows of tokens against a list of all tokens.

use super::test_support::{Look, affine, attended, plane_columns, seen};
use super::{LayerCache, Precision, RotatingAffineCache, RotatingCache};
use crate::base::Code;
use crate::mlx::ops::KeysValues;
use crate::mlx::{Array, Mask};

const LOOK: Look = Look::SMALL;

/// The tokens in a cache's columns as they lie, 0 for columns of zeros.
fn physical(cache: &dyn LayerCache) -> Vec<u32> {
    let known = LOOK.expected(&(0..200).collect::<Vec<_>>(), None);
    let name = |column: &Vec<u8>| known.iter().position(|known| known == column).unwrap_or(0) as u32;
    plane_columns(&cache.state().unwrap()).iter().map(name).collect()
}

/// What the query of each of these tokens sees, in the order of their numbers.
fn see(cache: &mut dyn LayerCache, ids: &[u32], window: Option<usize>) -> Vec<Vec<u32>> {
    let known = LOOK.expected(&(0..200).collect::<Vec<_>>(), None);
    let name = |column: &Vec<u8>| known.iter().position(|known| known == column).unwrap() as u32;
    let rows = attended(cache, LOOK, ids, window);
    let named = rows.iter().map(|row| {
        let mut names: Vec<u32> = row.iter().map(name).collect();
        names.sort();
        names
    });
    named.collect()
}

fn filled(window: usize, keep: usize, ids: impl IntoIterator<Item = u32>) -> RotatingCache {
    let mut cache = RotatingCache::new(window, keep).unwrap();
    for id in ids {
        LOOK.append(&mut cache, &[id]);
    }
    cache
}

#[test]
fn columns_lie_as_in_the_specification() {
    let mut cache = filled(4, 0, 1..=6);
    assert_eq!((physical(&cache), cache.ring.index()), (vec![5, 6, 3, 4], 2));
    LOOK.append(&mut cache, &[7, 8, 9]);
    assert_eq!((physical(&cache), cache.offset()), (vec![4, 5, 6, 7, 8, 9], 9));
    LOOK.append(&mut cache, &[10]);
    assert_eq!((physical(&cache), cache.ring.index()), (vec![10, 7, 8, 9], 1));
}

#[test]
fn b60_what_was_overwritten_cannot_be_trimmed() {
    let mut cache = filled(8, 0, 0..20);
    assert!(!cache.can_forget(3));
    assert!(cache.can_forget(0));
    assert_eq!((cache.forget(3), cache.offset()), (0, 20));
    assert_eq!(see(&mut cache, &[100], None), [[13, 14, 15, 16, 17, 18, 19, 100]]);
    // Before the first is overwritten it can, and not from the moment on when the window is full.
    let mut cache = filled(8, 0, 0..5);
    assert_eq!((cache.forget(2), cache.offset(), cache.ring.index()), (2, 3, 3));
    assert_eq!(see(&mut cache, &[50], None), [[0, 1, 2, 50]]);
    let mut cache = filled(8, 0, 0..8);
    assert_eq!((cache.can_forget(1), cache.forget(1), cache.offset()), (false, 0, 8));
}

#[test]
fn u02_a_trim_takes_no_more_than_there_is() {
    let mut cache = filled(16, 0, 0..10);
    assert_eq!((cache.forget(7), cache.forget(4), cache.forget(4)), (7, 3, 0));
    assert_eq!(see(&mut cache, &[30, 31], None), [vec![30], vec![30, 31]]);
}

#[test]
fn b62_kept_tokens_stay_whatever_comes() {
    let mut cache = filled(8, 2, 0..20);
    assert_eq!(cache.offset(), 20);
    let mut copy = cache.fork();
    assert_eq!(see(&mut *copy, &[20], None), [[0, 1, 15, 16, 17, 18, 19, 20]]);
    // The reference hides kept tokens from all but the first query of a piece.
    let rows = see(&mut cache, &[20, 21, 22], None);
    assert_eq!(rows[0], [0, 1, 15, 16, 17, 18, 19, 20]);
    assert_eq!(rows[1], [0, 1, 16, 17, 18, 19, 20, 21]);
    assert_eq!(rows[2], [0, 1, 17, 18, 19, 20, 21, 22]);
    assert_eq!(see(&mut cache, &[23], None), [[0, 1, 18, 19, 20, 21, 22, 23]]);
    // A narrower window counts the kept tokens in.
    let mut narrow = cache.fork();
    assert_eq!(see(&mut *narrow, &[24], Some(4)), [[0, 1, 23, 24]]);
    assert_eq!(see(&mut cache, &[24, 25], Some(4)), [[0, 1, 23, 24], [0, 1, 24, 25]]);
    assert_eq!(see(&mut cache, &[26], Some(1)), [[0, 1, 26]]);
}

#[test]
fn b63_every_fill_leaves_the_same_window() {
    let fills: [&[usize]; 4] = [&[1; 8], &[8], &[5, 3], &[20]];
    for fill in fills {
        let mut cache = RotatingCache::new(8, 0).unwrap();
        let mut next = 0;
        for count in fill {
            let ids: Vec<u32> = (next..next + *count as u32).collect();
            for (id, row) in ids.iter().zip(see(&mut cache, &ids, None)) {
                assert_eq!(row, (id.saturating_sub(7)..=*id).collect::<Vec<_>>(), "{fill:?}");
            }
            next += *count as u32;
        }
        let block: Vec<u32> = (next..next + 3).collect();
        let mask = cache.mask(3, None).unwrap();
        let Mask::Array(array) = &mask else { panic!("a band is an array") };
        assert_eq!(array.shape(), [3, 10]);
        assert!(seen(&mask, 3, 10).iter().all(|row| row.iter().filter(|seen| **seen).count() == 8));
        for (id, row) in block.iter().zip(see(&mut cache, &block, None)) {
            assert_eq!(row, (id - 7..=*id).collect::<Vec<_>>());
        }
        next += 3;
        assert_eq!(see(&mut cache, &[next], None), [(next - 7..=next).collect::<Vec<_>>()]);
    }
    for (window, keep, field) in [(8, 8, "keep"), (8, 9, "keep"), (1, 1, "keep"), (0, 0, "window")] {
        let error = RotatingCache::new(window, keep).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(error.detail().field.as_deref(), Some(field));
        assert!(RotatingAffineCache::new(window, keep, 8, 64).is_err());
    }
    let mut one = RotatingCache::new(1, 0).unwrap();
    assert_eq!(see(&mut one, &[1], None), [[1]]);
    assert_eq!(see(&mut one, &[2, 3], None), [[2], [3]]);
    assert_eq!(see(&mut one, &[4], None), [[4]]);
}

#[test]
fn b64_every_query_of_a_prompt_longer_than_the_window_sees_its_own_window() {
    for chunk in [1, 3, 8, 9, 16, 40] {
        let mut cache = RotatingCache::new(8, 0).unwrap();
        let prompt: Vec<u32> = (0..40).collect();
        for ids in prompt.chunks(chunk) {
            for (id, row) in ids.iter().zip(see(&mut cache, ids, Some(8))) {
                assert_eq!(row, (id.saturating_sub(7)..=*id).collect::<Vec<_>>(), "chunk {chunk}");
            }
        }
        for id in 40..50 {
            assert_eq!(see(&mut cache, &[id], Some(8)), [(id - 7..=id).collect::<Vec<_>>()]);
        }
    }
}

#[test]
fn narrower_and_wider_windows_than_the_ring() {
    let mut cache = RotatingCache::new(8, 0).unwrap();
    for id in 0..30u32 {
        let expected: Vec<u32> = (id.saturating_sub(2)..=id).collect();
        assert_eq!(see(&mut cache, &[id], Some(3)), [expected]);
    }
    assert_eq!(see(&mut cache, &[30, 31], Some(3)), [[28, 29, 30], [29, 30, 31]]);
    assert_eq!(see(&mut cache, &[32], Some(3)), [[30, 31, 32]]);
    // The ring's own window holds for pieces as it does for single tokens.
    let rows = see(&mut cache, &[33, 34], Some(100));
    assert_eq!(rows, [(26..=33).collect::<Vec<_>>(), (27..=34).collect()]);
}

#[test]
fn rings_grow_in_steps_up_to_the_window() {
    let capacity = |cache: &RotatingCache| cache.state().unwrap()[0].dim(2);
    let mut cache = filled(300, 0, [1]);
    assert_eq!(capacity(&cache), 256);
    LOOK.append(&mut cache, &(2..256).collect::<Vec<_>>());
    // A piece leaves exactly its tokens, then one step follows.
    assert_eq!(capacity(&cache), 255);
    LOOK.append(&mut cache, &[0]);
    assert_eq!((capacity(&cache), cache.offset()), (300, 256));
    assert_eq!(cache.bytes(), 300 * 2 * (4 + 3) * 4);
}

#[test]
fn b66_a_window_is_quantised_where_it_lies() {
    let look = Look::WIDE;
    let ids = |from: u32, to: u32| (from..to).collect::<Vec<_>>();
    for (keep, before) in [(0, 12), (2, 20), (2, 5), (0, 8)] {
        let mut plain = RotatingCache::new(8, keep).unwrap();
        ids(0, before).iter().for_each(|&id| drop(look.append(&mut plain, &[id])));
        let mut cache = plain.encoded(Precision::Affine { bits: 8, group: 32 }).unwrap().unwrap();
        assert_eq!(cache.signature().to_string(), "kv:rotating-quant:8:32");
        let mut from_start = RotatingAffineCache::new(8, keep, 8, 32).unwrap();
        ids(0, before).iter().for_each(|&id| drop(look.append(&mut from_start, &[id])));
        assert!(cache.encoded(Precision::Affine { bits: 4, group: 32 }).unwrap().is_none());
        for piece in [ids(before, before + 1), ids(before + 1, before + 4), ids(before + 4, before + 5)] {
            let rows = attended(&mut *cache, look, &piece, None);
            assert_eq!(rows, attended(&mut from_start, look, &piece, None));
            let exact = attended(&mut plain, look, &piece, None);
            assert_eq!(
                rows.iter().map(Vec::len).collect::<Vec<_>>(),
                exact.iter().map(Vec::len).collect::<Vec<_>>()
            );
            for (id, row) in piece.iter().zip(rows) {
                let latest = (id + 1).saturating_sub(8 - keep as u32).max(keep as u32);
                let expected = [ids(0, keep as u32), ids(latest, id + 1)].concat();
                let expected = look.expected(&expected, Some(affine(8, 32)));
                assert!(row.len() == expected.len() && expected.iter().all(|column| row.contains(column)));
            }
        }
    }
    // Rotating layers stay as they are where there is no form for them.
    let plain = RotatingCache::new(8, 0).unwrap();
    let turbo = Precision::TurboQuant { key_bits: 8, value_bits: 4, deferred: false };
    assert!(plain.encoded(turbo).unwrap().is_none());
}

#[test]
fn a_failed_append_changes_nothing() {
    let mut cache = filled(4, 1, 0..6);
    let wide = Array::from_slice(&[0f32; 10], &[1, 2, 1, 5]).unwrap();
    assert!(cache.append(&wide, &wide).is_err());
    let none = Array::from_slice::<f32>(&[], &[1, 2, 0, 4]).unwrap();
    assert!(cache.append(&none, &none).is_err());
    assert_eq!(see(&mut cache, &[6], None), [[0, 4, 5, 6]]);
}

#[test]
fn views_and_forks_keep_their_values() {
    let mut cache = filled(4, 0, 0..6);
    let early = cache.append(&LOOK.keys(&[6]), &LOOK.values(&[6])).unwrap();
    let KeysValues::Plain { keys, .. } = early else { panic!() };
    let before = keys.to_vec::<f32>().unwrap();
    let mut fork = cache.fork();
    for id in 50..60 {
        LOOK.append(&mut cache, &[id]);
    }
    assert_eq!(keys.to_vec::<f32>().unwrap(), before);
    assert_eq!(see(&mut *fork, &[7], None), [[4, 5, 6, 7]]);
}
