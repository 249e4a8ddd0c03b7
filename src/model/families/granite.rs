//! Granite: a llama with multipliers of embeddings, scores, residuals and final scores.

use super::llama;
use crate::base::Result;
use crate::model::config::{Defaults, EmbeddingScale, Fields, HeadDim, ModelConfig};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config = Defaults { head_dim: HeadDim::Shared, ..Defaults::LLAMA }.read(fields)?;
    llama::biases(&mut config, fields)?;
    let number = |name: &str| fields.number(name)?.ok_or_else(|| fields.invalid(name, "is missing"));
    config.embedding_scale = Some(EmbeddingScale::Plain(number("embedding_multiplier")?));
    config.attention.scale = number("attention_multiplier")?;
    config.residual_scale = Some(number("residual_multiplier")?);
    config.head.divisor = Some(number("logits_scaling")?);
    Ok(config)
}
