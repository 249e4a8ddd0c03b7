//! Command R7B: both halves of a layer from one norm; layers that see everything have no positions.

use super::llama;
use crate::base::Result;
use crate::model::config::{
    BlockConfig, Defaults, Fields, HeadDim, HeadTable, KvHeads, ModelConfig, NormKind, Order, Wide, Windows,
};

const WINDOW: usize = 4096;
const PATTERN: usize = 4;

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        hidden: Some(4096),
        layers: Some(32),
        intermediate: Some(14_336),
        heads: Some(32),
        kv_heads: KvHeads::Number(8),
        head_dim: HeadDim::Number(128),
        vocabulary: Some(256_000),
        eps_field: "layer_norm_eps",
        eps: Some(1e-5),
        theta: 50_000.0,
        traditional: true,
        ..Defaults::LLAMA
    };
    let mut config = defaults.read(fields)?;
    if config.head_dim.checked_mul(config.heads) != Some(config.hidden) {
        let what = format!("is {}, which {} heads do not share", config.hidden, config.heads);
        return Err(fields.invalid("hidden_size", what));
    }
    let pattern = fields.size("sliding_window_pattern")?.unwrap_or(PATTERN);
    if pattern == 0 {
        return Err(fields.invalid("sliding_window_pattern", "is 0; it must be at least 1"));
    }
    let sliding = config.slide(fields, Windows::AllButEvery(pattern), Some(WINDOW))?;
    for (layer, slides) in config.layers.iter_mut().zip(sliding) {
        layer.rope = slides.then_some(0);
    }
    llama::biases(&mut config, fields)?;
    config.mlp.bias = false;
    config.norm.kind = NormKind::Layer { bias: fields.flag("layer_norm_bias")?.unwrap_or(false) };
    config.block = BlockConfig { before_mlp: None, order: Order::ParallelFirst, ..BlockConfig::BEFORE };
    config.attention.wide = Wide::Float16Queries;
    config.head.table = HeadTable::Embedding;
    config.head.factor = Some(fields.number("logit_scale")?.unwrap_or(0.0625));
    Ok(config)
}
