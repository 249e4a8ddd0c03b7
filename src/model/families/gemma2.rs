//! Gemma 2: norms before and after each half, soft caps of attention's and of the final scores.

use crate::base::Result;
use crate::base::quote::quote;
use crate::model::config::{
    Activation, BlockConfig, Defaults, EmbeddingScale, Fields, HeadTable, ModelConfig, Windows,
};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults { max_positions: Some(8192), activations: ACTIVATIONS, ..Defaults::LLAMA };
    let mut config = defaults.read(fields)?;
    activation(&mut config, fields)?;
    // Every other layer, from the first on. mlx-lm 0.32.2 leaves the windows out, unlike the model's own code.
    config.slide(fields, Windows::Alternate, None)?;
    config.norm.one_more = true;
    config.block = BlockConfig::AROUND;
    let scalar = fields.number("query_pre_attn_scalar")?.unwrap_or(144.0);
    config.attention.scale = 1.0 / scalar.powf(0.5);
    config.attention.softcap = Some(fields.number("attn_logit_softcapping")?.unwrap_or(50.0));
    config.head.softcap = Some(fields.number("final_logit_softcapping")?.unwrap_or(30.0));
    config.head.table = HeadTable::Embedding;
    config.embedding_scale = Some(EmbeddingScale::Rounded((config.hidden as f64).powf(0.5)));
    Ok(config)
}

/// Some files say `gelu` and mean its approximation.
pub const ACTIVATIONS: &[Activation] = &[Activation::GeluTanh, Activation::Gelu];

/// The approximation, whatever name a file has for it; newer ones have another field.
pub fn activation(config: &mut ModelConfig, fields: &Fields<'_>) -> Result<()> {
    match fields.text("hidden_activation")? {
        Some("gelu_pytorch_tanh" | "gelu") | None => config.mlp.activation = Activation::GeluTanh,
        Some(other) => return Err(fields.unsupported("hidden_activation", format!("is {}", quote(other)))),
    }
    Ok(())
}
