//! Rotation, storage and attention as one operation, over keys and values in the kernels' own order.

use std::sync::Arc;

use super::rope::Rope;
use crate::base::Result;
pub use crate::mlx::kernels::attention::{KvForm, KvShape};
pub use crate::mlx::kernels::float::Float;
pub use crate::mlx::kernels::kv::{
    CausalAttention, HeadNorm, HeadNorms, LatentAttention, Pools, QueryGrowth, SavedTokens, Segments,
    TokenIndexer, Visible, attend, attend_latent, choose_tokens, store,
};
pub use crate::mlx::kernels::rope::Rotation;

/// The table of a rotation that does not depend on the length of the sequence; `None`: nothing turns.
pub fn rotation(rope: Option<&Rope>) -> Result<Arc<Rotation>> {
    Ok(Arc::new(match rope {
        None => Rotation::new(Vec::new(), 1.0, false),
        Some(rope) => {
            let (frequencies, factor) = rope.frequencies()?;
            Rotation::new(frequencies, factor, rope.is_traditional())
        }
    }))
}

impl CausalAttention {
    /// Plain attention with one rotation.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize, scale: f32, rope: &Rope) -> Result<Self> {
        let rotation = rotation(Some(rope))?;
        Ok(CausalAttention {
            heads,
            kv_heads,
            head_dim,
            scale,
            soft_cap: None,
            rotation,
            norms: None,
            growth: None,
        })
    }
}
