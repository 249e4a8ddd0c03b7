//! Keys and values as they are, in one slab per layer that grows in steps.
//!
//! MLX writes a slab in place when no one else holds it; a fork or a kept view costs one copy at
//! the next write.

use std::any::Any;

use super::{LayerCache, Signature};
use crate::base::{Error, Result};
use crate::mlx::ops::KeysValues;
use crate::mlx::{Array, Mask, prim};

/// Tokens by which a slab grows.
pub const STEP: usize = 256;

/// `kv:plain`
#[derive(Clone, Debug, Default)]
pub struct PlainCache {
    /// `[1, kv heads, capacity, dims]` each; the value's dims may differ from the key's.
    slabs: Option<(Array, Array)>,
    offset: usize,
}

impl PlainCache {
    pub fn new() -> Self {
        Self::default()
    }

    /// Most tokens that slabs have room for once `tokens` tokens are covered.
    pub fn capacity_for(tokens: u64) -> u64 {
        // A slab that was cut to an odd length before it grew ends up to one step later.
        if tokens == 0 {
            0
        } else {
            (tokens.div_ceil(STEP as u64)).saturating_add(1).saturating_mul(STEP as u64)
        }
    }

    fn capacity(&self) -> usize {
        self.slabs.as_ref().map_or(0, |(keys, _)| keys.dim(2) as usize)
    }

    /// The slabs with room for `tokens` more after `offset`.
    fn grown(&self, keys: &Array, values: &Array, tokens: usize) -> Result<(Array, Array)> {
        let room = (STEP + tokens - 1) / STEP * STEP;
        let grow = |slab: Option<&Array>, like: &Array| -> Result<Array> {
            let fresh = prim::zeros(&[like.dim(0), like.dim(1), room as i32, like.dim(3)], like.dtype())?;
            let Some(slab) = slab else { return Ok(fresh) };
            if self.offset.is_multiple_of(STEP) {
                prim::concatenate(&[slab, &fresh], 2)
            } else {
                prim::concatenate(&[&first_tokens(slab, self.offset)?, &fresh], 2)
            }
        };
        let (old_keys, old_values) = match &self.slabs {
            Some((keys, values)) => (Some(keys), Some(values)),
            None => (None, None),
        };
        Ok((grow(old_keys, keys)?, grow(old_values, values)?))
    }
}

/// The view of the first `tokens` columns.
fn first_tokens(slab: &Array, tokens: usize) -> Result<Array> {
    let stop = [slab.dim(0), slab.dim(1), tokens as i32, slab.dim(3)];
    prim::slice(slab, &[0; 4], &stop)
}

/// `slab` with `update` from column `start` on.
fn written(slab: &Array, update: &Array, start: usize) -> Result<Array> {
    let stop = [slab.dim(0), slab.dim(1), start as i32 + update.dim(2), slab.dim(3)];
    prim::slice_update(slab, update, &[0, 0, start as i32, 0], &stop)
}

impl LayerCache for PlainCache {
    fn offset(&self) -> usize {
        self.offset
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<KeysValues> {
        let tokens = keys.dim(2) as usize;
        let end = self.offset + tokens;
        if end > i32::MAX as usize {
            return Err(Error::context_full("a cache covers at most 2^31 - 1 tokens"));
        }
        let (old_keys, old_values) = match &self.slabs {
            Some((keys, values)) if end <= self.capacity() => (keys.clone(), values.clone()),
            _ => self.grown(keys, values, tokens)?,
        };
        let new_keys = written(&old_keys, keys, self.offset)?;
        let new_values = written(&old_values, values, self.offset)?;
        let capacity = new_keys.dim(2) as usize;
        let (keys, values) = if end < capacity {
            (first_tokens(&new_keys, end)?, first_tokens(&new_values, end)?)
        } else {
            (new_keys.clone(), new_values.clone())
        };
        self.slabs = Some((new_keys, new_values));
        self.offset = end;
        Ok(KeysValues::Plain { keys, values })
    }

    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        Mask::causal(queries as i32, self.offset as i32, window.map(|window| window as i32))
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.slabs.iter().flat_map(|(keys, values)| [keys.clone(), values.clone()]).collect())
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
        Signature::Plain
    }

    fn bytes(&self) -> usize {
        self.slabs.as_ref().map_or(0, |(keys, values)| keys.byte_size() + values.byte_size())
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
