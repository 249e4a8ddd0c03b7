//! How a model's caches are kept, as its arithmetic decides.

use crate::base::options::{CacheOptions, KvType};
use crate::base::{Error, Result};
use crate::cache::{Backing, LayerNeeds, Scheme};
use crate::mlx::Dtype;
use crate::model::tensors::Arithmetic;

#[derive(Clone, Copy, Debug)]
pub(super) struct CacheForms {
    pub(super) arithmetic: Arithmetic,
    /// Of keys and values, unless a cache asks for another.
    pub(super) kv_dtype: Dtype,
    /// Tokens of a forward of a prompt.
    pub(super) chunk: u64,
}

impl CacheForms {
    /// The scheme of a set with these options, for layers with these needs.
    pub(super) fn scheme(&self, options: &CacheOptions, needs: &[LayerNeeds]) -> Result<Scheme> {
        let backing = match self.arithmetic {
            Arithmetic::Kernels => Backing::Segments,
            Arithmetic::Exact | Arithmetic::Blas => Backing::Arrays,
        };
        Scheme::new(options, needs, backing, self.dtype(options.kv_type)?, self.chunk)
    }

    /// The type of a new cache's keys and values. Only kernels of ours convert them.
    fn dtype(&self, asked: KvType) -> Result<Dtype> {
        let asked = match asked {
            KvType::Auto => return Ok(self.kv_dtype),
            KvType::Float32 => Dtype::Float32,
            KvType::Float16 => Dtype::Float16,
            KvType::Bfloat16 => Dtype::Bfloat16,
        };
        if asked == self.kv_dtype || self.arithmetic == Arithmetic::Kernels {
            return Ok(asked);
        }
        Err(Error::unsupported(format!(
            "this model keeps keys and values in its compute type, {}",
            self.kv_dtype.name()
        ))
        .field("kv_type"))
    }
}
