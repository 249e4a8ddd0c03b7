//! `mla-segments`: the compressed keys, and what an indexer reads, in an order that does not depend on the size of
//! segments; none in an empty cache.

use std::borrow::Cow;
use std::sync::Arc;

use super::fields::{Fields, check_count, wrong};
use super::latent::{read_dims, write_dims};
use super::segments::{SIXTEEN, segment_tokens, slab, slab_bytes};
use super::{Codec, Header, Provider, Tensor, as_kind};
use crate::base::Result;
use crate::cache::planes::MOST;
use crate::cache::{LatentLayout, LatentRole, LayerCache, SegmentedLatentCache};
use crate::mlx::ops::{Pools, SavedTokens};

pub struct SegmentedLatentCodec {
    /// Where loaded caches have their memory from.
    pub pools: Arc<Pools>,
}

const ROLES: [LatentRole; 3] = [LatentRole::Target, LatentRole::TargetWithIndex, LatentRole::Draft];

impl Codec for SegmentedLatentCodec {
    fn kind(&self) -> &'static str {
        "mla-segments"
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().is::<SegmentedLatentCache>()
    }

    fn stores_empty(&self) -> bool {
        true
    }

    /// Waits for what is being written, and copies.
    fn snapshot(&self, cache: &dyn LayerCache, header: &mut Header, _: &Provider) -> Result<Vec<Tensor>> {
        let cache: &SegmentedLatentCache = as_kind(cache)?;
        let layout = cache.layout();
        header.insert("role".into(), layout.role.to_string().into());
        header.insert("form".into(), layout.dtype.name().into());
        write_dims(header, layout.dims);
        header.insert("segmentTokens".into(), layout.segment.into());
        if cache.offset() == 0 {
            return Ok(Vec::new());
        }
        let shapes = shapes(&layout, cache.offset())?;
        let saved = cache.saved()?.into_iter().map(|saved| saved.keys.into_owned());
        Ok(shapes.into_iter().zip(saved).map(|(shape, bytes)| slab(shape, bytes)).collect())
    }

    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        _: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        let layout = layout(fields)?;
        if offset == 0 {
            check_count(tensors, 0)?;
            return Ok(Box::new(SegmentedLatentCache::new(layout, Arc::clone(&self.pools))?));
        }
        let slabs = slab_bytes(tensors, &shapes(&layout, offset)?)?;
        let saved = |keys| SavedTokens { absent: 0..0, keys, values: Cow::Borrowed(&[]) };
        let saved: Vec<SavedTokens<'_>> = slabs.into_iter().map(saved).collect();
        Ok(Box::new(SegmentedLatentCache::restored(layout, &self.pools, offset, &saved)?))
    }

    fn header_trimmable(&self, _: usize, fields: &mut Fields, _: &Provider) -> Result<bool> {
        layout(fields)?;
        Ok(true)
    }
}

/// The shapes of the slabs of so many tokens.
fn shapes(layout: &LatentLayout, tokens: usize) -> Result<Vec<[usize; 3]>> {
    let (keys, index) = layout.shapes()?;
    let sixteens = tokens.div_ceil(SIXTEEN);
    Ok([Some(keys), index]
        .into_iter()
        .flatten()
        .map(|shape| [1, sixteens, shape.key_bytes(SIXTEEN)])
        .collect())
}

fn layout(fields: &mut Fields) -> Result<LatentLayout> {
    let name = fields.text("role")?;
    let role = ROLES.into_iter().find(|role| role.to_string() == name);
    let role = role.ok_or_else(|| wrong("role", "there is no such role of compressed keys"))?;
    let dtype = fields.float("form")?;
    // Sizes that are added and multiplied.
    let dims = read_dims(role, MOST / 4, fields)?;
    let segment = segment_tokens(fields)?;
    Ok(LatentLayout { role, dims, dtype, segment })
}
