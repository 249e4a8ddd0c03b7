//! Seed-OSS: a llama with biases of its own for attention's output.

use super::llama;
use crate::base::Result;
use crate::model::config::{Defaults, Fields, ModelConfig};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config = Defaults::LLAMA.read(fields)?;
    llama::biases(&mut config, fields)?;
    config.attention.output_bias = fields.flag("attention_out_bias")?.unwrap_or(false).into();
    Ok(config)
}
