//! Saving, copying and loading caches: the only place that knows how each kind is stored.
//!
//! Memory copies, files, companion states and checkpoints all go through a `Provider`.

mod composite;
mod encodings;
mod entry;
mod fields;
mod full;
mod latent;
mod paged;
mod recurrent;
mod rotating;
mod segmented_latent;
mod segments;

use std::marker::PhantomData;
use std::sync::Arc;

pub use entry::{Entry, Header, Tensor};
use fields::{Fields, wrong};

use super::encoding::{Affine, Exact};
use super::{LatentRole, LayerCache, TurboQuantCodes, reusable_from};
use crate::base::quote::quote;
use crate::base::{Error, Result};
use crate::mlx::Array;
use crate::mlx::ops::Pools;

/// How one kind of cache is stored. `Provider` takes care of the fields `offset` and `minimumReusableOffset`.
pub(super) trait Codec {
    /// The name of what is stored, one of its own.
    fn kind(&self) -> &'static str;

    fn matches(&self, cache: &dyn LayerCache) -> bool;

    /// Whether there is nothing to be stored; a new cache does as well.
    fn is_empty(&self, cache: &dyn LayerCache, _: &Provider) -> Result<bool> {
        Ok(cache.offset() == 0)
    }

    /// Whether an empty cache is stored all the same.
    fn stores_empty(&self) -> bool {
        false
    }

    /// What a header that does not say it means by its least reusable number of tokens.
    fn default_minimum(&self, _offset: usize) -> usize {
        0
    }

    /// Writes what a cache is to the header and gives its tensors.
    fn snapshot(
        &self,
        cache: &dyn LayerCache,
        header: &mut Header,
        provider: &Provider,
    ) -> Result<Vec<Tensor>>;

    /// A copy that shares memory.
    fn copy(&self, cache: &dyn LayerCache, _: &Provider) -> Result<Box<dyn LayerCache>> {
        Ok(cache.fork())
    }

    /// The cache with `offset` tokens that these fields and tensors say. INCOMPATIBLE_CHECKPOINT, naming the field, if
    /// there can be none.
    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        provider: &Provider,
    ) -> Result<Box<dyn LayerCache>>;

    /// Whether a cache with `offset` tokens and this header can forget the last ones.
    fn header_trimmable(&self, offset: usize, fields: &mut Fields, provider: &Provider) -> Result<bool>;
}

/// The codecs of all kinds under one name, which is stored with what they write.
pub struct Provider {
    identity: &'static str,
    codecs: Vec<Box<dyn Codec>>,
}

const OFFSET: &str = "offset";
const MINIMUM: &str = "minimumReusableOffset";

impl Provider {
    /// `mlxgen-cache-1`: every kind of this library that is stored.
    pub fn built_in() -> Self {
        Self::with_pools(Pools::new(1, None))
    }

    /// The same, where caches that are loaded have their segments from these pools.
    pub fn with_pools(pools: Arc<Pools>) -> Self {
        let codecs: Vec<Box<dyn Codec>> = vec![
            Box::new(full::FullCodec::<Exact>(PhantomData)),
            Box::new(full::FullCodec::<Affine>(PhantomData)),
            Box::new(full::FullCodec::<TurboQuantCodes>(PhantomData)),
            Box::new(rotating::WindowCodec::<Exact>(PhantomData)),
            Box::new(rotating::WindowCodec::<Affine>(PhantomData)),
            Box::new(recurrent::RecurrentCodec),
            Box::new(latent::LatentCodec(LatentRole::Target)),
            Box::new(latent::LatentCodec(LatentRole::TargetWithIndex)),
            Box::new(latent::LatentCodec(LatentRole::Draft)),
            Box::new(paged::PagedCodec),
            Box::new(segmented_latent::SegmentedLatentCodec { pools: Arc::clone(&pools) }),
            Box::new(segments::SegmentsCodec { pools }),
            Box::new(composite::CompositeCodec),
        ];
        Provider { identity: "mlxgen-cache-1", codecs }
    }

    pub fn identity(&self) -> &'static str {
        self.identity
    }

    /// INCOMPATIBLE_CHECKPOINT if something was stored by another provider.
    pub fn check_identity(&self, identity: &str) -> Result<()> {
        if identity == self.identity {
            return Ok(());
        }
        Err(wrong(
            "codecProvider",
            format!("caches were stored as {}, not {:?}", quote(identity), self.identity),
        ))
    }

    /// Whether there is nothing to be stored.
    pub fn is_empty(&self, cache: &dyn LayerCache) -> Result<bool> {
        self.codec_of(cache)?.is_empty(cache, self)
    }

    /// What is to be stored of a cache; the tensors share its memory. WRONG_STATE for an empty one of a kind that has
    /// nothing to be stored then, UNSUPPORTED for kinds that are not stored.
    pub fn snapshot(&self, cache: &dyn LayerCache) -> Result<Entry> {
        let codec = self.codec_of(cache)?;
        if codec.is_empty(cache, self)? && !codec.stores_empty() {
            return Err(Error::wrong_state(format!(
                "an empty {} has nothing to be stored",
                cache.signature()
            )));
        }
        let mut header = Header::new();
        header.insert(OFFSET.into(), cache.offset().into());
        // A state that was cut below it is good for no less than what is left.
        let minimum = cache.minimum_reusable_offset().min(cache.offset());
        if minimum != codec.default_minimum(cache.offset()) {
            header.insert(MINIMUM.into(), minimum.into());
        }
        let tensors = codec.snapshot(cache, &mut header, self)?;
        Ok(Entry { kind: codec.kind().into(), header, tensors })
    }

    /// A copy of a cache that shares its memory. WRONG_STATE for an empty recurrent one.
    pub fn copy(&self, cache: &dyn LayerCache) -> Result<Box<dyn LayerCache>> {
        self.codec_of(cache)?.copy(cache, self)
    }

    /// The cache that was stored. It may share memory with the entry's arrays. INCOMPATIBLE_CHECKPOINT, naming the
    /// field, for what no cache of this library wrote.
    pub fn load(&self, entry: &Entry) -> Result<Box<dyn LayerCache>> {
        let codec = self.codec_named(&entry.kind)?;
        let mut fields = Fields::new(&entry.header);
        let offset = fields.number(OFFSET)?;
        let minimum = minimum(&mut fields, offset, codec.default_minimum(offset))?;
        let cache = codec.load(offset, &mut fields, &entry.tensors, self)?;
        fields.finish()?;
        if cache.offset() != offset {
            return Err(wrong(OFFSET, format!("a cache of {} tokens claims {offset}", cache.offset())));
        }
        Ok(reusable_from(cache, minimum))
    }

    /// Whether the cache that was stored can forget its last tokens. Errors as of `load`.
    pub fn header_trimmable(&self, kind: &str, header: &Header) -> Result<bool> {
        let codec = self.codec_named(kind)?;
        let mut fields = Fields::new(header);
        let offset = fields.number(OFFSET)?;
        codec.header_trimmable(offset, &mut fields, self)
    }

    fn codec_of(&self, cache: &dyn LayerCache) -> Result<&dyn Codec> {
        let mut matching = self.codecs.iter().filter(|codec| codec.matches(cache));
        match (matching.next(), matching.next()) {
            (Some(codec), None) => Ok(&**codec),
            (None, _) => {
                Err(Error::unsupported(format!("caches of the kind {} are not stored", cache.signature())))
            }
            (Some(one), Some(other)) => Err(Error::internal(format!(
                "{} is stored in two ways, as {} and as {}",
                cache.signature(),
                one.kind(),
                other.kind()
            ))),
        }
    }

    fn codec_named(&self, kind: &str) -> Result<&dyn Codec> {
        let mut matching = self.codecs.iter().filter(|codec| codec.kind() == kind);
        match (matching.next(), matching.next()) {
            (Some(codec), None) => Ok(&**codec),
            (None, _) => Err(wrong("kind", format!("there is no kind {} of stored caches", quote(kind)))),
            (Some(_), Some(_)) => Err(Error::internal(format!("two codecs are named {kind}"))),
        }
    }
}

fn minimum(fields: &mut Fields, offset: usize, default: usize) -> Result<usize> {
    let minimum = fields.optional_number(MINIMUM)?.unwrap_or(default);
    if minimum > offset {
        return Err(wrong(MINIMUM, format!("a state of {offset} tokens is good for {minimum} at least")));
    }
    Ok(minimum)
}

/// A cache as the kind that a codec is for.
fn as_kind<T: LayerCache + 'static>(cache: &dyn LayerCache) -> Result<&T> {
    cache
        .as_any()
        .downcast_ref()
        .ok_or_else(|| Error::internal(format!("{} came to another kind's codec", cache.signature())))
}

fn tensors(arrays: &[Array]) -> Vec<Tensor> {
    arrays.iter().cloned().map(Tensor::Array).collect()
}

#[cfg(test)]
mod tests;
