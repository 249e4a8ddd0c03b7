//! Compressed keys and values in the order of our CPU kernels, in segments that forks share.

use std::any::Any;
use std::sync::Arc;

use super::latent::LatentDims;
use super::{LatentRole, LayerCache, SEGMENT, Signature};
use crate::base::{Error, Result};
use crate::mlx::ops::{
    self, Float, KvForm, KvShape, LatentAttention, Pools, SavedTokens, Segments, TokenIndexer,
};
use crate::mlx::{Array, Dtype, Mask};

/// `kv:mla:<role>:segments:<type>`, or `:pages:`, their size and the type. A token's key is its latent part and its
/// rotated one; its value, which is a part of the key, takes no memory. What an indexer reads are segments of their own.
#[derive(Clone, Debug)]
pub struct SegmentedLatentCache {
    layout: LatentLayout,
    keys: Segments,
    index: Option<Segments>,
    offset: usize,
}

/// What is to be known of such a cache besides its tokens.
#[derive(Clone, Copy, Debug)]
pub struct LatentLayout {
    pub role: LatentRole,
    pub dims: LatentDims,
    /// `Float32`, `Float16` or `Bfloat16`.
    pub dtype: Dtype,
    /// Tokens of a segment.
    pub segment: usize,
}

/// What an indexer is given of the next tokens: see [`ops::choose_tokens`].
pub struct IndexStep<'a> {
    pub queries: &'a Array,
    pub keys: &'a Array,
    pub weights: &'a Array,
    pub indexer: &'a TokenIndexer,
}

impl LatentLayout {
    /// How the keys lie in memory, and what an indexer reads. INTERNAL if the role and the index do not go together, a
    /// size is 0 or the type is none that keys have.
    pub(super) fn shapes(&self) -> Result<(KvShape, Option<KvShape>)> {
        self.dims.check(self.role)?;
        let float = match self.dtype {
            Dtype::Float32 => Float::F32,
            Dtype::Float16 => Float::F16,
            Dtype::Bfloat16 => Float::Bf16,
            other => return Err(Error::internal(format!("keys of {}", other.name()))),
        };
        let joint =
            |key_dims, value_dims| KvShape { kv_heads: 1, key_dims, value_dims, form: KvForm::Joint(float) };
        let LatentDims { latent, rope, index } = self.dims;
        Ok((joint(latent + rope, latent), index.map(|dims| joint(dims, dims))))
    }
}

impl SegmentedLatentCache {
    /// Errors as of `LatentLayout::shapes`.
    pub fn new(layout: LatentLayout, pools: Arc<Pools>) -> Result<Self> {
        let (keys, index) = layout.shapes()?;
        let segments = |shape| Segments::new(shape, layout.segment, Arc::clone(&pools));
        let (keys, index) = (segments(keys), index.map(segments));
        let layout = LatentLayout { segment: keys.segment_tokens(), ..layout };
        Ok(SegmentedLatentCache { layout, keys, index, offset: 0 })
    }

    pub fn layout(&self) -> LatentLayout {
        self.layout
    }

    /// Appends the next tokens and attends: `queries` `[1, tokens, heads * (latent + rope)]` and `keys`
    /// `[1, tokens, latent + rope]` are not rotated yet; the result is `[1, tokens, heads * latent]`. INTERNAL unless
    /// there is an index if, and only if, the role has one, and for other sizes than the cache's.
    pub fn attend_latent(
        &mut self,
        queries: &Array,
        keys: &Array,
        attention: &LatentAttention,
        index: Option<IndexStep<'_>>,
    ) -> Result<Array> {
        let tokens = keys.dim(1) as usize;
        if self.offset + tokens > i32::MAX as usize {
            return Err(Error::context_full("a cache covers at most 2^31 - 1 tokens"));
        }
        if self.index.is_some() != index.is_some() {
            return Err(Error::internal(format!("an index of another layer than {}", self.signature())));
        }
        self.make_room(tokens)?;
        let attended = match (&mut self.index, index) {
            (Some(segments), Some(step)) => {
                let IndexStep { queries, keys, weights, indexer } = step;
                ops::choose_tokens(queries, keys, weights, segments, self.offset, indexer)?
            }
            _ => None,
        };
        let out =
            ops::attend_latent(queries, keys, &mut self.keys, self.offset, attention, attended.as_ref())?;
        self.offset += tokens;
        Ok(out)
    }

    /// For both parts or none.
    fn make_room(&mut self, tokens: usize) -> Result<()> {
        let (from, end) = (self.offset, self.offset + tokens);
        let mut parts = std::iter::once(&mut self.keys).chain(&mut self.index);
        let made = parts.try_for_each(|segments| segments.make_room(from, end));
        if made.is_err() {
            self.each_mut(|segments, offset| segments.cut(offset));
        }
        made
    }

    fn parts(&self) -> impl Iterator<Item = &Segments> {
        std::iter::once(&self.keys).chain(&self.index)
    }

    fn each_mut(&mut self, change: impl Fn(&mut Segments, usize)) {
        let offset = self.offset;
        std::iter::once(&mut self.keys).chain(&mut self.index).for_each(|segments| change(segments, offset));
    }

    /// All tokens as host bytes: of the keys, and of the index. Computes what is left to compute.
    pub(super) fn saved(&self) -> Result<Vec<SavedTokens<'static>>> {
        self.parts().map(|segments| segments.saved(self.offset)).collect()
    }

    /// A cache of `offset` tokens with memory of its own: `saved` is what `saved` gives. Errors as of `new` and of
    /// `Segments::restored`.
    pub(super) fn restored(
        layout: LatentLayout,
        pools: &Arc<Pools>,
        offset: usize,
        saved: &[SavedTokens<'_>],
    ) -> Result<Self> {
        let mut cache = Self::new(layout, Arc::clone(pools))?;
        let restored = |shape: &KvShape, saved| {
            Segments::restored(*shape, layout.segment, Arc::clone(pools), offset, saved)
        };
        match (saved, &mut cache.index) {
            ([keys], None) => cache.keys = restored(cache.keys.shape(), keys)?,
            ([keys, saved], Some(index)) => {
                cache.keys = restored(cache.keys.shape(), keys)?;
                *index = restored(index.shape(), saved)?;
            }
            _ => return Err(Error::internal("parts of a latent cache are missing")),
        }
        cache.offset = offset;
        Ok(cache)
    }
}

impl LayerCache for SegmentedLatentCache {
    fn offset(&self) -> usize {
        self.offset
    }

    fn mask(&self, _queries: usize, _window: Option<usize>) -> Result<Mask> {
        // The kernel knows the positions.
        Ok(Mask::None)
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.parts().filter_map(Segments::written).cloned().collect())
    }

    fn can_forget(&self, _tokens: usize) -> bool {
        true
    }

    fn forget(&mut self, tokens: usize) -> usize {
        let dropped = tokens.min(self.offset);
        self.offset -= dropped;
        self.each_mut(|segments, offset| segments.cut(offset));
        dropped
    }

    fn signature(&self) -> Signature {
        let LatentLayout { role, dtype, segment, .. } = self.layout;
        let page = (segment != SEGMENT).then_some(segment as u32);
        Signature::LatentSegments { role, page, dtype }
    }

    fn bytes(&self) -> usize {
        self.parts().map(Segments::bytes).sum()
    }

    fn shared_bytes(&self) -> usize {
        self.parts().map(Segments::shared_bytes).sum()
    }

    /// The pools count them.
    fn own_bytes(&self) -> usize {
        0
    }

    fn fork_bytes(&self) -> usize {
        0
    }

    fn copied_bytes(&self) -> usize {
        self.parts().map(|segments| segments.copied_bytes(self.offset)).sum()
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
