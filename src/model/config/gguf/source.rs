//! What a GGUF file says of its architecture, and the llama that all architectures begin with.

use std::collections::BTreeSet;

use super::architectures::Architecture;
use crate::base::{Error, Result};
use crate::model::config::{
    Activation, AttentionConfig, BlockConfig, HeadConfig, HeadTable, LAYERS_LIMIT, LayerConfig, MlpConfig,
    MlpForm, ModelConfig, NormConfig, NormKind, Presence, Wide,
};
use crate::model::weights::{GgufMetadata, Value, WeightFiles};

pub(super) const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
pub(super) const LAYER_NORM_EPSILON: &str = "attention.layer_norm_epsilon";
const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

pub(super) struct Source<'a> {
    pub(super) metadata: &'a GgufMetadata,
    pub(super) weights: &'a WeightFiles,
    pub(super) architecture: &'static Architecture,
}

/// What an architecture says before the file does.
#[derive(Clone, Copy)]
pub(super) struct Base {
    /// The key of the norms' epsilon.
    pub(super) epsilon: &'static str,
    /// Neighbours of a head turn together.
    pub(super) traditional: bool,
    /// A file may turn a part of each head only.
    pub(super) partial: bool,
    /// Frequencies for long and for short sequences stand in tables.
    pub(super) long: bool,
}

impl Base {
    pub(super) const LLAMA: Base =
        Base { epsilon: RMS_EPSILON, traditional: false, partial: false, long: false };
}

impl<'a> Source<'a> {
    pub(super) fn new(
        metadata: &'a GgufMetadata,
        weights: &'a WeightFiles,
        architecture: &'static Architecture,
    ) -> Self {
        Source { metadata, weights, architecture }
    }

    /// The whole key.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name)
    }

    pub(super) fn size(&self, name: &str) -> Result<Option<usize>> {
        self.metadata.size(&self.key(name))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.metadata.number(&self.key(name))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.metadata.text(&self.key(name))
    }

    pub(super) fn invalid(&self, name: &str, what: impl AsRef<str>) -> Error {
        self.metadata.invalid(&self.key(name), what)
    }

    pub(super) fn unsupported(&self, name: &str, what: impl AsRef<str>) -> Error {
        self.metadata.unsupported(&self.key(name), what)
    }

    pub(super) fn required_number(&self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| self.invalid(name, "is missing"))
    }

    fn required_size(&self, name: &str) -> Result<usize> {
        self.size(name)?.ok_or_else(|| self.invalid(name, "is missing"))
    }

    /// Whether the first layer has this tensor.
    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.get(&format!("model.layers.0.{name}")).is_some()
    }

    /// A size that may be given once or for each layer, equal in all.
    fn per_layer(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        let Some(Value::Numbers(_)) = self.metadata.get(&key) else { return self.metadata.size(&key) };
        let sizes = self.metadata.integers(&key)?.unwrap_or_default();
        let first = sizes.first().and_then(|size| usize::try_from(*size).ok());
        let first = first.ok_or_else(|| self.metadata.invalid(&key, "must hold sizes"))?;
        if sizes.iter().any(|size| usize::try_from(*size) != Ok(first)) {
            return Err(self.metadata.unsupported(&key, "differs between layers"));
        }
        Ok(Some(first))
    }

    fn head_dim(&self, hidden: usize, heads: usize) -> Result<usize> {
        let head_dim = match self.size("attention.key_length")? {
            Some(size) => size,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let what = format!("is {heads}, which does not divide the embedding length {hidden}");
                return Err(self.invalid("attention.head_count", what));
            }
        };
        let values = self.size("attention.value_length")?.unwrap_or(head_dim);
        if values != head_dim {
            let what = format!("is {values}, but a head has {head_dim}");
            return Err(self.unsupported("attention.value_length", what));
        }
        Ok(head_dim)
    }

    /// As the file says, or the rows of the embedding.
    fn vocabulary(&self) -> Result<usize> {
        if let Some(size) = self.size("vocab_size")? {
            return Ok(size);
        }
        let embedding = self.weights.get("model.embed_tokens.weight");
        embedding
            .and_then(|tensor| tensor.shape.first().copied())
            .ok_or_else(|| self.weights.missing("token_embd.weight"))
    }

    /// A llama of the sizes that the file says, to which an architecture makes its changes. The tensors tell of biases,
    /// of joined projections and of the output head.
    pub(super) fn base(&self, base: Base) -> Result<ModelConfig> {
        let hidden = self.required_size("embedding_length")?;
        let heads = self
            .per_layer("attention.head_count")?
            .ok_or_else(|| self.invalid("attention.head_count", "is missing"))?;
        let head_dim = self.head_dim(hidden, heads)?;
        let max_positions = self.size("context_length")?;
        let layers = self.required_size("block_count")?;
        if !(1..=LAYERS_LIMIT).contains(&layers) {
            let what = format!("is {layers}; it must be from 1 to {LAYERS_LIMIT}");
            return Err(self.invalid("block_count", what));
        }
        let eps = self.required_number(base.epsilon)?;
        if !(0.0..1.0).contains(&eps) {
            return Err(self.invalid(base.epsilon, format!("is {eps}; it must be from 0 to below 1")));
        }
        let joined = self.has("self_attn.qkv_proj.weight");
        let query = if joined { "self_attn.qkv_proj.bias" } else { "self_attn.q_proj.bias" };
        let mlp_bias = ["gate_proj", "gate_up_proj", "up_proj", "c_fc"];
        Ok(ModelConfig {
            family: "",
            model_type: String::new(),
            multimodal: false,
            hidden,
            intermediate: self
                .per_layer("feed_forward_length")?
                .ok_or_else(|| self.invalid("feed_forward_length", "is missing"))?,
            heads,
            kv_heads: self.per_layer("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            vocabulary: self.vocabulary()?,
            layers: vec![LayerConfig::FULL; layers],
            ropes: vec![self.rope(base, head_dim, max_positions)?],
            norm: NormConfig {
                kind: NormKind::RootMeanSquare,
                eps,
                // Where a model's gains count from one, the format stores the sums.
                one_more: false,
            },
            block: BlockConfig::BEFORE,
            attention: AttentionConfig {
                bias: self.has(query),
                output_bias: Presence::from(self.has("self_attn.o_proj.bias")),
                joined,
                head_norm: None,
                scale: (head_dim as f64).powf(-0.5),
                softcap: None,
                query_growth: None,
                wide: Wide::Never,
            },
            mlp: MlpConfig {
                form: MlpForm::Gated,
                activation: Activation::Silu,
                bias: mlp_bias.iter().any(|part| self.has(&format!("mlp.{part}.bias"))),
            },
            embedding_scale: None,
            residual_scale: None,
            head: HeadConfig {
                table: HeadTable::tied(self.weights.get("lm_head.weight").is_none()),
                input_divisor: None,
                factor: None,
                divisor: None,
                softcap: None,
            },
            max_positions,
            eos: end_ids(self.metadata)?,
            bos: self.metadata.token_id("tokenizer.ggml.bos_token_id")?,
            quantization: None,
        })
    }

    /// The sliding window; 0 means that there is none.
    pub(super) fn window(&self) -> Result<Option<usize>> {
        Ok(self.size(WINDOW)?.filter(|window| *window > 0))
    }

    /// UNSUPPORTED if there is a window that the architecture does not have.
    pub(super) fn refuse_window(&self, config: &ModelConfig) -> Result<()> {
        match self.window()? {
            Some(window) if config.max_positions.is_none_or(|positions| window < positions) => {
                let what = format!("is {window}, less than the positions of the model");
                Err(self.unsupported(WINDOW, what))
            }
            _ => Ok(()),
        }
    }

    /// Which layers slide: as the file lists them, or all but every `n`th, where it or `default` says `n`; 0 is all.
    pub(super) fn sliding(&self, layers: usize, default: usize) -> Result<Vec<bool>> {
        let key = self.key(PATTERN);
        let every = match self.metadata.get(&key) {
            None => default,
            Some(Value::Numbers(numbers)) => {
                let slides = |value: Value| match value {
                    Value::Bool(slides) => Some(slides),
                    other => other.as_u64().filter(|number| *number <= 1).map(|number| number == 1),
                };
                let list: Option<Vec<bool>> = numbers.iter().map(slides).collect();
                return list
                    .filter(|list| list.len() == layers)
                    .ok_or_else(|| self.metadata.invalid(&key, format!("must list {layers} layers")));
            }
            Some(_) => self.metadata.size(&key)?.unwrap_or(default),
        };
        Ok((0..layers).map(|index| every == 0 || !(index + 1).is_multiple_of(every)).collect())
    }

    /// Gives the layers that slide their window. A window of all positions that there are is none.
    pub(super) fn slide(&self, config: &mut ModelConfig, window: usize, sliding: &[bool]) {
        let felt = config.max_positions.is_none_or(|positions| window < positions);
        for (layer, slides) in config.layers.iter_mut().zip(sliding) {
            layer.window = Some(window).filter(|_| felt && *slides);
        }
    }
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
