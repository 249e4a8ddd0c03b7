//! Blocks are nobody else's while they live, and their memory goes back.

use super::blocks::Pools;
use crate::base::Code;

#[test]
fn blocks_do_not_overlap_and_are_taken_again() {
    let pools = Pools::new(3, None);
    let mut blocks: Vec<_> = (0..8).map(|_| pools.take(96).unwrap()).collect();
    assert_eq!(pools.used(), 8);
    for (number, block) in blocks.iter().enumerate() {
        // SAFETY: nothing else uses these blocks.
        unsafe { block.bytes_mut() }.fill(number as u8);
    }
    for (number, block) in blocks.iter().enumerate() {
        // SAFETY: as above.
        assert!(unsafe { block.bytes() }.iter().all(|byte| *byte == number as u8));
        assert_eq!(block.len(), 96);
    }
    blocks.truncate(2);
    assert_eq!(pools.used(), 2);
    blocks.extend((0..4).map(|_| pools.take(96).unwrap()));
    let mut starts: Vec<*const u8> = blocks
        .iter()
        // SAFETY: as above.
        .map(|block| unsafe { block.bytes() }.as_ptr())
        .collect();
    starts.sort();
    starts.dedup();
    assert_eq!(starts.len(), 6);
    drop(blocks);
    assert_eq!(pools.used(), 0);
}

#[test]
fn the_limit_counts_blocks_of_all_sizes() {
    let pools = Pools::new(2, Some(3));
    let first = pools.take(64).unwrap();
    let _second = pools.take(128).unwrap();
    let _third = pools.take(64).unwrap();
    let refused = pools.take(64).unwrap_err();
    assert_eq!(refused.code(), Code::OutOfMemory);
    assert_eq!(refused.detail().field.as_deref(), Some("page_capacity"));
    drop(first);
    pools.take(128).unwrap();
}

#[test]
fn blocks_may_be_dropped_on_any_thread_and_outlive_their_pools() {
    let pools = Pools::new(4, None);
    let blocks: Vec<_> = (0..5).map(|_| pools.take(4096).unwrap()).collect();
    let again = std::sync::Arc::clone(&pools);
    std::thread::spawn(move || drop(blocks)).join().unwrap();
    assert_eq!(again.used(), 0);
    let last = again.take(32).unwrap();
    drop((pools, again));
    assert_eq!(last.len(), 32);
}
