//! StableLM 2: layer norms, a rotation of a part of each head, halves in series or in parallel.

use crate::base::Result;
use crate::model::config::{
    BlockConfig, Defaults, Fields, HeadDim, HeadNorm, HeadTable, ModelConfig, NormKind, Order, Wide,
};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        head_dim: HeadDim::Shared,
        eps_field: "layer_norm_eps",
        partial: Some(0.25),
        tied: false,
        ..Defaults::LLAMA
    };
    let mut config = defaults.read(fields)?;
    config.attention.bias = fields.flag("use_qkv_bias")?.unwrap_or(false);
    config.attention.scale = (1.0 / config.head_dim as f64).sqrt();
    config.attention.wide = Wide::Always;
    if fields.flag("qk_layernorm")?.unwrap_or(false) {
        config.attention.head_norm = Some(HeadNorm::Own);
    }
    config.norm.kind = NormKind::Layer { bias: true };
    if fields.flag("use_parallel_residual")?.unwrap_or(false) {
        config.block = BlockConfig { before_mlp: None, order: Order::Parallel, ..BlockConfig::BEFORE };
    }
    if config.head.table == HeadTable::Embedding {
        return Err(fields.unsupported("tie_word_embeddings", "is true"));
    }
    Ok(config)
}
