//! The configuration that a GGUF file's metadata and tensor table describe.

use std::collections::BTreeSet;

use super::{
    Activation, AttentionConfig, BlockConfig, HeadConfig, HeadTable, LayerConfig, MlpConfig, MlpForm,
    ModelConfig, Names, NormConfig, NormKind, Presence, Rope, RopeScaling, Wide,
};
use crate::base::quote::quote;
use crate::base::{Error, Result};
use crate::model::weights::{ElementType, Encoding, GgufMetadata, Value, WeightFiles};

const ARCHITECTURE: &str = "general.architecture";
/// The architecture that llama, mistral and smollm2 files name.
const LLAMA: &str = "llama";
const PREFIX: &str = "llama.";
/// What the format takes where a file says nothing.
const DEFAULT_THETA: f64 = 10_000.0;

/// Keys of the architecture that are read here, or that change no number.
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
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
];

/// Keys of other graphs, with the value under which they change nothing.
const NEUTRAL: &[(&str, f64)] = &[
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("logit_scale", 1.0),
    ("embedding_scale", 1.0),
    ("residual_scale", 1.0),
    ("rope.scaling.attn_factor", 1.0),
];

/// As above, for switches.
const SWITCHES: &[(&str, bool)] = &[("use_parallel_residual", false), ("attention.causal", true)];

impl ModelConfig {
    /// Reads the configuration of a GGUF file. `weights` are its tensors.
    pub fn from_gguf(metadata: &GgufMetadata, weights: &WeightFiles) -> Result<Self> {
        match metadata.text(ARCHITECTURE)? {
            Some(LLAMA) => {}
            Some(other) => return Err(metadata.unsupported(ARCHITECTURE, format!("is {}", quote(other)))),
            None => return Err(metadata.invalid(ARCHITECTURE, "is missing")),
        }
        refuse_foreign(metadata)?;
        let hidden = required(metadata, "embedding_length")?;
        let heads = per_layer(metadata, "attention.head_count")?
            .ok_or_else(|| metadata.invalid(&key("attention.head_count"), "is missing"))?;
        let head_dim = head_dim(metadata, hidden, heads)?;
        let max_positions = metadata.size(&key("context_length"))?;
        let layers = required(metadata, "block_count")?;
        if !(1..=super::LAYERS_LIMIT).contains(&layers) {
            let what = format!("is {layers}; it must be from 1 to {}", super::LAYERS_LIMIT);
            return Err(metadata.invalid(&key("block_count"), what));
        }
        let norm_eps = metadata
            .number(&key("attention.layer_norm_rms_epsilon"))?
            .ok_or_else(|| metadata.invalid(&key("attention.layer_norm_rms_epsilon"), "is missing"))?;
        let attention_bias = weights.get("model.layers.0.self_attn.q_proj.bias").is_some();
        let config = ModelConfig {
            family: LLAMA,
            model_type: LLAMA.to_owned(),
            multimodal: false,
            hidden,
            layers: vec![LayerConfig::FULL; layers],
            ropes: vec![rope(metadata, weights, head_dim)?],
            intermediate: per_layer(metadata, "feed_forward_length")?
                .ok_or_else(|| metadata.invalid(&key("feed_forward_length"), "is missing"))?,
            heads,
            kv_heads: per_layer(metadata, "attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            vocabulary: vocabulary(metadata, weights)?,
            norm: NormConfig { kind: NormKind::RootMeanSquare, eps: norm_eps, one_more: false },
            block: BlockConfig::BEFORE,
            attention: AttentionConfig {
                bias: attention_bias,
                output_bias: Presence::from(attention_bias),
                joined: false,
                head_norm: None,
                scale: (head_dim as f64).powf(-0.5),
                softcap: None,
                query_growth: None,
                wide: Wide::Never,
            },
            mlp: MlpConfig {
                form: MlpForm::Gated,
                activation: Activation::Silu,
                bias: weights.get("model.layers.0.mlp.gate_proj.bias").is_some(),
            },
            embedding_scale: None,
            residual_scale: None,
            head: HeadConfig {
                table: HeadTable::tied(weights.get("lm_head.weight").is_none()),
                input_divisor: None,
                factor: None,
                divisor: None,
                softcap: None,
            },
            max_positions,
            eos: end_ids(metadata)?,
            bos: metadata.token_id("tokenizer.ggml.bos_token_id")?,
            quantization: None,
        };
        if let Some(window) = metadata.size(&key("attention.sliding_window"))?
            && window > 0
            && max_positions.is_none_or(|positions| window < positions)
        {
            let what = format!("is {window}, less than the positions of the model");
            return Err(metadata.unsupported(&key("attention.sliding_window"), what));
        }
        config.validate(Names::Gguf).map_err(|error| error.file(metadata.path()))
    }
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

fn required(metadata: &GgufMetadata, name: &str) -> Result<usize> {
    let key = key(name);
    metadata.size(&key)?.ok_or_else(|| metadata.invalid(&key, "is missing"))
}

/// A size that may be given once or for each layer, equal in all.
fn per_layer(metadata: &GgufMetadata, name: &str) -> Result<Option<usize>> {
    let key = key(name);
    let Some(Value::Numbers(_)) = metadata.get(&key) else { return metadata.size(&key) };
    let sizes = metadata.integers(&key)?.unwrap_or_default();
    let first = sizes.first().and_then(|size| usize::try_from(*size).ok());
    let first = first.ok_or_else(|| metadata.invalid(&key, "must hold sizes"))?;
    if sizes.iter().any(|size| usize::try_from(*size) != Ok(first)) {
        return Err(metadata.unsupported(&key, "differs between layers"));
    }
    Ok(Some(first))
}

fn head_dim(metadata: &GgufMetadata, hidden: usize, heads: usize) -> Result<usize> {
    let head_dim = match metadata.size(&key("attention.key_length"))? {
        Some(size) => size,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let what = format!("is {heads}, which does not divide the embedding length {hidden}");
            return Err(metadata.invalid(&key("attention.head_count"), what));
        }
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(size) = metadata.size(&key(name))?
            && size != head_dim
        {
            return Err(metadata.unsupported(&key(name), format!("is {size}, but a head has {head_dim}")));
        }
    }
    Ok(head_dim)
}

/// As the file says, or the rows of the embedding.
fn vocabulary(metadata: &GgufMetadata, weights: &WeightFiles) -> Result<usize> {
    if let Some(size) = metadata.size(&key("vocab_size"))? {
        return Ok(size);
    }
    let embedding = weights.get("model.embed_tokens.weight");
    embedding
        .and_then(|tensor| tensor.shape.first().copied())
        .ok_or_else(|| weights.missing("token_embd.weight"))
}

fn refuse_foreign(metadata: &GgufMetadata) -> Result<()> {
    for full in metadata.keys() {
        let Some(name) = full.strip_prefix(PREFIX) else { continue };
        if KNOWN.contains(&name) {
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

fn rope(metadata: &GgufMetadata, weights: &WeightFiles, dims: usize) -> Result<Rope> {
    let kind_key = key("rope.scaling.type");
    // A factor of 0 means that none is given.
    let mut factor = metadata.number(&key("rope.scaling.factor"))?.filter(|factor| *factor != 0.0);
    if factor.is_none() {
        factor = metadata.number(&key("rope.scale_linear"))?.filter(|factor| *factor != 0.0);
    }
    let mut scaling = match (metadata.text(&kind_key)?, factor) {
        (Some("none"), _) => RopeScaling::None,
        (None | Some("linear"), None | Some(1.0)) => RopeScaling::None,
        (None | Some("linear"), Some(factor)) => RopeScaling::Linear { factor },
        (Some(other), _) => return Err(metadata.unsupported(&kind_key, format!("is {}", quote(other)))),
    };
    if let Some(factors) = rope_factors(weights)? {
        if scaling != RopeScaling::None {
            return Err(metadata.unsupported(&kind_key, "is given together with rope_freqs.weight"));
        }
        scaling = RopeScaling::Factors(factors);
    }
    Ok(Rope {
        dims,
        theta: metadata.number(&key("rope.freq_base"))?.unwrap_or(DEFAULT_THETA),
        // The rows of q and k are brought into the order in which halves form pairs.
        traditional: false,
        scaling,
    })
}

/// Llama 3's scaling comes as a table.
fn rope_factors(weights: &WeightFiles) -> Result<Option<Vec<f32>>> {
    const FACTORS_LIMIT: u64 = 65_536;
    let Some(tensor) = weights.get("rope_freqs.weight") else { return Ok(None) };
    if tensor.encoding != Encoding::Plain(ElementType::F32) || tensor.bytes > FACTORS_LIMIT {
        return Err(weights.invalid(tensor, "must be a short list of float32"));
    }
    let bytes = weights.read(tensor, 0..tensor.bytes)?;
    Ok(Some(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
}

/// Every id that ends a text, a turn or a message.
fn end_ids(metadata: &GgufMetadata) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ids.extend(metadata.token_id(key)?);
    }
    const LIST: &str = "tokenizer.ggml.eos_token_ids";
    for id in metadata.integers(LIST)?.unwrap_or_default() {
        let id: Result<u32, Error> = u32::try_from(id)
            .map_err(|_| metadata.invalid(LIST, format!("holds {id}, which is no token id")));
        ids.insert(id?);
    }
    Ok(ids)
}
