//! The configuration that a GGUF file's metadata and tensor table describe.
//!
//! An architecture is a row of `architectures::ALL` and a small function over the shared base.

mod architectures;
mod rope;
mod source;

use architectures::Architecture;
use source::Source;

use super::{ModelConfig, Names};
use crate::base::Result;
use crate::base::quote::quote;
use crate::model::weights::{GgufMetadata, WeightFiles};

const ARCHITECTURE: &str = "general.architecture";

/// Keys of any architecture that are read here, or that change no number.
const KNOWN: &[&str] = &[
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "tensor_data_layout",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// Keys of other graphs, with the value under which they change nothing.
const NEUTRAL: &[(&str, f64)] = &[
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("expert_group_count", 0.0),
    ("expert_group_used_count", 0.0),
    ("expert_shared_count", 0.0),
    ("expert_shared_feed_forward_length", 0.0),
    ("nextn_predict_layers", 0.0),
    ("pooling_type", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.scale", 0.0),
    ("logit_scale", 1.0),
    ("embedding_scale", 1.0),
    ("residual_scale", 1.0),
    ("rope.scaling.alpha", 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
];

/// As above, for switches.
const SWITCHES: &[(&str, bool)] = &[("use_parallel_residual", false), ("attention.causal", true)];

impl ModelConfig {
    /// Reads the configuration of a GGUF file. `weights` are its tensors.
    pub fn from_gguf(metadata: &GgufMetadata, weights: &WeightFiles) -> Result<Self> {
        let name =
            metadata.text(ARCHITECTURE)?.ok_or_else(|| metadata.invalid(ARCHITECTURE, "is missing"))?;
        let architecture = Architecture::find(name).ok_or_else(|| {
            let known: Vec<&str> = architectures::ALL.iter().map(|known| known.name).collect();
            metadata.unsupported(ARCHITECTURE, format!("is {}; known are {}", quote(name), known.join(", ")))
        })?;
        let source = Source::new(metadata, weights, architecture);
        refuse_foreign(&source)?;
        let mut config = (architecture.describe)(&source)?;
        config.family = architecture.family;
        config.model_type = name.to_owned();
        if !architecture.slides {
            source.refuse_window(&config)?;
        }
        config.validate(Names::Gguf(architecture.name)).map_err(|error| error.file(metadata.path()))
    }
}

/// UNSUPPORTED naming a key of the architecture that would change the numbers and that nothing reads.
fn refuse_foreign(source: &Source<'_>) -> Result<()> {
    let metadata = source.metadata;
    let prefix = format!("{}.", source.architecture.name);
    for full in metadata.keys() {
        let Some(name) = full.strip_prefix(&prefix) else { continue };
        if KNOWN.contains(&name) || source.architecture.keys.contains(&name) {
            continue;
        }
        if let Some((_, neutral)) = NEUTRAL.iter().find(|(known, _)| *known == name) {
            if metadata.number(full)? != Some(*neutral) {
                return Err(metadata.unsupported(full, "belongs to another graph"));
            }
        } else if let Some((_, neutral)) = SWITCHES.iter().find(|(known, _)| *known == name) {
            if metadata.flag(full)? != Some(*neutral) {
                return Err(metadata.unsupported(full, "belongs to another graph"));
            }
        } else {
            return Err(metadata.unsupported(full, "is a parameter that is not known"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod architecture_tests;
#[cfg(test)]
mod tests;
