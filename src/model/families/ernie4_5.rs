//! ERNIE 4.5: a llama whose neighbours turn together.

use crate::base::Result;
use crate::model::config::{Defaults, Fields, ModelConfig};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config = Defaults { traditional: true, ..Defaults::LLAMA }.read(fields)?;
    let bias = fields.flag("use_bias")?.unwrap_or(false);
    config.attention.bias = bias;
    config.attention.output_bias = bias.into();
    config.mlp.bias = bias;
    Ok(config)
}
