//! Llama and what shares its graph: Mistral, SmolLM2.
//!
//! Per layer `h = x + attention(norm(x))`, `x' = h + mlp(norm(h))`; the output head may be the
//! embedding table.

use std::sync::Arc;

use crate::base::Result;
use crate::cache::{LayerCache, LayerNeeds};
use crate::mlx::ops::{self, Linear, Weight};
use crate::mlx::{Array, Mask};
use crate::model::config::ModelConfig;
use crate::model::footprint::{Footprint, Storage};
use crate::model::graph::{CausalGraph, Pace};
use crate::model::layers::{Attention, AttentionShape, GatedMlp, Projections, RmsNorm, rope_of};
use crate::model::registry::FamilyPlan;
use crate::model::tensors::Tensors;
use crate::model::weights::{LoadPlan, PlannedLinear};

struct LlamaPlan {
    config: ModelConfig,
    embedding: PlannedLinear,
    layers: Vec<LayerPlan>,
    norm: usize,
    /// `None`: the embedding table.
    head: Option<PlannedLinear>,
}

struct LayerPlan {
    attention_norm: usize,
    query: (PlannedLinear, Option<usize>),
    key: (PlannedLinear, Option<usize>),
    value: (PlannedLinear, Option<usize>),
    output: (PlannedLinear, Option<usize>),
    mlp_norm: usize,
    gate: (PlannedLinear, Option<usize>),
    up: (PlannedLinear, Option<usize>),
    down: (PlannedLinear, Option<usize>),
}

/// Asks for the tensors, in the order of the graph.
pub fn plan(config: &ModelConfig, plan: &mut LoadPlan) -> Result<Arc<dyn FamilyPlan>> {
    fn projection(
        plan: &mut LoadPlan,
        path: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
    ) -> Result<(PlannedLinear, Option<usize>)> {
        let weight = plan.linear(path, outputs, inputs)?;
        let bias = if bias { Some(plan.float(&format!("{path}.bias"), &[outputs])?) } else { None };
        Ok((weight, bias))
    }

    let ModelConfig { hidden, intermediate, heads, kv_heads, head_dim, .. } = *config;
    let (attention_bias, mlp_bias) = (config.attention_bias, config.mlp_bias);
    let embedding = plan.linear("model.embed_tokens", config.vocabulary, hidden)?;
    let mut layers = Vec::with_capacity(config.layers);
    for index in 0..config.layers {
        let layer = format!("model.layers.{index}");
        let attention = format!("{layer}.self_attn");
        let mlp = format!("{layer}.mlp");
        let path = |room: &str, name: &str| format!("{room}.{name}");
        layers.push(LayerPlan {
            attention_norm: plan.float(&format!("{layer}.input_layernorm.weight"), &[hidden])?,
            query: projection(plan, &path(&attention, "q_proj"), heads * head_dim, hidden, attention_bias)?,
            key: projection(plan, &path(&attention, "k_proj"), kv_heads * head_dim, hidden, attention_bias)?,
            value: projection(
                plan,
                &path(&attention, "v_proj"),
                kv_heads * head_dim,
                hidden,
                attention_bias,
            )?,
            output: projection(plan, &path(&attention, "o_proj"), hidden, heads * head_dim, attention_bias)?,
            mlp_norm: plan.float(&format!("{layer}.post_attention_layernorm.weight"), &[hidden])?,
            gate: projection(plan, &path(&mlp, "gate_proj"), intermediate, hidden, mlp_bias)?,
            up: projection(plan, &path(&mlp, "up_proj"), intermediate, hidden, mlp_bias)?,
            down: projection(plan, &path(&mlp, "down_proj"), hidden, intermediate, mlp_bias)?,
        });
    }
    let norm = plan.float("model.norm.weight", &[hidden])?;
    let head = if config.tied { None } else { Some(plan.linear("lm_head", config.vocabulary, hidden)?) };
    Ok(Arc::new(LlamaPlan { config: config.clone(), embedding, layers, norm, head }))
}

/// Frequencies that some converters stored, and the output head of a tied model.
pub fn ignores(config: &ModelConfig, name: &str) -> bool {
    name.contains("self_attn.rotary_emb.inv_freq") || config.tied && name == "lm_head.weight"
}

impl FamilyPlan for LlamaPlan {
    fn footprint(&self, storage: Storage) -> Footprint {
        let config = &self.config;
        Footprint {
            layers: config.layers as u64,
            hidden: config.hidden as u64,
            intermediate: config.intermediate as u64,
            heads: config.heads as u64,
            kv_heads: config.kv_heads as u64,
            head_dim: config.head_dim as u64,
            vocabulary: config.vocabulary as u64,
            storage,
        }
    }

    fn parameters(&self) -> u64 {
        let ModelConfig { hidden, intermediate, heads, kv_heads, head_dim, .. } = self.config;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let attention_bias = if self.config.attention_bias { q + 2 * kv + hidden } else { 0 };
        let mlp_bias = if self.config.mlp_bias { 2 * intermediate + hidden } else { 0 };
        let matrices = hidden * (2 * q + 2 * kv + 3 * intermediate);
        let layer = matrices + attention_bias + mlp_bias + 2 * hidden;
        let tables = if self.head.is_some() { 2 } else { 1 };
        (self.config.layers * layer + tables * self.config.vocabulary * hidden + hidden) as u64
    }

    fn build(&self, tensors: &Tensors) -> Result<Box<dyn CausalGraph>> {
        let config = &self.config;
        let rope = rope_of(&config.rope, config.head_dim)?;
        let shape = AttentionShape {
            heads: config.heads as i32,
            kv_heads: config.kv_heads as i32,
            head_dim: config.head_dim as i32,
            scale: (config.head_dim as f64).powf(-0.5) as f32,
        };
        let arithmetic = tensors.arithmetic();
        let linear = |planned: &(PlannedLinear, Option<usize>)| tensors.linear(&planned.0, planned.1);
        let norm = |index: usize| -> Result<RmsNorm> {
            Ok(RmsNorm { gain: tensors.vector(index)?, eps: config.norm_eps as f32, arithmetic })
        };
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            layers.push(Layer {
                attention_norm: norm(layer.attention_norm)?,
                attention: Attention::new(
                    shape,
                    Projections {
                        query: linear(&layer.query)?,
                        key: linear(&layer.key)?,
                        value: linear(&layer.value)?,
                        output: linear(&layer.output)?,
                    },
                    rope.clone(),
                    arithmetic,
                )?,
                mlp_norm: norm(layer.mlp_norm)?,
                mlp: GatedMlp {
                    gate: linear(&layer.gate)?,
                    up: linear(&layer.up)?,
                    down: linear(&layer.down)?,
                    arithmetic,
                },
            });
        }
        let embedding = tensors.weight(&self.embedding)?;
        let head = match &self.head {
            Some(head) => tensors.weight(head)?,
            None => embedding.clone(),
        };
        Ok(Box::new(Llama { embedding, layers, norm: norm(self.norm)?, head: Linear::new(head, None)? }))
    }
}

struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: GatedMlp,
}

struct Llama {
    embedding: Weight,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

impl Llama {
    /// All layers but the last; what comes out of them and the mask before the last.
    fn body(
        &self,
        x: &Array,
        caches: &mut [Box<dyn LayerCache>],
        pace: &mut dyn Pace,
    ) -> Result<(Array, Mask)> {
        let mut x = x.clone();
        let mask = match caches.first() {
            Some(cache) => cache.mask(x.dim(1) as usize, None)?,
            None => Mask::None,
        };
        let last = self.layers.len().saturating_sub(1);
        for (layer, cache) in self.layers[..last].iter().zip(caches) {
            x = layer.forward(&x, &mask, cache.as_mut(), pace)?;
        }
        Ok((x, mask))
    }
}

impl Layer {
    fn forward(
        &self,
        x: &Array,
        mask: &Mask,
        cache: &mut dyn LayerCache,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let x = self.attention.onto(x, &self.attention_norm, mask, cache, pace)?;
        self.mlp.onto(&x, &self.mlp_norm, pace)
    }
}

impl CausalGraph for Llama {
    fn cache_needs(&self) -> Vec<LayerNeeds> {
        self.layers.iter().map(|layer| layer.attention.cache_needs()).collect()
    }

    fn embed(&self, ids: &Array) -> Result<Array> {
        ops::embedding(ids, &self.embedding)
    }

    fn extend(&self, x: &Array, caches: &mut [Box<dyn LayerCache>], pace: &mut dyn Pace) -> Result<()> {
        let (x, _) = self.body(x, caches, pace)?;
        if let (Some(layer), Some(cache)) = (self.layers.last(), caches.last_mut()) {
            layer.attention.remember(&x, &layer.attention_norm, cache.as_mut())?;
        }
        Ok(())
    }

    fn hidden(&self, x: &Array, caches: &mut [Box<dyn LayerCache>], pace: &mut dyn Pace) -> Result<Array> {
        let (mut x, mask) = self.body(x, caches, pace)?;
        if let (Some(layer), Some(cache)) = (self.layers.last(), caches.last_mut()) {
            x = layer.forward(&x, &mask, cache.as_mut(), pace)?;
        }
        self.norm.apply(&x)
    }

    fn scores(&self, hidden: &Array) -> Result<Array> {
        self.head.apply(hidden)
    }
}
