//! `kv`, `qkv` and `turboquant`: the planes' columns that are in use.

use std::marker::PhantomData;

use super::encodings::StoredEncoding;
use super::fields::{Fields, arrays, check_planes};
use super::{Codec, Header, Provider, Tensor, as_kind, tensors};
use crate::base::Result;
use crate::cache::LayerCache;
use crate::cache::full::FullCache;
use crate::cache::growing::Growing;

pub struct FullCodec<E>(pub PhantomData<E>);

impl<E: StoredEncoding> Codec for FullCodec<E> {
    fn kind(&self) -> &'static str {
        E::KIND
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().is::<FullCache<E>>()
    }

    fn default_minimum(&self, offset: usize) -> usize {
        if E::UNCUT { offset } else { 0 }
    }

    fn snapshot(&self, cache: &dyn LayerCache, header: &mut Header, _: &Provider) -> Result<Vec<Tensor>> {
        let cache: &FullCache<E> = as_kind(cache)?;
        cache.encoding.write(header);
        Ok(tensors(&cache.columns.used()?))
    }

    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        _: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        let encoding = E::read(fields)?;
        let planes = arrays(tensors, E::PLANES)?;
        check_planes(&planes, Some(1), Some(offset))?;
        encoding.check(&planes)?;
        Ok(Box::new(FullCache { encoding, columns: Growing::restored(&planes)? }))
    }

    fn header_trimmable(&self, _: usize, _: &mut Fields, _: &Provider) -> Result<bool> {
        Ok(true)
    }
}
