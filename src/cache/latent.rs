//! Compressed keys and values: what all heads are computed from, instead of the heads.

use std::any::Any;

use super::growing::Growing;
use super::{LatentRole, LayerCache, Signature};
use crate::base::{Error, Result};
use crate::mlx::{Array, Mask};

/// Sizes of what one token has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentDims {
    /// Of the latent part that keys and values share.
    pub latent: usize,
    /// Of the part of the keys that is rotated.
    pub rope: usize,
    /// Of the keys that an indexer chooses tokens by; there in `LatentRole::TargetWithIndex` alone.
    pub index: Option<usize>,
}

impl LatentDims {
    /// INTERNAL if the role and the index do not go together, or a size is 0.
    pub(super) fn check(&self, role: LatentRole) -> Result<()> {
        let parts = [Some(self.latent), Some(self.rope), self.index];
        if self.index.is_some() != (role == LatentRole::TargetWithIndex) || parts.contains(&Some(0)) {
            return Err(Error::internal(format!("there is no latent cache {role:?} with {self:?}")));
        }
        Ok(())
    }
}

/// `kv:mla:<role>`: planes `[1, 1, capacity, size]` for each part.
#[derive(Clone, Debug)]
pub struct LatentCache {
    role: LatentRole,
    dims: LatentDims,
    columns: Growing,
}

/// The parts of all tokens, `[1, 1, tokens, size]` each.
#[derive(Clone, Debug)]
pub struct LatentColumns {
    pub latent: Array,
    pub rope: Array,
    pub index: Option<Array>,
}

impl LatentCache {
    /// INTERNAL if the role and the index do not go together, or a size is 0.
    pub fn new(role: LatentRole, dims: LatentDims) -> Result<Self> {
        dims.check(role)?;
        Ok(LatentCache { role, dims, columns: Growing::default() })
    }

    pub(super) fn with_columns(self, columns: Growing) -> Self {
        LatentCache { columns, ..self }
    }

    pub(super) fn columns(&self) -> &Growing {
        &self.columns
    }

    pub fn role(&self) -> LatentRole {
        self.role
    }

    pub fn dims(&self) -> LatentDims {
        self.dims
    }

    /// Appends the parts of the next tokens, `[1, 1, tokens, size]` each, and returns those of all. INTERNAL for sizes
    /// other than the cache's.
    pub fn append_parts(
        &mut self,
        latent: &Array,
        rope: &Array,
        index: Option<&Array>,
    ) -> Result<LatentColumns> {
        let new: Vec<Array> = [Some(latent), Some(rope), index].into_iter().flatten().cloned().collect();
        let sizes: Vec<usize> = new.iter().map(|part| part.dim(-1) as usize).collect();
        if sizes != self.sizes() {
            return Err(Error::internal(format!("a latent cache with {:?} was given {sizes:?}", self.dims)));
        }
        let mut parts = self.columns.append(&new)?.into_iter();
        match (parts.next(), parts.next()) {
            (Some(latent), Some(rope)) => Ok(LatentColumns { latent, rope, index: parts.next() }),
            _ => Err(Error::internal("a latent cache lost its planes")),
        }
    }

    /// The sizes of the planes, in their order.
    pub(super) fn sizes(&self) -> Vec<usize> {
        [Some(self.dims.latent), Some(self.dims.rope), self.dims.index].into_iter().flatten().collect()
    }
}

impl LayerCache for LatentCache {
    fn offset(&self) -> usize {
        self.columns.offset()
    }

    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        self.columns.mask(queries, window)
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.columns.planes().to_vec())
    }

    fn can_forget(&self, _tokens: usize) -> bool {
        true
    }

    fn forget(&mut self, tokens: usize) -> usize {
        self.columns.forget(tokens)
    }

    fn signature(&self) -> Signature {
        Signature::Latent(self.role)
    }

    fn bytes(&self) -> usize {
        self.columns.bytes()
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
