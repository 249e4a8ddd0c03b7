//! `ssm`: the slots that are filled.

use super::fields::{Fields, arrays};
use super::{Codec, Header, Provider, Tensor, as_kind, tensors};
use crate::base::{Error, Result};
use crate::cache::{LayerCache, RecurrentCache};

pub struct RecurrentCodec;

impl Codec for RecurrentCodec {
    fn kind(&self) -> &'static str {
        "ssm"
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().is::<RecurrentCache>()
    }

    fn is_empty(&self, cache: &dyn LayerCache, _: &Provider) -> Result<bool> {
        Ok(as_kind::<RecurrentCache>(cache)?.slots().iter().all(Option::is_none))
    }

    fn snapshot(&self, cache: &dyn LayerCache, header: &mut Header, _: &Provider) -> Result<Vec<Tensor>> {
        let cache: &RecurrentCache = as_kind(cache)?;
        let filled: Vec<bool> = cache.slots().iter().map(Option::is_some).collect();
        header.insert("slots".into(), filled.into());
        Ok(tensors(&cache.state()?))
    }

    fn copy(&self, cache: &dyn LayerCache, provider: &Provider) -> Result<Box<dyn LayerCache>> {
        if self.is_empty(cache, provider)? {
            return Err(Error::wrong_state("an empty recurrent cache has nothing to be copied"));
        }
        Ok(cache.fork())
    }

    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        _: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        let filled = fields.flags("slots")?;
        let count = filled.iter().filter(|filled| **filled).count();
        let mut states = arrays(tensors, count)?.into_iter();
        let slots = filled.into_iter().map(|filled| if filled { states.next() } else { None }).collect();
        Ok(Box::new(RecurrentCache::with_slots(slots, offset)))
    }

    fn header_trimmable(&self, _: usize, _: &mut Fields, _: &Provider) -> Result<bool> {
        Ok(false)
    }
}
