//! Keys and values in blocks against those in one piece.

use super::test_support::{Look, affine};
use super::{AffineCache, LayerCache, PagedCache, PagedForm, PlainCache};
use crate::base::Code;

const LOOK: Look = Look::SMALL;
const FORM: PagedForm = PagedForm { block: 4, capacity: 12, limit: None, quantised: None };

fn ids(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

fn paged(form: PagedForm) -> PagedCache {
    PagedCache::new(form).unwrap()
}

/// Every block is in the table or free, and none is both.
fn assert_whole(cache: &PagedCache) {
    let pool = cache.pool();
    assert_eq!(pool.free_blocks() + cache.table().len(), pool.blocks());
    assert_eq!(cache.table().len(), cache.offset().div_ceil(cache.form().block));
    let mut used = cache.table().to_vec();
    used.sort();
    used.dedup();
    assert_eq!(used.len(), cache.table().len());
    assert!(used.iter().all(|&block| (block as usize) < pool.blocks()));
}

fn paged_of(cache: &dyn LayerCache) -> &PagedCache {
    cache.as_any().downcast_ref().unwrap()
}

#[test]
fn blocks_are_handed_out_from_the_lowest_and_come_back() {
    let mut cache = paged(FORM);
    for from in [0, 3, 6] {
        let found = LOOK.append(&mut cache, &ids(from, from + 3));
        assert_eq!(found, LOOK.expected(&ids(0, from + 3), None));
        assert_whole(&cache);
    }
    assert_eq!(cache.table(), [0, 1, 2]);
    assert_eq!((cache.forget(5), cache.offset(), cache.table()), (5, 4, &[0][..]));
    assert_eq!(cache.pool().free_blocks(), 2);
    let mixed: Vec<u32> = ids(0, 4).into_iter().chain(40..46).collect();
    assert_eq!(LOOK.append(&mut cache, &ids(40, 46)), LOOK.expected(&mixed, None));
    // The block that was freed last is the first to be used again.
    assert_eq!(cache.table(), [0, 1, 2]);
    assert_whole(&cache);
}

#[test]
fn any_block_size_gives_the_bits_of_one_piece() {
    for block in [1, 2, 3, 7, 256] {
        for quantised in [None, Some(affine(4, 32)), Some(affine(8, 32))] {
            let look = if quantised.is_some() { Look::WIDE } else { LOOK };
            let mut cache = paged(PagedForm { block, capacity: 5, limit: None, quantised });
            let mut straight: Box<dyn LayerCache> = match quantised {
                None => Box::new(PlainCache::new()),
                Some(affine) => Box::new(AffineCache::new(affine.bits(), affine.group()).unwrap()),
            };
            let mut end = 0;
            for count in [1, 5, 1, 9, 2, 300, 1] {
                let new = ids(end, end + count);
                assert!(look.append(&mut cache, &new) == look.append(&mut *straight, &new), "{block} {end}");
                end += count;
                assert_whole(&cache);
            }
        }
    }
}

#[test]
fn pools_are_made_for_the_capacity_and_grow_by_half() {
    let mut cache = paged(PagedForm { capacity: 13, ..FORM });
    assert_eq!(cache.bytes(), 0);
    let mut sizes = Vec::new();
    for id in 0..60 {
        LOOK.append(&mut cache, &[id]);
        sizes.push(cache.pool().blocks());
    }
    sizes.dedup();
    assert_eq!(sizes, [4, 6, 9, 14, 21]);
    assert_eq!(cache.bytes(), 21 * 4 * 2 * (4 + 3) * 4);
    // Blocks that were free before the pool grew come first.
    let mut cache = paged(FORM);
    LOOK.append(&mut cache, &ids(0, 5));
    assert_eq!((cache.table(), cache.pool().free_blocks()), (&[0, 1][..], 1));
    LOOK.append(&mut cache, &ids(5, 15));
    assert_eq!((cache.table(), cache.pool().blocks()), (&[0, 1, 2, 3][..], 5));
    assert_eq!((cache.forget(4), cache.table()), (4, &[0, 1, 2][..]));
    // One block more than none, and as many as a piece needs.
    let mut cache = paged(PagedForm { capacity: 0, ..FORM });
    LOOK.append(&mut cache, &ids(0, 30));
    assert_eq!(cache.pool().blocks(), 8);
}

#[test]
fn b74_forks_write_blocks_of_their_own() {
    let mut a = paged(FORM);
    LOOK.append(&mut a, &ids(1, 11));
    let mut b = a.fork();
    LOOK.append(&mut a, &ids(50, 53));
    assert_whole(&a);
    assert_eq!(a.forget(13), 13);
    assert_eq!(a.pool().free_blocks(), a.pool().blocks());
    drop(a);
    let mut c = paged(FORM);
    LOOK.append(&mut c, &ids(90, 100));
    let mut so_far = ids(1, 11);
    for id in 11..21 {
        so_far.push(id);
        assert_eq!(LOOK.append(&mut *b, &[id]), LOOK.expected(&so_far, None));
        assert_whole(paged_of(&*b));
    }
}

#[test]
fn b76_old_blocks_are_not_read_and_a_branch_inside_a_block_copies_it() {
    let mut cache = paged(FORM);
    LOOK.append(&mut cache, &ids(0, 11));
    assert_eq!(cache.forget(100), 11);
    assert_eq!(LOOK.append(&mut cache, &ids(60, 62)), LOOK.expected(&ids(60, 62), None));
    assert_whole(&cache);
    // Six of the eight tokens of two blocks.
    let mut stored = paged(FORM);
    LOOK.append(&mut stored, &ids(0, 8));
    let mut branch = stored.fork();
    assert_eq!(branch.forget(2), 2);
    let expected: Vec<u32> = ids(0, 6).into_iter().chain(70..75).collect();
    assert_eq!(LOOK.append(&mut *branch, &ids(70, 75)), LOOK.expected(&expected, None));
    assert_eq!(LOOK.append(&mut stored, &[8]), LOOK.expected(&ids(0, 9), None));
    assert_whole(&stored);
    assert_whole(paged_of(&*branch));
}

#[test]
fn b76_a_full_pool_is_an_error_before_anything_changes() {
    let mut cache = paged(PagedForm { limit: Some(12), ..FORM });
    let mut other = paged(FORM);
    LOOK.append(&mut cache, &ids(0, 10));
    LOOK.append(&mut other, &ids(0, 10));
    let error = cache.append(&LOOK.keys(&ids(10, 13)), &LOOK.values(&ids(10, 13))).unwrap_err();
    assert_eq!(error.code(), Code::OutOfMemory);
    assert_eq!((cache.offset(), cache.table()), (10, &[0, 1, 2][..]));
    assert_whole(&cache);
    assert_eq!(LOOK.append(&mut cache, &ids(10, 12)), LOOK.expected(&ids(0, 12), None));
    assert!(cache.append(&LOOK.keys(&[12]), &LOOK.values(&[12])).is_err());
    cache.forget(1);
    assert_eq!(LOOK.append(&mut cache, &[11]), LOOK.expected(&ids(0, 12), None));
    assert_eq!(LOOK.append(&mut other, &ids(10, 13)), LOOK.expected(&ids(0, 13), None));
    assert_eq!(cache.pool().blocks(), 3);
}

#[test]
fn what_does_not_fit_is_refused() {
    for (form, field) in [
        (PagedForm { block: 0, ..FORM }, "block"),
        (PagedForm { limit: Some(0), ..FORM }, "limit"),
        (PagedForm { capacity: usize::MAX, ..FORM }, "capacity"),
    ] {
        let error = PagedCache::new(form).unwrap_err();
        assert_eq!((error.code(), error.detail().field.as_deref()), (Code::InvalidArgument, Some(field)));
    }
    let mut cache = paged(FORM);
    LOOK.append(&mut cache, &ids(0, 3));
    let wide = Look { key_dims: 5, ..LOOK };
    assert!(cache.append(&wide.keys(&[1]), &wide.values(&[1])).is_err());
    assert!(cache.append(&LOOK.keys(&[1]), &LOOK.values(&[1, 2])).is_err());
    assert_eq!(LOOK.append(&mut cache, &[3]), LOOK.expected(&ids(0, 4), None));
    let mut narrow = paged(PagedForm { quantised: Some(affine(4, 64)), ..FORM });
    let error = narrow.append(&Look::WIDE.keys(&[1]), &Look::WIDE.values(&[1])).unwrap_err();
    assert_eq!((error.code(), narrow.bytes()), (Code::Unsupported, 0));
    assert_eq!(narrow.signature().to_string(), "kv:paged:4:64");
}
