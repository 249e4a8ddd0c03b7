//! MiniCPM: a llama with multipliers that follow from its depth and width.

use crate::base::Result;
use crate::model::config::{Defaults, EmbeddingScale, Fields, HeadDim, HeadTable, ModelConfig};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults { head_dim: HeadDim::Shared, theta: 1_000_000.0, tied: false, ..Defaults::LLAMA };
    let mut config = defaults.read(fields)?;
    let number = |name: &str| fields.number(name)?.ok_or_else(|| fields.invalid(name, "is missing"));
    config.embedding_scale = Some(EmbeddingScale::Plain(number("scale_emb")?));
    config.residual_scale = Some(number("scale_depth")? / (config.layers.len() as f64).powf(0.5));
    config.head.input_divisor = Some(config.hidden as f64 / number("dim_model_base")?);
    if config.head.table == HeadTable::Own {
        config.head.table = HeadTable::OwnIfPresent;
    }
    Ok(config)
}
