//! Phi-3 and Phi-4: q, k and v in one matrix, gate and up in another.

use crate::base::Result;
use crate::model::config::{Defaults, Fields, HeadDim, MlpForm, ModelConfig, Windows};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        head_dim: HeadDim::Shared,
        max_positions: Some(131_072),
        tied: false,
        partial: Some(1.0),
        ..Defaults::LLAMA
    };
    let mut config = defaults.read(fields)?;
    if fields.flag("attention_bias")? == Some(true) {
        return Err(fields.unsupported("attention_bias", "is true"));
    }
    // mlx-lm 0.32.2 leaves the window out, unlike the model's own code.
    config.slide(fields, Windows::All, None)?;
    config.attention.joined = true;
    config.mlp.form = MlpForm::GatedJoined;
    Ok(config)
}
