//! `config.json` and `generation_config.json` of a model folder.

use std::path::Path;

use serde_json::Value;

use super::dense::{
    Activation, AttentionConfig, BlockConfig, HeadConfig, HeadTable, LayerConfig, MlpConfig, MlpForm,
    NormConfig, NormKind, Presence, Wide,
};
use super::fields::{Fields, JsonFile, brief};
use super::rope::DEFAULT_THETA;
use super::{LAYERS_LIMIT, ModelConfig, Names, Quantization, RopeDefaults};
use crate::base::quote::quote;
use crate::base::{Error, Result, small_file};
use crate::model::registry;

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// The section of a multimodal model's configuration that describes its text model.
const TEXT_CONFIG: &str = "text_config";

/// Fields that change what is computed, with the values under which they change nothing. A family that has one of
/// them asks for it; from the others a file that sets it otherwise would be computed wrongly.
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
    ("moe_num_experts", &[0.0]),
    ("no_rope_layer_interval", &[0.0]),
];

/// As above, for switches that must be off.
const OFF: &[&str] = &[
    "qk_norm",
    "use_qk_norm",
    "qk_layernorm",
    "parallel_residual",
    "use_parallel_residual",
    "quantize_activations",
    "use_sliding_window",
    "use_bidirectional_attention",
    "altup_enabled",
];

impl ModelConfig {
    /// Reads the configuration of a model folder.
    pub fn open_folder(folder: &Path) -> Result<Self> {
        let file = JsonFile::open(&folder.join(CONFIG))?;
        let mut config = from_fields(&file.fields()).map_err(|error| match &error.detail().file {
            Some(_) => error,
            None => error.file(folder.join(CONFIG)),
        })?;
        if config.quantization.is_none() && !small_file::is_absent(&folder.join("hf_quant_config.json")) {
            return Err(Error::unsupported(
                "the weights are quantised as hf_quant_config.json says, which is not supported",
            )
            .file(folder.join("hf_quant_config.json")));
        }
        // mlx-lm 0.32.2 goes on without one that is damaged. But ids that stand only there, such as the end of a turn, end
        // nothing then: answers run on to their limit, and nobody is told why.
        let generation = folder.join(GENERATION_CONFIG);
        if let Some(file) = small_file::optional(&generation, JsonFile::open(&generation))? {
            config.eos.extend(file.fields().token_ids("eos_token_id")?);
        }
        Ok(config)
    }
}

fn from_fields(outer: &Fields<'_>) -> Result<ModelConfig> {
    let outer_type = outer.text("model_type")?.ok_or_else(|| outer.invalid("model_type", "is missing"))?;
    if outer.get("model_file").is_some() {
        return Err(outer.unsupported("model_file", "asks for a graph of its own"));
    }
    let inner = outer.section(TEXT_CONFIG)?;
    let unsupported = || {
        let what = format!("is {}; known are {}", quote(outer_type), registry::known().join(", "));
        outer.unsupported("model_type", what)
    };
    let (fields, family) = match (&inner, registry::find_inside(outer_type)) {
        (Some(inner), Some(family)) => (inner, family),
        _ => (outer, registry::find(outer_type).ok_or_else(unsupported)?),
    };
    let mut config = (family.describe)(fields)?;
    config.model_type = fields.text("model_type")?.unwrap_or(outer_type).to_owned();
    config.family = family.name;
    config.multimodal = inner.is_some();
    refuse_foreign(fields)?;
    config.quantization = Quantization::from_fields(outer)?;
    if let Some(inner) = &inner {
        // The outer file speaks for the whole; a section of its own may add to it.
        if config.quantization.is_none() {
            config.quantization = Quantization::from_fields(inner)?;
        }
        config.eos.extend(outer.token_ids("eos_token_id")?);
        config.bos = outer.token_ids("bos_token_id")?.first().copied().or(config.bos);
    }
    config.validate(Names::Json)
}

/// The number of heads of keys and values where a file says nothing.
#[derive(Clone, Copy, Debug)]
pub enum KvHeads {
    AsHeads,
    Number(usize),
}

/// The size of a head.
#[derive(Clone, Copy, Debug)]
pub enum HeadDim {
    /// As the file says; without a word, the heads share the hidden size.
    Told,
    /// The heads share the hidden size, whatever the file says.
    Shared,
    /// Unless the file says so.
    Number(usize),
}

/// What a family takes where a file says nothing. `None`: the file must say it.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    pub hidden: Option<usize>,
    pub layers: Option<usize>,
    pub intermediate: Option<usize>,
    pub heads: Option<usize>,
    pub kv_heads: KvHeads,
    pub head_dim: HeadDim,
    pub vocabulary: Option<usize>,
    pub max_positions: Option<usize>,
    /// The name of the norms' epsilon.
    pub eps_field: &'static str,
    pub eps: Option<f64>,
    pub tied: bool,
    pub theta: f64,
    pub traditional: bool,
    /// The share of a head that turns, for families where a file may choose it.
    pub partial: Option<f64>,
    /// Those that a file may ask for; the first is the family's own.
    pub activations: &'static [Activation],
}

impl Defaults {
    /// Llama's.
    pub const LLAMA: Defaults = Defaults {
        hidden: None,
        layers: None,
        intermediate: None,
        heads: None,
        kv_heads: KvHeads::AsHeads,
        head_dim: HeadDim::Told,
        vocabulary: None,
        max_positions: None,
        eps_field: "rms_norm_eps",
        eps: None,
        // What mlx-lm takes for a llama file that says nothing.
        tied: true,
        theta: DEFAULT_THETA,
        traditional: false,
        partial: None,
        activations: &[Activation::Silu],
    };

    /// A llama of the sizes that the file says, to which a family makes its changes.
    pub fn read(&self, fields: &Fields<'_>) -> Result<ModelConfig> {
        let size = |name: &str, default: Option<usize>| match (fields.size(name)?, default) {
            (Some(size), _) | (None, Some(size)) => Ok(size),
            (None, None) => Err(fields.invalid(name, "is missing")),
        };
        let hidden = size("hidden_size", self.hidden)?;
        let heads = size("num_attention_heads", self.heads)?;
        let layers = size("num_hidden_layers", self.layers)?;
        if !(1..=LAYERS_LIMIT).contains(&layers) {
            let what = format!("is {layers}; it must be from 1 to {LAYERS_LIMIT}");
            return Err(fields.invalid("num_hidden_layers", what));
        }
        let max_positions = fields.size("max_position_embeddings")?.or(self.max_positions);
        let head_dim = self.head_dim(fields, hidden, heads)?;
        let rope = RopeDefaults {
            head_dim,
            partial: self.partial,
            theta: self.theta,
            traditional: self.traditional,
            max_positions,
        };
        let intermediate = size("intermediate_size", self.intermediate)?;
        let kv_heads = match (fields.size("num_key_value_heads")?, self.kv_heads) {
            (Some(kv_heads), _) | (None, KvHeads::Number(kv_heads)) => kv_heads,
            (None, KvHeads::AsHeads) => heads,
        };
        let vocabulary = size("vocab_size", self.vocabulary)?;
        let eps = self.eps(fields)?;
        let tied = fields.flag("tie_word_embeddings")?.unwrap_or(self.tied);
        Ok(ModelConfig {
            family: "",
            model_type: String::new(),
            multimodal: false,
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim,
            vocabulary,
            layers: vec![LayerConfig::FULL; layers],
            ropes: vec![rope.read(fields, "full_attention")?],
            norm: NormConfig { kind: NormKind::RootMeanSquare, eps, one_more: false },
            block: BlockConfig::BEFORE,
            attention: AttentionConfig {
                bias: false,
                output_bias: Presence::Absent,
                joined: false,
                head_norm: None,
                scale: (head_dim as f64).powf(-0.5),
                softcap: None,
                query_growth: None,
                wide: Wide::Never,
            },
            mlp: MlpConfig { form: MlpForm::Gated, activation: self.activation(fields)?, bias: false },
            embedding_scale: None,
            residual_scale: None,
            head: HeadConfig {
                table: HeadTable::tied(tied),
                input_divisor: None,
                factor: None,
                divisor: None,
                softcap: None,
            },
            max_positions,
            eos: fields.token_ids("eos_token_id")?.into_iter().collect(),
            bos: fields.token_ids("bos_token_id")?.first().copied(),
            quantization: None,
        })
    }

    fn head_dim(&self, fields: &Fields<'_>, hidden: usize, heads: usize) -> Result<usize> {
        // mlx-lm takes a zero like a missing value.
        let told = match self.head_dim {
            HeadDim::Shared => None,
            HeadDim::Told | HeadDim::Number(_) => fields.size("head_dim")?.filter(|size| *size > 0),
        };
        match (told, self.head_dim) {
            (Some(size), _) | (None, HeadDim::Number(size)) => Ok(size),
            _ if heads > 0 && hidden.is_multiple_of(heads) => Ok(hidden / heads),
            _ => Err(fields.invalid(
                "num_attention_heads",
                format!("is {heads}, which does not divide hidden_size {hidden}, and head_dim is missing"),
            )),
        }
    }

    fn eps(&self, fields: &Fields<'_>) -> Result<f64> {
        let name = self.eps_field;
        let eps = fields.number(name)?.or(self.eps).ok_or_else(|| fields.invalid(name, "is missing"))?;
        if (0.0..1.0).contains(&eps) {
            return Ok(eps);
        }
        Err(fields.invalid(name, format!("is {eps}; it must be from 0 to below 1")))
    }

    fn activation(&self, fields: &Fields<'_>) -> Result<Activation> {
        let Some(name) = fields.text("hidden_act")? else {
            return Ok(self.activations.first().copied().unwrap_or(Activation::Silu));
        };
        let asked = match name {
            "silu" | "swish" => Some(Activation::Silu),
            "gelu" => Some(Activation::Gelu),
            "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Some(Activation::GeluTanh),
            "relu2" | "relu_squared" => Some(Activation::ReluSquared),
            _ => None,
        };
        asked
            .filter(|activation| self.activations.contains(activation))
            .ok_or_else(|| fields.unsupported("hidden_act", format!("is {}", quote(name))))
    }
}

/// Which layers have a sliding window where `layer_types` is silent.
#[derive(Clone, Copy, Debug)]
pub enum Windows {
    /// None, even if there is a window.
    None,
    /// All.
    All,
    /// All but every `n`th.
    AllButEvery(usize),
    /// Every other one, from the first on.
    Alternate,
}

impl Windows {
    /// For each layer whether it slides.
    fn read(self, fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
        let Some(value) = fields.get("layer_types") else {
            let slides = |index: usize| match self {
                Windows::None => false,
                Windows::All => true,
                Windows::AllButEvery(every) => !(index + 1).is_multiple_of(every),
                Windows::Alternate => index.is_multiple_of(2),
            };
            return Ok((0..layers).map(slides).collect());
        };
        let types = value
            .as_array()
            .filter(|types| types.len() == layers)
            .ok_or_else(|| fields.invalid("layer_types", format!("must list {layers} layers")))?;
        let slides = |layer: &Value| match layer.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(fields.unsupported("layer_types", format!("holds {}", brief(layer)))),
        };
        types.iter().map(slides).collect()
    }
}

impl ModelConfig {
    /// Gives the layers that slide their window, `sliding_window` or `default`, and returns which slide.
    pub fn slide(
        &mut self,
        fields: &Fields<'_>,
        windows: Windows,
        default: Option<usize>,
    ) -> Result<Vec<bool>> {
        let sliding = windows.read(fields, self.layers.len())?;
        // Without `layer_types` a missing window means that there is none.
        let needed = fields.get("layer_types").is_some();
        self.set_windows(fields, &sliding, default, needed)?;
        Ok(sliding)
    }

    /// The same for layers that the family knows. A window of all positions that there are is none.
    pub fn set_windows(
        &mut self,
        fields: &Fields<'_>,
        sliding: &[bool],
        default: Option<usize>,
        needed: bool,
    ) -> Result<()> {
        const WINDOW: &str = "sliding_window";
        if !sliding.contains(&true) {
            return Ok(());
        }
        let window = fields.size(WINDOW)?.or(default);
        match window {
            None if needed => return Err(fields.invalid(WINDOW, "is missing, but some layers slide")),
            Some(0) => return Err(fields.invalid(WINDOW, "is 0; it must be at least 1")),
            _ => {}
        }
        let felt = window.filter(|window| self.max_positions.is_none_or(|positions| *window < positions));
        for (layer, slides) in self.layers.iter_mut().zip(sliding) {
            layer.window = felt.filter(|_| *slides);
        }
        Ok(())
    }
}

fn refuse_foreign(fields: &Fields<'_>) -> Result<()> {
    for (name, neutral) in NEUTRAL {
        if !fields.was_asked(name)
            && let Some(value) = fields.get(name)
            && !value.as_f64().is_some_and(|number| neutral.contains(&number))
        {
            return Err(fields.unsupported(name, format!("is {}", brief(value))));
        }
    }
    for name in OFF {
        if !fields.was_asked(name)
            && let Some(value) = fields.get(name)
            && *value != Value::Bool(false)
        {
            return Err(fields.unsupported(name, format!("is {}", brief(value))));
        }
    }
    // One entry per layer: 1 means that the layer has rotary positions.
    if !fields.was_asked("no_rope_layers")
        && let Some(value) = fields.get("no_rope_layers")
        && !value.as_array().is_some_and(|layers| layers.iter().all(|layer| layer.as_u64() == Some(1)))
    {
        return Err(fields.unsupported("no_rope_layers", "leaves positions out of some layers"));
    }
    Ok(())
}
