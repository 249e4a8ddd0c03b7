//! Rotation, storage and attention as one operation, over keys and values in the kernels' own order.

use std::sync::Arc;

use super::rope::Rope;
use crate::base::Result;
pub use crate::mlx::kernels::attention::{KvForm, KvShape};
pub use crate::mlx::kernels::kv::{CausalAttention, Pools, SavedTokens, Segments, Visible, attend, store};
use crate::mlx::kernels::rope::Rotation;

impl CausalAttention {
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize, scale: f32, rope: &Rope) -> Result<Self> {
        let rotation = Arc::new(Rotation::new(rope.frequencies()?, 1.0, rope.is_traditional()));
        Ok(CausalAttention { heads, kv_heads, head_dim, scale, window: None, rotation })
    }
}
