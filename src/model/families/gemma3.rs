//! Gemma 3's text model: most layers slide, with a rotation of their own.

use super::gemma2;
use crate::base::Result;
use crate::model::config::{
    BlockConfig, Defaults, EmbeddingScale, Fields, HeadDim, HeadNorm, HeadTable, KvHeads, ModelConfig,
    RopeDefaults, Windows,
};

const WINDOW: usize = 512;
const PATTERN: usize = 6;
const GLOBAL_THETA: f64 = 1_000_000.0;
const LOCAL_THETA: f64 = 10_000.0;

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        hidden: Some(1152),
        layers: Some(26),
        intermediate: Some(6912),
        heads: Some(4),
        kv_heads: KvHeads::Number(1),
        head_dim: HeadDim::Number(256),
        vocabulary: Some(262_144),
        max_positions: Some(32_768),
        eps: Some(1e-6),
        theta: GLOBAL_THETA,
        activations: gemma2::ACTIVATIONS,
        ..Defaults::LLAMA
    };
    read(fields, defaults)
}

/// The text model inside `gemma3`, whose file leaves more out.
pub fn inside(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        hidden: Some(2304),
        layers: Some(26),
        intermediate: Some(9216),
        heads: Some(8),
        kv_heads: KvHeads::Number(4),
        head_dim: HeadDim::Number(256),
        vocabulary: Some(262_208),
        max_positions: Some(131_072),
        eps: Some(1e-6),
        theta: GLOBAL_THETA,
        activations: gemma2::ACTIVATIONS,
        ..Defaults::LLAMA
    };
    read(fields, defaults)
}

fn read(fields: &Fields<'_>, defaults: Defaults) -> Result<ModelConfig> {
    let mut config = defaults.read(fields)?;
    gemma2::activation(&mut config, fields)?;
    let pattern = fields.size("sliding_window_pattern")?.or(fields.size("_sliding_window_pattern")?);
    let pattern = pattern.unwrap_or(PATTERN);
    if pattern == 0 {
        return Err(fields.invalid("sliding_window_pattern", "is 0; it must be at least 1"));
    }
    let sliding = config.slide(fields, Windows::AllButEvery(pattern), Some(WINDOW))?;
    let local = RopeDefaults {
        head_dim: config.head_dim,
        partial: None,
        theta: LOCAL_THETA,
        traditional: false,
        max_positions: config.max_positions,
    };
    config.ropes.push(local.read_local(fields)?);
    for (layer, slides) in config.layers.iter_mut().zip(sliding) {
        layer.rope = Some(usize::from(slides));
    }
    let scalar = fields.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    config.attention.scale = scalar.powf(-0.5);
    for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(cap) = fields.number(name)? {
            return Err(fields.unsupported(name, format!("is {cap}")));
        }
    }
    config.attention.head_norm = Some(HeadNorm::Shared);
    config.norm.one_more = true;
    config.block = BlockConfig { clipped: true, ..BlockConfig::AROUND };
    config.head.table = HeadTable::OwnIfPresent;
    config.embedding_scale = Some(EmbeddingScale::Bfloat16((config.hidden as f64).powf(0.5)));
    Ok(config)
}
