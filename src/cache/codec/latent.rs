//! `mla`, `mla-dsa` and `mtp-mla`: the columns that are in use, none in an empty cache.

use super::fields::{Fields, arrays, check_floats, check_planes, check_size, wrong};
use super::{Codec, Header, Provider, Tensor, as_kind, tensors};
use crate::base::Result;
use crate::cache::growing::Growing;
use crate::cache::{LatentCache, LatentDims, LatentRole, LayerCache};

pub struct LatentCodec(pub LatentRole);

const LATENT: &str = "kvLoraRank";
const ROPE: &str = "ropeHeadDim";
const INDEX: &str = "dsaHeadDim";

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
        write_dims(header, cache.dims());
        Ok(if cache.offset() == 0 { Vec::new() } else { tensors(&cache.columns().used()?) })
    }

    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        _: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        let dims = read_dims(self.0, usize::MAX, fields)?;
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

/// What a header says of the sizes of a token.
pub(super) fn write_dims(header: &mut Header, dims: LatentDims) {
    header.insert(LATENT.into(), dims.latent.into());
    header.insert(ROPE.into(), dims.rope.into());
    if let Some(index) = dims.index {
        header.insert(INDEX.into(), index.into());
    }
}

/// The sizes of a token in this role, each from 1 to `most`.
pub(super) fn read_dims(role: LatentRole, most: usize, fields: &mut Fields) -> Result<LatentDims> {
    let mut size = |field| match fields.number(field)? {
        size if size == 0 || size > most => Err(wrong(field, format!("{field} is {size}"))),
        size => Ok(size),
    };
    let index = match role {
        LatentRole::TargetWithIndex => Some(size(INDEX)?),
        LatentRole::Target | LatentRole::Draft => None,
    };
    Ok(LatentDims { latent: size(LATENT)?, rope: size(ROPE)?, index })
}
