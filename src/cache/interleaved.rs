//! Keys and values in the order of our CPU kernels, in one slab each per layer that grows in steps.
//!
//! A slab is written in place when no one else holds it; a fork costs one copy at the next write.

use std::any::Any;

use super::plain::STEP;
use super::{LayerCache, SegmentForm, Signature};
use crate::base::{Error, Result};
use crate::mlx::ops::{self, CausalAttention, KvSlabs};
use crate::mlx::{Array, Dtype, Mask};

/// `kv:interleaved:` and the element type.
#[derive(Clone, Debug)]
pub struct InterleavedCache {
    dtype: Dtype,
    slabs: Option<KvSlabs>,
    offset: usize,
}

impl InterleavedCache {
    /// `dtype`: float16, bfloat16 or float32.
    pub fn new(dtype: Dtype) -> Self {
        InterleavedCache { dtype, slabs: None, offset: 0 }
    }

    /// The slabs with room for `tokens` more behind `offset`, nobody else's.
    fn with_room(&mut self, tokens: usize, attention: &CausalAttention) -> Result<KvSlabs> {
        let end = self.offset + tokens;
        if end > i32::MAX as usize {
            return Err(Error::context_full("a cache covers at most 2^31 - 1 tokens"));
        }
        let capacity = end.next_multiple_of(STEP);
        match &self.slabs {
            None => KvSlabs::new(attention, capacity, self.dtype),
            Some(slabs) => slabs.with_room(end, capacity),
        }
    }
}

impl LayerCache for InterleavedCache {
    fn offset(&self) -> usize {
        self.offset
    }

    fn attend(&mut self, qkv: &Array, attention: &CausalAttention) -> Result<Array> {
        let tokens = qkv.dim(1) as usize;
        let slabs = self.with_room(tokens, attention)?;
        let (attended, slabs) = ops::attend(qkv, slabs, self.offset, attention)?;
        self.slabs = Some(slabs);
        self.offset += tokens;
        Ok(attended)
    }

    fn store(&mut self, kv: &Array, attention: &CausalAttention) -> Result<()> {
        let tokens = kv.dim(1) as usize;
        let slabs = self.with_room(tokens, attention)?;
        self.slabs = Some(ops::store(kv, slabs, self.offset, attention)?);
        self.offset += tokens;
        Ok(())
    }

    fn mask(&self, _queries: usize, _window: Option<usize>) -> Result<Mask> {
        // The kernel knows the positions.
        Ok(Mask::None)
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.slabs.as_ref().and_then(KvSlabs::written).cloned().into_iter().collect())
    }

    fn can_forget(&self, _tokens: usize) -> bool {
        true
    }

    /// The bytes stay and are overwritten later; nothing past the offset is ever read.
    fn forget(&mut self, tokens: usize) -> usize {
        let dropped = tokens.min(self.offset);
        self.offset -= dropped;
        dropped
    }

    fn signature(&self) -> Signature {
        Signature::Segments(SegmentForm::Float(self.dtype))
    }

    fn bytes(&self) -> usize {
        self.slabs.as_ref().map_or(0, KvSlabs::byte_size)
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
