//! `mla`, `mla-dsa` and `mtp-mla`: the columns that are in use, none in an empty cache.

use super::fields::{Fields, arrays, check_floats, check_planes, check_size, wrong};
use super::{Codec, Header, Provider, Tensor, as_kind, tensors};
use crate::base::Result;
use crate::cache::growing::Growing;
use crate::cache::{LatentCache, LatentDims, LatentRole, LayerCache};

pub struct LatentCodec(pub LatentRole);

pub(super) const LATENT: &str = "kvLoraRank";
pub(super) const ROPE: &str = "ropeHeadDim";
pub(super) const INDEX: &str = "dsaHeadDim";

impl Codec for LatentCodec {
    fn kind(&self) -> &'static str {
        match self.0 {
            LatentRole::Target => "mla",
            LatentRole::TargetWithIndex => "mla-dsa",
            LatentRole::Draft => "mtp-mla",
        }
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().downcast_ref().is_some_and(|cache: &LatentCache| cache.role() == self.0)
    }

    fn stores_empty(&self) -> bool {
        true
    }

    fn snapshot(&self, cache: &dyn LayerCache, header: &mut Header, _: &Provider) -> Result<Vec<Tensor>> {
        let cache: &LatentCache = as_kind(cache)?;
        let dims = cache.dims();
        header.insert(LATENT.into(), dims.latent.into());
        header.insert(ROPE.into(), dims.rope.into());
        if let Some(index) = dims.index {
            header.insert(INDEX.into(), index.into());
        }
        Ok(if cache.offset() == 0 { Vec::new() } else { tensors(&cache.columns().used()?) })
    }

    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        _: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        let index = match self.0 {
            LatentRole::TargetWithIndex => Some(fields.number(INDEX)?),
            LatentRole::Target | LatentRole::Draft => None,
        };
        let dims = LatentDims { latent: fields.number(LATENT)?, rope: fields.number(ROPE)?, index };
        for (field, size) in [(LATENT, Some(dims.latent)), (ROPE, Some(dims.rope)), (INDEX, dims.index)] {
            if size == Some(0) {
                return Err(wrong(field, format!("{field} is 0")));
            }
        }
        let cache = LatentCache::new(self.0, dims)?;
        let sizes = cache.sizes();
        if offset == 0 {
            arrays(tensors, 0)?;
            return Ok(Box::new(cache));
        }
        let planes = arrays(tensors, sizes.len())?;
        check_planes(&planes, Some(1), Some(offset))?;
        for (index, size) in sizes.into_iter().enumerate() {
            check_size(&planes, index, size)?;
            check_floats(&planes, &[index])?;
        }
        Ok(Box::new(cache.with_columns(Growing::restored(&planes)?)))
    }

    fn header_trimmable(&self, _: usize, _: &mut Fields, _: &Provider) -> Result<bool> {
        Ok(true)
    }
}
