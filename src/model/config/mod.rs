//! A model's configuration, from `config.json` or from GGUF metadata.

mod fields;
mod json;
mod quantization;
mod rope;

use std::collections::BTreeSet;

pub use quantization::{Affine, Override, Quantization};
pub use rope::{Rope, RopeScaling};

use crate::base::{Error, Result};

/// MLX counts elements and positions in 32-bit signed numbers.
const SIZE_LIMIT: usize = i32::MAX as usize;
/// More layers than any model has; bounds what is planned before the first tensor is looked up.
const LAYERS_LIMIT: usize = 65_536;

/// The hyperparameters of a llama-like model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// As the file says, such as `llama` or `mistral`.
    pub model_type: String,
    pub hidden: usize,
    pub layers: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate: usize,
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub norm_eps: f64,
    pub rope: Rope,
    /// Most positions that the model was trained for, if it says so.
    pub max_positions: Option<usize>,
    /// The output head is the embedding matrix.
    pub tied: bool,
    /// The q, k, v and o projections have biases.
    pub attention_bias: bool,
    /// The feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Ids that end a generation, from all of the model's configuration files.
    pub eos: BTreeSet<u32>,
    pub bos: Option<u32>,
    /// How safetensors weights were quantised. GGUF tensors speak for themselves.
    pub quantization: Option<Quantization>,
}

impl ModelConfig {
    /// Checks what one field alone does not show. The errors name the field as `config.json`
    /// calls it.
    fn validate(self) -> Result<Self> {
        let bad =
            |field: &str, what: String| Err(Error::invalid_model(format!("{field} {what}")).field(field));
        for (field, size) in [
            ("hidden_size", self.hidden),
            ("num_hidden_layers", self.layers),
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
        if self.layers > LAYERS_LIMIT {
            return bad(
                "num_hidden_layers",
                format!("is {}; at most {LAYERS_LIMIT} are possible", self.layers),
            );
        }
        if self.heads % self.kv_heads != 0 {
            return bad(
                "num_key_value_heads",
                format!("is {}, which does not divide the {} heads", self.kv_heads, self.heads),
            );
        }
        if self.head_dim % 2 != 0 {
            return bad("head_dim", format!("is {}; rotary positions need an even number", self.head_dim));
        }
        if self.heads.checked_mul(self.head_dim).is_none_or(|width| width > SIZE_LIMIT) {
            return bad("head_dim", format!("times {} heads is too large", self.heads));
        }
        if !(self.norm_eps >= 0.0 && self.norm_eps < 1.0) {
            return bad("rms_norm_eps", format!("is {}; it must be from 0 to below 1", self.norm_eps));
        }
        self.rope.validate(self.head_dim)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
