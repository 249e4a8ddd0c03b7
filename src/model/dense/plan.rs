//! Which tensors a dense decoder is made of.

use std::sync::Arc;

use crate::base::Result;
use crate::cache::{KvSizes, LayerNeeds};
use crate::model::config::{
    BlockConfig, HeadNorm, HeadTable, LayerConfig, MlpForm, ModelConfig, NormKind, Presence,
};
use crate::model::footprint::{Footprint, Storage};
use crate::model::graph::CausalGraph;
use crate::model::tensors::Tensors;
use crate::model::weights::{LoadPlan, PlannedLinear};

/// The tensors that a model's graph will be built of, by their places in the load plan.
pub struct DensePlan {
    pub(super) config: ModelConfig,
    pub(super) embedding: PlannedLinear,
    pub(super) layers: Vec<PlannedLayer>,
    pub(super) norm: PlannedNorm,
    /// `None`: the embedding table.
    pub(super) head: Option<PlannedLinear>,
    parameters: usize,
}

pub(super) struct PlannedLayer {
    pub(super) config: LayerConfig,
    pub(super) before_attention: Option<PlannedNorm>,
    pub(super) projections: PlannedProjections,
    pub(super) head_norm: Option<PlannedHeadNorm>,
    pub(super) output: PlannedProduct,
    pub(super) after_attention: Option<PlannedNorm>,
    pub(super) before_mlp: Option<PlannedNorm>,
    pub(super) mlp: PlannedMlp,
    pub(super) down: PlannedProduct,
    pub(super) after_mlp: Option<PlannedNorm>,
}

/// A matrix and its bias.
pub(super) type PlannedProduct = (PlannedLinear, Option<usize>);

#[derive(Clone, Copy)]
pub(super) struct PlannedNorm {
    pub(super) gain: usize,
    pub(super) bias: Option<usize>,
}

pub(super) enum PlannedProjections {
    Separate { query: PlannedProduct, key: PlannedProduct, value: PlannedProduct },
    Joined(PlannedProduct),
}

/// Gains, one or one for each head.
pub(super) struct PlannedHeadNorm {
    pub(super) queries: Vec<usize>,
    pub(super) keys: Vec<usize>,
}

pub(super) enum PlannedMlp {
    Gated { gate: PlannedProduct, up: PlannedProduct },
    GatedJoined(PlannedProduct),
    Plain(PlannedProduct),
}

/// Asks for the tensors, in the order of the graph.
pub fn plan(config: &ModelConfig, plan: &mut LoadPlan) -> Result<Arc<DensePlan>> {
    let mut ask = Ask { plan, parameters: 0 };
    let embedding = ask.linear("model.embed_tokens", config.vocabulary, config.hidden)?;
    let mut layers = Vec::with_capacity(config.layers.len());
    for (index, layer) in config.layers.iter().enumerate() {
        layers.push(ask.layer(config, *layer, &format!("model.layers.{index}"))?);
    }
    let norm = ask.norm(config, "model.norm")?;
    let own = match config.head.table {
        HeadTable::Embedding => false,
        HeadTable::Own => true,
        HeadTable::OwnIfPresent => ask.plan.has("lm_head.weight"),
    };
    let head = if own { Some(ask.linear("lm_head", config.vocabulary, config.hidden)?) } else { None };
    let parameters = ask.parameters;
    plan.refuse_unused(|name| is_ignored(config, own, name))?;
    Ok(Arc::new(DensePlan { config: config.clone(), embedding, layers, norm, head, parameters }))
}

/// Frequencies under another name than `LoadPlan` excuses, the output head of a tied model, and the other models of a multimodal file.
fn is_ignored(config: &ModelConfig, own_head: bool, name: &str) -> bool {
    const OTHERS: [&str; 4] = ["vision_tower.", "vision_model.", "multi_modal_projector.", "vision_encoder."];
    let other = name.strip_prefix("model.").unwrap_or(name);
    name.ends_with("attention.rope.inv_freq")
        || !own_head && name.starts_with("lm_head.")
        || config.multimodal && OTHERS.iter().any(|prefix| other.starts_with(prefix))
}

/// Asks for tensors and counts what they hold.
struct Ask<'a> {
    plan: &'a mut LoadPlan,
    parameters: usize,
}

impl Ask<'_> {
    fn linear(&mut self, path: &str, outputs: usize, inputs: usize) -> Result<PlannedLinear> {
        let linear = self.plan.linear(path, outputs, inputs)?;
        self.parameters += outputs * inputs;
        Ok(linear)
    }

    fn float(&mut self, name: &str, size: usize) -> Result<usize> {
        let float = self.plan.float(name, &[size])?;
        self.parameters += size;
        Ok(float)
    }

    fn product(
        &mut self,
        path: &str,
        outputs: usize,
        inputs: usize,
        bias: impl Into<Presence>,
    ) -> Result<PlannedProduct> {
        let weight = self.linear(path, outputs, inputs)?;
        let name = format!("{path}.bias");
        let biased = match bias.into() {
            Presence::Absent => false,
            Presence::Present => true,
            Presence::AsFile => self.plan.has(&name),
        };
        Ok((weight, if biased { Some(self.float(&name, outputs)?) } else { None }))
    }

    fn norm(&mut self, config: &ModelConfig, path: &str) -> Result<PlannedNorm> {
        let gain = self.float(&format!("{path}.weight"), config.hidden)?;
        let bias = match config.norm.kind {
            NormKind::Layer { bias: true } => Some(self.float(&format!("{path}.bias"), config.hidden)?),
            NormKind::Layer { bias: false } | NormKind::RootMeanSquare => None,
        };
        Ok(PlannedNorm { gain, bias })
    }

    fn layer(&mut self, config: &ModelConfig, layer: LayerConfig, path: &str) -> Result<PlannedLayer> {
        let ModelConfig { hidden, intermediate, heads, head_dim, block, attention, mlp, .. } = *config;
        let BlockConfig { before_attention, after_attention, before_mlp, after_mlp, .. } = block;
        let norm = |ask: &mut Self, name: Option<&str>| {
            name.map(|name| ask.norm(config, &format!("{path}.{name}"))).transpose()
        };
        Ok(PlannedLayer {
            config: layer,
            before_attention: norm(self, before_attention)?,
            projections: self.projections(config, &format!("{path}.self_attn"))?,
            head_norm: self.head_norm(config, &format!("{path}.self_attn"))?,
            output: self.product(
                &format!("{path}.self_attn.o_proj"),
                hidden,
                heads * head_dim,
                attention.output_bias,
            )?,
            after_attention: norm(self, after_attention)?,
            before_mlp: norm(self, before_mlp)?,
            mlp: self.mlp(config, &format!("{path}.mlp"))?,
            down: {
                let name = match mlp.form {
                    MlpForm::Gated | MlpForm::GatedJoined => "down_proj",
                    MlpForm::Plain { down, .. } => down,
                };
                self.product(&format!("{path}.mlp.{name}"), hidden, intermediate, mlp.bias)?
            },
            after_mlp: norm(self, after_mlp)?,
        })
    }

    fn projections(&mut self, config: &ModelConfig, path: &str) -> Result<PlannedProjections> {
        let ModelConfig { hidden, heads, kv_heads, head_dim, attention, .. } = *config;
        let mut product = |name: &str, heads: usize| {
            self.product(&format!("{path}.{name}"), heads * head_dim, hidden, attention.bias)
        };
        if attention.joined {
            return Ok(PlannedProjections::Joined(product("qkv_proj", heads + 2 * kv_heads)?));
        }
        Ok(PlannedProjections::Separate {
            query: product("q_proj", heads)?,
            key: product("k_proj", kv_heads)?,
            value: product("v_proj", kv_heads)?,
        })
    }

    fn head_norm(&mut self, config: &ModelConfig, path: &str) -> Result<Option<PlannedHeadNorm>> {
        let head_dim = config.head_dim;
        let Some(norm) = config.attention.head_norm else { return Ok(None) };
        let mut gains = |letter: char, heads: usize| -> Result<Vec<usize>> {
            match norm {
                HeadNorm::Shared => Ok(vec![self.float(&format!("{path}.{letter}_norm.weight"), head_dim)?]),
                HeadNorm::Whole => {
                    Ok(vec![self.float(&format!("{path}.{letter}_norm.weight"), heads * head_dim)?])
                }
                HeadNorm::Own => (0..heads)
                    .map(|head| {
                        self.float(&format!("{path}.{letter}_layernorm.norms.{head}.weight"), head_dim)
                    })
                    .collect(),
            }
        };
        Ok(Some(PlannedHeadNorm { queries: gains('q', config.heads)?, keys: gains('k', config.kv_heads)? }))
    }

    fn mlp(&mut self, config: &ModelConfig, path: &str) -> Result<PlannedMlp> {
        let ModelConfig { hidden, intermediate, mlp, .. } = *config;
        let mut product =
            |name: &str, width: usize| self.product(&format!("{path}.{name}"), width, hidden, mlp.bias);
        Ok(match mlp.form {
            MlpForm::Gated => PlannedMlp::Gated {
                gate: product("gate_proj", intermediate)?,
                up: product("up_proj", intermediate)?,
            },
            MlpForm::GatedJoined => PlannedMlp::GatedJoined(product("gate_up_proj", 2 * intermediate)?),
            MlpForm::Plain { up, .. } => PlannedMlp::Plain(product(up, intermediate)?),
        })
    }
}

impl DensePlan {
    /// What its states and forwards occupy, stored as `storage` says.
    pub fn footprint(&self, storage: Storage) -> Footprint {
        let config = &self.config;
        Footprint {
            layers: config.layers.len() as u64,
            hidden: config.hidden as u64,
            intermediate: config.intermediate as u64,
            heads: config.heads as u64,
            kv_heads: config.kv_heads as u64,
            head_dim: config.head_dim as u64,
            vocabulary: config.vocabulary as u64,
            storage,
        }
    }

    /// What each layer needs of its cache, in order: as the graph's own `cache_needs`.
    pub fn cache_needs(&self) -> Vec<LayerNeeds> {
        let ModelConfig { kv_heads, head_dim, ref layers, .. } = self.config;
        let sizes = KvSizes { kv_heads, key_dims: head_dim, value_dims: head_dim };
        layers.iter().map(|layer| LayerNeeds { sizes, window: layer.window }).collect()
    }

    /// The number of weights.
    pub fn parameters(&self) -> u64 {
        self.parameters as u64
    }

    pub fn build(&self, tensors: &Tensors) -> Result<Box<dyn CausalGraph>> {
        Ok(Box::new(super::build::graph(self, tensors)?))
    }
}
