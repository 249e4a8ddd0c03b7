//! GLM-4: norms before and after each half, a rotation of a part of each head.

use crate::base::Result;
use crate::model::config::{BlockConfig, Defaults, Fields, HeadTable, MlpForm, ModelConfig};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        traditional: true,
        max_positions: Some(32_768),
        partial: Some(0.5),
        tied: false,
        ..Defaults::LLAMA
    };
    let mut config = defaults.read(fields)?;
    config.attention.bias = fields.flag("attention_bias")?.unwrap_or(false);
    config.block = BlockConfig {
        after_attention: Some("post_self_attn_layernorm"),
        after_mlp: Some("post_mlp_layernorm"),
        ..BlockConfig::BEFORE
    };
    config.mlp.form = MlpForm::GatedJoined;
    if config.head.table == HeadTable::Embedding {
        return Err(fields.unsupported("tie_word_embeddings", "is true"));
    }
    Ok(config)
}
