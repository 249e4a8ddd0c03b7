//! `config.json` and `generation_config.json` of a model folder.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::fields::{Fields, JsonFile};
use super::{ModelConfig, Names, Quantization, Rope};
use crate::base::quote::quote;
use crate::base::{Code, Error, Result};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// Model types with the llama graph.
const MODEL_TYPES: [&str; 2] = ["llama", "mistral"];

/// Fields of other graphs, with the values under which they change nothing. A llama file that
/// sets one otherwise would be computed wrongly.
const NEUTRAL: &[(&str, &[f64])] = &[
    ("partial_rotary_factor", &[1.0]),
    ("rotary_pct", &[1.0]),
    ("attn_logit_softcapping", &[]),
    ("final_logit_softcapping", &[]),
    ("logit_scale", &[1.0]),
    ("logits_scaling", &[1.0]),
    ("embedding_multiplier", &[1.0]),
    ("residual_multiplier", &[1.0]),
    ("attention_multiplier", &[]),
    ("scale_emb", &[1.0]),
    ("scale_depth", &[]),
    ("query_pre_attn_scalar", &[]),
    ("clip_qkv", &[]),
    ("num_experts", &[0.0]),
    ("num_local_experts", &[0.0]),
    ("n_routed_experts", &[0.0]),
    ("no_rope_layer_interval", &[0.0]),
];

/// As above, for switches that must be off.
const OFF: &[&str] =
    &["qk_norm", "use_qk_norm", "parallel_residual", "use_parallel_residual", "quantize_activations"];

impl ModelConfig {
    /// Reads the configuration of a model folder.
    pub fn open_folder(folder: &Path) -> Result<Self> {
        let file = JsonFile::open(&folder.join(CONFIG))?;
        let mut config = from_fields(&file.fields()).map_err(|error| match &error.detail().file {
            Some(_) => error,
            None => error.file(folder.join(CONFIG)),
        })?;
        if config.quantization.is_none() && folder.join("hf_quant_config.json").exists() {
            return Err(Error::unsupported(
                "the weights are quantised as hf_quant_config.json says, which is not supported",
            )
            .file(folder.join("hf_quant_config.json")));
        }
        match JsonFile::open(&folder.join(GENERATION_CONFIG)) {
            Ok(file) => config.eos.extend(file.fields().token_ids("eos_token_id")?),
            Err(error) if error.code() == Code::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(config)
    }
}

fn from_fields(fields: &Fields<'_>) -> Result<ModelConfig> {
    let model_type = fields.text("model_type")?.ok_or_else(|| fields.invalid("model_type", "is missing"))?;
    if !MODEL_TYPES.contains(&model_type) {
        return Err(fields.unsupported("model_type", format!("is {}", quote(model_type))));
    }
    if fields.get("model_file").is_some() {
        return Err(fields.unsupported("model_file", "asks for a graph of its own"));
    }
    refuse_foreign(fields)?;
    let hidden = fields.required_size("hidden_size")?;
    let heads = fields.required_size("num_attention_heads")?;
    let layers = fields.required_size("num_hidden_layers")?;
    let max_positions = fields.size("max_position_embeddings")?;
    let config = ModelConfig {
        model_type: model_type.to_owned(),
        hidden,
        layers,
        intermediate: fields.required_size("intermediate_size")?,
        heads,
        kv_heads: fields.size("num_key_value_heads")?.unwrap_or(heads),
        head_dim: head_dim(fields, hidden, heads)?,
        vocabulary: fields.required_size("vocab_size")?,
        norm_eps: fields
            .number("rms_norm_eps")?
            .ok_or_else(|| fields.invalid("rms_norm_eps", "is missing"))?,
        rope: Rope::from_fields(fields)?,
        max_positions,
        // What mlx-lm takes for a llama file that says nothing.
        tied: fields.flag("tie_word_embeddings")?.unwrap_or(true),
        attention_bias: fields.flag("attention_bias")?.unwrap_or(false),
        mlp_bias: fields.flag("mlp_bias")?.unwrap_or(false),
        eos: fields.token_ids("eos_token_id")?.into_iter().collect::<BTreeSet<_>>(),
        bos: fields.token_ids("bos_token_id")?.first().copied(),
        quantization: Quantization::from_fields(fields)?,
    }
    .validate(Names::Json)?;
    refuse_window(fields, &config)?;
    Ok(config)
}

fn head_dim(fields: &Fields<'_>, hidden: usize, heads: usize) -> Result<usize> {
    // mlx-lm takes a zero like a missing value.
    match fields.size("head_dim")? {
        Some(size) if size > 0 => Ok(size),
        _ if heads > 0 && hidden.is_multiple_of(heads) => Ok(hidden / heads),
        _ => Err(fields.invalid(
            "num_attention_heads",
            format!("is {heads}, which does not divide hidden_size {hidden}, and head_dim is missing"),
        )),
    }
}

fn refuse_foreign(fields: &Fields<'_>) -> Result<()> {
    match fields.text("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => return Err(fields.unsupported("hidden_act", format!("is {}", quote(other)))),
    }
    for (name, neutral) in NEUTRAL {
        if let Some(value) = fields.get(name)
            && !value.as_f64().is_some_and(|number| neutral.contains(&number))
        {
            return Err(fields.unsupported(name, format!("is {}", brief(value))));
        }
    }
    for name in OFF {
        if let Some(value) = fields.get(name)
            && *value != Value::Bool(false)
        {
            return Err(fields.unsupported(name, format!("is {}", brief(value))));
        }
    }
    // One entry per layer: 1 means that the layer has rotary positions.
    if let Some(value) = fields.get("no_rope_layers")
        && !value.as_array().is_some_and(|layers| layers.iter().all(|layer| layer.as_u64() == Some(1)))
    {
        return Err(fields.unsupported("no_rope_layers", "leaves positions out of some layers"));
    }
    Ok(())
}

/// Refuses a sliding window that some position would notice.
fn refuse_window(fields: &Fields<'_>, config: &ModelConfig) -> Result<()> {
    let mut sliding = config.model_type == "mistral";
    if let Some(value) = fields.get("layer_types") {
        let types = value
            .as_array()
            .filter(|types| types.len() == config.layers)
            .ok_or_else(|| fields.invalid("layer_types", format!("must list {} layers", config.layers)))?;
        sliding = false;
        for layer in types {
            match layer.as_str() {
                Some("full_attention") => {}
                Some("sliding_attention") => sliding = true,
                _ => return Err(fields.unsupported("layer_types", format!("holds {}", brief(layer)))),
            }
        }
    }
    let window = fields.size("sliding_window")?;
    match (sliding, window) {
        (false, _) => Ok(()),
        (true, None) if fields.get("layer_types").is_some() => {
            Err(fields.invalid("sliding_window", "is missing, but layer_types holds sliding_attention"))
        }
        (true, None) => Ok(()),
        (true, Some(window)) if config.max_positions.is_some_and(|positions| window >= positions) => Ok(()),
        (true, Some(window)) => Err(fields
            .unsupported("sliding_window", format!("is {window}, less than the positions of the model"))),
    }
}

fn brief(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => other.to_string().chars().take(60).collect(),
    }
}
