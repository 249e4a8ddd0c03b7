//! Qwen 2 and 3.

use crate::base::Result;
use crate::model::config::{Defaults, Fields, HeadDim, HeadNorm, ModelConfig};

/// Biases of q, k and v.
pub fn qwen2(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        head_dim: HeadDim::Shared,
        theta: 1_000_000.0,
        max_positions: Some(32_768),
        ..Defaults::LLAMA
    };
    let mut config = defaults.read(fields)?;
    config.attention.bias = true;
    Ok(config)
}

/// Norms of each head's queries and keys.
pub fn qwen3(fields: &Fields<'_>) -> Result<ModelConfig> {
    // mlx-lm wants to be told; the model's own code takes false.
    let defaults = Defaults { theta: 1_000_000.0, tied: false, ..Defaults::LLAMA };
    let mut config = defaults.read(fields)?;
    if fields.flag("attention_bias")? == Some(true) {
        return Err(fields.unsupported("attention_bias", "is true"));
    }
    config.attention.head_norm = Some(HeadNorm::Shared);
    Ok(config)
}
