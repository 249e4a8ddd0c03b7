//! Slabs that do not fit what they are said to hold.

use std::borrow::Cow;
use std::sync::Arc;

use super::blocks::Pools;
use super::saved::SavedTokens;
use super::segments::Segments;
use crate::base::Code;
use crate::mlx::kernels::attention::{KvForm, KvShape};

const SHAPE: KvShape = KvShape { kv_heads: 3, key_dims: 32, value_dims: 64, form: KvForm::F16 };

fn saved(absent: std::ops::Range<usize>, positions: usize) -> SavedTokens<'static> {
    let keys = Cow::Owned((0..SHAPE.key_bytes(positions)).map(|i| i as u8).collect());
    let values = Cow::Owned((0..SHAPE.value_bytes(positions)).map(|i| (i / 3) as u8).collect());
    SavedTokens { absent, keys, values }
}

#[test]
fn what_is_restored_is_saved_again() {
    // Whole groups of sixteen, so that nothing is blanked.
    for (segment, tokens, absent) in
        [(32, 96, 0..0), (32, 112, 0..0), (32, 112, 32..96), (16, 48, 0..48), (64, 48, 0..0)]
    {
        let pools = Pools::new(2, None);
        let held = tokens - absent.len();
        let from = saved(absent.clone(), held);
        let restored = Segments::restored(SHAPE, segment, Arc::clone(&pools), tokens, &from).unwrap();
        assert_eq!(pools.used(), held.div_ceil(segment));
        assert_eq!(restored.absent(), absent);
        let again = restored.saved(tokens).unwrap();
        assert_eq!((&again.absent, &again.keys, &again.values), (&from.absent, &from.keys, &from.values));
        // The first tokens alone.
        if absent.is_empty() {
            let first = restored.saved(16).unwrap();
            for (head, (all, first)) in
                from.keys.chunks(from.keys.len() / 3).zip(first.keys.chunks(first.keys.len() / 3)).enumerate()
            {
                assert_eq!(&all[..first.len()], first, "{head}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_takes_no_memory() {
    let pools = Pools::new(2, None);
    let refused = |tokens: usize, saved: SavedTokens<'_>| {
        let error = Segments::restored(SHAPE, 32, Arc::clone(&pools), tokens, &saved).unwrap_err();
        assert_eq!((error.code(), pools.used()), (Code::Internal, 0));
    };
    refused(96, saved(0..0, 80));
    refused(96, saved(0..0, 112));
    refused(96, saved(32..64, 96));
    // Parts of segments, and more than there is.
    refused(96, saved(16..48, 64));
    refused(96, saved(64..128, 64));
    let mut uneven = saved(0..0, 96);
    uneven.values.to_mut().pop();
    refused(96, uneven);
    let limited = Pools::new(1, Some(2));
    let error = Segments::restored(SHAPE, 32, Arc::clone(&limited), 96, &saved(0..0, 96)).unwrap_err();
    assert_eq!((error.code(), limited.used()), (Code::OutOfMemory, 0));
}
