//! A model's configuration, from `config.json` or from GGUF metadata.

mod dense;
mod fields;
mod gguf;
mod json;
mod quantization;
mod rope;

use std::borrow::Cow;
use std::collections::BTreeSet;

pub use dense::{
    Activation, AttentionConfig, BlockConfig, EmbeddingScale, HeadConfig, HeadNorm, HeadTable, LayerConfig,
    MlpConfig, MlpForm, NormConfig, NormKind, Order, Presence, QueryGrowth, Wide,
};
pub use fields::Fields;
pub use json::{Defaults, HeadDim, KvHeads, Windows};
pub use quantization::{Affine, Microscaled, Override, Packing, Quantization};
pub use rope::{DEFAULT_THETA, LongRope, Rope, RopeDefaults, RopeScaling, yarn_scale};

use crate::base::{Error, Result};

/// MLX counts elements and positions in 32-bit signed numbers.
const SIZE_LIMIT: usize = i32::MAX as usize;
/// More layers than any model has; bounds what is planned before the first tensor is looked up.
const LAYERS_LIMIT: usize = 65_536;

/// The hyperparameters of a dense decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Such as `llama`.
    pub family: &'static str,
    /// As the file says, such as `llama` or `mistral`.
    pub model_type: String,
    /// The text model of a file that holds other models too.
    pub multimodal: bool,
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub layers: Vec<LayerConfig>,
    /// The rotations that layers name.
    pub ropes: Vec<Rope>,
    pub norm: NormConfig,
    pub block: BlockConfig,
    pub attention: AttentionConfig,
    pub mlp: MlpConfig,
    pub embedding_scale: Option<EmbeddingScale>,
    /// What a layer's halves add is multiplied by it.
    pub residual_scale: Option<f64>,
    pub head: HeadConfig,
    /// Most positions that the model was trained for, if it says so.
    pub max_positions: Option<usize>,
    /// Ids that end a generation, from all of the model's configuration files.
    pub eos: BTreeSet<u32>,
    pub bos: Option<u32>,
    /// How safetensors weights were quantised. GGUF tensors speak for themselves.
    pub quantization: Option<Quantization>,
}

/// Whose names the errors use for fields.
#[derive(Clone, Copy, Debug)]
enum Names {
    Json,
    /// With the architecture, before its keys.
    Gguf(&'static str),
}

impl Names {
    /// The source's name of a field that `config.json` calls `field`.
    fn of(self, field: &'static str) -> Cow<'static, str> {
        let Names::Gguf(architecture) = self else { return field.into() };
        let key = match field {
            "hidden_size" => "embedding_length",
            "num_hidden_layers" => "block_count",
            "intermediate_size" => "feed_forward_length",
            "num_attention_heads" => "attention.head_count",
            "num_key_value_heads" => "attention.head_count_kv",
            "head_dim" => "attention.key_length",
            "vocab_size" => "vocab_size",
            "max_position_embeddings" => "context_length",
            "sliding_window" => "attention.sliding_window",
            "attention_multiplier" => "attention.scale",
            "attn_logit_softcapping" => "attn_logit_softcapping",
            "final_logit_softcapping" => "final_logit_softcapping",
            "logits_scaling" | "dim_model_base" => "logit_scale",
            "rope_theta" => "rope.freq_base",
            "rope_scaling.factor" => "rope.scaling.factor",
            "rope_scaling.original_max_position_embeddings" => "rope.scaling.original_context_length",
            "rope_scaling.beta_fast" => "rope.scaling.yarn_beta_fast",
            "rope_scaling.beta_slow" => "rope.scaling.yarn_beta_slow",
            "rope_scaling.short_mscale" | "rope_scaling.long_mscale" => "rope.scaling.attn_factor",
            "rope_scaling.short_factor" => return "rope_factors_short.weight".into(),
            "rope_scaling.long_factor" => return "rope_factors_long.weight".into(),
            _ => return field.into(),
        };
        format!("{architecture}.{key}").into()
    }

    /// INVALID_MODEL: "`field` `what`".
    fn invalid(self, field: &'static str, what: impl AsRef<str>) -> Error {
        let field = self.of(field);
        Error::invalid_model(format!("{field} {}", what.as_ref())).field(field)
    }
}

impl ModelConfig {
    /// Most positions of a sequence, if the model says so: those that it was trained for, stretched where a rotation
    /// that grows with the length stretches them.
    pub fn context(&self) -> Option<usize> {
        let stretch = self.ropes.iter().map(|rope| match rope.scaling {
            RopeScaling::Dynamic { factor, .. } => factor.max(1.0),
            _ => 1.0,
        });
        let stretch = stretch.fold(1.0, f64::max);
        self.max_positions.map(|positions| ((positions as f64 * stretch) as usize).min(SIZE_LIMIT))
    }

    /// Checks what one field alone does not show.
    fn validate(self, names: Names) -> Result<Self> {
        let bad = |field: &'static str, what: String| Err(names.invalid(field, what));
        for (field, size) in [
            ("hidden_size", self.hidden),
            ("num_hidden_layers", self.layers.len()),
            ("intermediate_size", self.intermediate),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocabulary),
            ("max_position_embeddings", self.max_positions.unwrap_or(1)),
        ] {
            if !(1..=SIZE_LIMIT).contains(&size) {
                return bad(field, format!("is {size}; it must be from 1 to {SIZE_LIMIT}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return bad(
                "num_key_value_heads",
                format!("is {}, which does not divide the {} heads", self.kv_heads, self.heads),
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return bad("head_dim", format!("is {}; rotary positions need an even number", self.head_dim));
        }
        if self.heads.checked_mul(self.head_dim).is_none_or(|width| width > SIZE_LIMIT) {
            return bad("head_dim", format!("times {} heads is too large", self.heads));
        }
        if let Some(window) = self.layers.iter().filter_map(|layer| layer.window).find(|window| {
            // A query sees itself.
            !(1..=SIZE_LIMIT).contains(window)
        }) {
            return bad("sliding_window", format!("is {window}; it must be from 1 to {SIZE_LIMIT}"));
        }
        if !(self.norm.eps >= 0.0 && self.norm.eps < 1.0) {
            return bad("rms_norm_eps", format!("is {}; it must be from 0 to below 1", self.norm.eps));
        }
        if !(self.attention.scale > 0.0 && self.attention.scale <= f64::from(f32::MAX)) {
            return bad("attention_multiplier", format!("gives a scale of {}", self.attention.scale));
        }
        // In float32, in which they are used.
        let embedding_scale = self.embedding_scale.map(|scale| match scale {
            EmbeddingScale::Plain(factor)
            | EmbeddingScale::Rounded(factor)
            | EmbeddingScale::Bfloat16(factor) => factor,
        });
        for (field, number) in [
            ("embedding_multiplier", embedding_scale),
            ("residual_multiplier", self.residual_scale),
            ("logit_scale", self.head.factor),
        ] {
            if let Some(number) = number
                && !(number as f32).is_finite()
            {
                return bad(field, format!("gives {number}, which float32 cannot hold"));
            }
        }
        for (field, number) in [
            ("attn_logit_softcapping", self.attention.softcap),
            ("final_logit_softcapping", self.head.softcap),
            ("logits_scaling", self.head.divisor),
            ("dim_model_base", self.head.input_divisor),
        ] {
            if let Some(number) = number
                && !(number > 0.0 && (number as f32).is_normal())
            {
                return bad(field, format!("gives {number}; it must be above 0"));
            }
        }
        for rope in &self.ropes {
            rope.validate(names)?;
        }
        if self.layers.iter().filter_map(|layer| layer.rope).any(|rope| rope >= self.ropes.len()) {
            return Err(Error::internal("a layer with a rotation that is not there"));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod family_tests;
#[cfg(test)]
mod odd_number_tests;
#[cfg(test)]
mod tests;
