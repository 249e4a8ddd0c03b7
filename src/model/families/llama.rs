//! Llama, and Mistral before its third generation, which differs in its window alone.

use super::ministral3;
use crate::base::Result;
use crate::base::quote::quote;
use crate::model::config::{Defaults, Fields, HeadTable, ModelConfig, Windows};

pub fn llama(fields: &Fields<'_>) -> Result<ModelConfig> {
    describe(fields, Windows::None)
}

/// All layers slide where the file has a window. mlx-lm 0.32.2 leaves it out, unlike the models' own code.
pub fn mistral(fields: &Fields<'_>) -> Result<ModelConfig> {
    describe(fields, Windows::All)
}

/// The text model inside `mistral3`, which has an output head of its own unless the file says otherwise.
pub fn inside_mistral3(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config = match fields.text("model_type")? {
        Some("ministral3") => ministral3::describe(fields)?,
        Some("mistral") | None => mistral(fields)?,
        Some(other) => return Err(fields.unsupported("model_type", format!("is {}", quote(other)))),
    };
    config.head.table = HeadTable::tied(fields.flag("tie_word_embeddings")?.unwrap_or(false));
    Ok(config)
}

/// With sliding layers where `layer_types` says so, else where `windows` does.
pub fn describe(fields: &Fields<'_>, windows: Windows) -> Result<ModelConfig> {
    let mut config = Defaults::LLAMA.read(fields)?;
    biases(&mut config, fields)?;
    config.slide(fields, windows, None)?;
    Ok(config)
}

/// `attention_bias` for all four projections of attention, `mlp_bias` for the rest.
pub fn biases(config: &mut ModelConfig, fields: &Fields<'_>) -> Result<()> {
    config.attention.bias = fields.flag("attention_bias")?.unwrap_or(false);
    config.attention.output_bias = config.attention.bias.into();
    config.mlp.bias = fields.flag("mlp_bias")?.unwrap_or(false);
    Ok(())
}
