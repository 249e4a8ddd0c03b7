//! InternLM 3: a llama that names its biases otherwise.

use crate::base::Result;
use crate::model::config::{Defaults, Fields, HeadDim, ModelConfig, Presence};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults =
        Defaults { head_dim: HeadDim::Shared, max_positions: Some(32_768), tied: false, ..Defaults::LLAMA };
    let mut config = defaults.read(fields)?;
    let bias = fields.flag("bias")?.unwrap_or(false);
    config.attention.bias = fields.flag("qkv_bias")?.unwrap_or(false);
    // The model's own code takes `bias` for it, mlx-lm `qkv_bias`; where they differ, the file knows.
    config.attention.output_bias = if bias == config.attention.bias { bias.into() } else { Presence::AsFile };
    config.mlp.bias = bias;
    Ok(config)
}
