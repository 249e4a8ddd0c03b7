//! States that are good for no less than a number of tokens.

use std::any::Any;

use super::{LayerCache, Precision, Signature};
use crate::base::Result;
use crate::mlx::ops::{CausalAttention, KeysValues};
use crate::mlx::{Array, Mask};

/// The cache, with at least `offset` as its `minimum_reusable_offset`, which its forks and encodings inherit. In
/// everything else, its kind included, it is the cache itself.
pub fn reusable_from(cache: Box<dyn LayerCache>, offset: usize) -> Box<dyn LayerCache> {
    if offset <= cache.minimum_reusable_offset() {
        return cache;
    }
    Box::new(ReusableFrom { cache, offset })
}

struct ReusableFrom {
    cache: Box<dyn LayerCache>,
    offset: usize,
}

impl LayerCache for ReusableFrom {
    fn offset(&self) -> usize {
        self.cache.offset()
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<KeysValues> {
        self.cache.append(keys, values)
    }

    fn attend(&mut self, qkv: &Array, attention: &CausalAttention) -> Result<Array> {
        self.cache.attend(qkv, attention)
    }

    fn store(&mut self, kv: &Array, attention: &CausalAttention) -> Result<()> {
        self.cache.store(kv, attention)
    }

    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        self.cache.mask(queries, window)
    }

    fn state(&self) -> Result<Vec<Array>> {
        self.cache.state()
    }

    fn can_forget(&self, tokens: usize) -> bool {
        self.cache.can_forget(tokens)
    }

    fn always_forgets(&self) -> bool {
        self.cache.always_forgets()
    }

    fn forget(&mut self, tokens: usize) -> usize {
        self.cache.forget(tokens)
    }

    fn settle(&mut self) {
        self.cache.settle();
    }

    fn signature(&self) -> Signature {
        self.cache.signature()
    }

    fn minimum_reusable_offset(&self) -> usize {
        self.offset
    }

    fn bytes(&self) -> usize {
        self.cache.bytes()
    }

    fn shared_bytes(&self) -> usize {
        self.cache.shared_bytes()
    }

    fn own_bytes(&self) -> usize {
        self.cache.own_bytes()
    }

    fn fork_bytes(&self) -> usize {
        self.cache.fork_bytes()
    }

    fn copied_bytes(&self) -> usize {
        self.cache.copied_bytes()
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        reusable_from(self.cache.fork(), self.offset)
    }

    fn encoded(&self, precision: Precision) -> Result<Option<Box<dyn LayerCache>>> {
        Ok(self.cache.encoded(precision)?.map(|encoded| reusable_from(encoded, self.offset)))
    }

    fn as_any(&self) -> &dyn Any {
        self.cache.as_any()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self.cache.as_any_mut()
    }
}
