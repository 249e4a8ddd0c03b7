//! `rotating` and `rotating-qkv`: all columns as they lie, and where the next token goes.

use std::marker::PhantomData;

use super::encodings::StoredWindow;
use super::fields::{Fields, arrays, check_planes, wrong};
use super::{Codec, Header, Provider, Tensor, as_kind, tensors};
use crate::base::Result;
use crate::cache::LayerCache;
use crate::cache::ring::Ring;
use crate::cache::rotating::WindowCache;

pub struct WindowCodec<E>(pub PhantomData<E>);

impl<E: StoredWindow> Codec for WindowCodec<E> {
    fn kind(&self) -> &'static str {
        E::ROTATING_KIND
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().is::<WindowCache<E>>()
    }

    fn snapshot(&self, cache: &dyn LayerCache, header: &mut Header, _: &Provider) -> Result<Vec<Tensor>> {
        let cache: &WindowCache<E> = as_kind(cache)?;
        cache.encoding.write(header);
        header.insert("idx".into(), cache.ring.index().into());
        header.insert("maxSize".into(), cache.ring.window().into());
        header.insert("keep".into(), cache.ring.keep().into());
        Ok(tensors(cache.ring.planes()))
    }

    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        _: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        let encoding = E::read(fields)?;
        let index = fields.number("idx")?;
        let window = fields.number("maxSize")?;
        let keep = fields.number("keep")?;
        if window == 0 {
            return Err(wrong("maxSize", "a window has no tokens"));
        }
        if keep >= window {
            return Err(wrong("keep", format!("a window of {window} tokens keeps the first {keep}")));
        }
        let planes = arrays(tensors, E::PLANES)?;
        check_planes(&planes, Some(1), None)?;
        encoding.check(&planes)?;
        Ok(Box::new(WindowCache { encoding, ring: Ring::restored(window, keep, offset, index, planes)? }))
    }

    fn header_trimmable(&self, offset: usize, fields: &mut Fields, _: &Provider) -> Result<bool> {
        Ok(offset < fields.number("maxSize")?)
    }
}
