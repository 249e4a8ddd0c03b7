//! From planned tensors that have been read to the graph.

use super::graph::{Dense, Head};
use super::plan::{
    DensePlan, PlannedHeadNorm, PlannedLayer, PlannedMlp, PlannedNorm, PlannedProduct, PlannedProjections,
};
use crate::base::{Error, Result};
use crate::mlx::ops::{self, Linear};
use crate::mlx::{Array, Dtype, prim};
use crate::model::config::{self, Activation, EmbeddingScale, HeadNorm, ModelConfig, NormKind};
use crate::model::layers::{
    Attention, AttentionShape, Block, HeadGains, Mlp, MlpWeights, Norm, Projections, Turning, rope_of,
};
use crate::model::tensors::{Arithmetic, Tensors};

pub(super) fn graph(plan: &DensePlan, tensors: &Tensors) -> Result<Dense> {
    let builder = Builder { config: &plan.config, tensors };
    let turn = |rope: &config::Rope| Turning::new(Some(rope_of(rope)?));
    let turnings = Turnings {
        ropes: plan.config.ropes.iter().map(turn).collect::<Result<_>>()?,
        none: Turning::new(None)?,
    };
    let blocks =
        plan.layers.iter().map(|layer| builder.block(layer, &turnings)).collect::<Result<Vec<_>>>()?;
    let windows = plan.layers.iter().map(|layer| layer.config.window).collect();
    let embedding = tensors.weight(&plan.embedding)?;
    let head = match &plan.head {
        Some(head) => tensors.weight(head)?,
        None => embedding.clone(),
    };
    Ok(Dense {
        embedding,
        embedding_scale: plan
            .config
            .embedding_scale
            .map(|scale| builder.embedding_scale(scale))
            .transpose()?,
        blocks,
        windows,
        norm: builder.norm(plan.norm)?,
        head: Head { linear: Linear::new(head, None)?, config: plan.config.head },
        arithmetic: tensors.arithmetic(),
    })
}

/// The rotations that layers share.
struct Turnings {
    ropes: Vec<Turning>,
    none: Turning,
}

struct Builder<'a> {
    config: &'a ModelConfig,
    tensors: &'a Tensors,
}

impl Builder<'_> {
    fn linear(&self, planned: &PlannedProduct) -> Result<Linear> {
        self.tensors.linear(&planned.0, planned.1)
    }

    /// A norm's gain: the tensor, or one more.
    fn gain(&self, index: usize) -> Result<Array> {
        let gain = self.tensors.vector(index)?;
        if !self.config.norm.one_more {
            return Ok(gain);
        }
        let gain = ops::one_more(&gain)?;
        gain.eval()?;
        Ok(gain)
    }

    fn norm(&self, planned: PlannedNorm) -> Result<Norm> {
        Ok(Norm {
            kind: match self.config.norm.kind {
                NormKind::RootMeanSquare => ops::NormKind::RootMeanSquare,
                NormKind::Layer { .. } => ops::NormKind::Layer,
            },
            gain: self.gain(planned.gain)?,
            bias: planned.bias.map(|bias| self.tensors.vector(bias)).transpose()?,
            eps: self.config.norm.eps as f32,
            arithmetic: self.tensors.arithmetic(),
        })
    }

    fn block(&self, layer: &PlannedLayer, turnings: &Turnings) -> Result<Block> {
        let norm = |planned: Option<PlannedNorm>| planned.map(|planned| self.norm(planned)).transpose();
        Ok(Block {
            before_attention: norm(layer.before_attention)?,
            attention: self.attention(layer, turnings)?,
            after_attention: norm(layer.after_attention)?,
            before_mlp: norm(layer.before_mlp)?,
            mlp: Mlp {
                form: match &layer.mlp {
                    PlannedMlp::Gated { gate, up } => {
                        MlpWeights::Gated { gate: self.linear(gate)?, up: self.linear(up)? }
                    }
                    PlannedMlp::GatedJoined(both) => MlpWeights::GatedJoined(self.linear(both)?),
                    PlannedMlp::Plain(up) => MlpWeights::Plain(self.linear(up)?),
                },
                activation: match self.config.mlp.activation {
                    Activation::Silu => ops::Activation::Silu,
                    Activation::Gelu => ops::Activation::Gelu,
                    Activation::GeluTanh => ops::Activation::GeluTanh,
                    Activation::ReluSquared => ops::Activation::Relu2,
                },
                down: self.linear(&layer.down)?,
                arithmetic: self.tensors.arithmetic(),
            },
            after_mlp: norm(layer.after_mlp)?,
            order: self.config.block.order,
            residual_scale: self.config.residual_scale,
            clipped: self.config.block.clipped,
            arithmetic: self.tensors.arithmetic(),
        })
    }

    fn attention(&self, layer: &PlannedLayer, turnings: &Turnings) -> Result<Attention> {
        let config = self.config;
        let shape = AttentionShape {
            heads: config.heads as i32,
            kv_heads: config.kv_heads as i32,
            head_dim: config.head_dim as i32,
            scale: config.attention.scale,
            window: layer.config.window,
            soft_cap: config.attention.softcap,
            growth: config.attention.query_growth,
            wide: config.attention.wide,
        };
        let projections = match &layer.projections {
            PlannedProjections::Separate { query, key, value } => Projections::Separate {
                query: self.linear(query)?,
                key: self.linear(key)?,
                value: self.linear(value)?,
            },
            PlannedProjections::Joined(all) => Projections::Joined(self.linear(all)?),
        };
        let turning = layer.config.rope.map_or(&turnings.none, |rope| &turnings.ropes[rope]).clone();
        let gains = match (&layer.head_norm, config.attention.head_norm) {
            (Some(planned), Some(norm)) => Some(self.head_gains(planned, norm)?),
            _ => None,
        };
        let output = self.linear(&layer.output)?;
        Attention::new(shape, projections, output, turning, gains, self.tensors.arithmetic())
    }

    fn head_gains(&self, planned: &PlannedHeadNorm, norm: HeadNorm) -> Result<HeadGains> {
        let gains = |indices: &[usize]| match (norm, indices) {
            (HeadNorm::Shared | HeadNorm::Whole, [one]) => self.gain(*one),
            (HeadNorm::Own, heads) => {
                let heads =
                    heads.iter().map(|head| self.tensors.vector(*head)).collect::<Result<Vec<_>>>()?;
                let all = prim::concatenate(&heads.iter().collect::<Vec<_>>(), 0)?;
                let all = prim::reshape(&all, &[heads.len() as i32, -1])?;
                all.eval()?;
                Ok(all)
            }
            _ => Err(Error::internal("another number of gains than was planned")),
        };
        let eps = self.config.norm.eps as f32;
        Ok(HeadGains { norm, queries: gains(&planned.queries)?, keys: gains(&planned.keys)?, eps })
    }

    /// Under the kernels, whose activations are float32 whatever the weights, a factor that was rounded when the model
    /// was trained is rounded here.
    fn embedding_scale(&self, scale: EmbeddingScale) -> Result<EmbeddingScale> {
        let rounded = |factor: f64, dtype: Dtype| -> Result<EmbeddingScale> {
            let factor = prim::astype(&Array::scalar(factor as f32)?, dtype)?;
            let factor = prim::astype(&factor, Dtype::Float32)?.to_vec::<f32>()?;
            Ok(EmbeddingScale::Plain(f64::from(factor.first().copied().unwrap_or(1.0))))
        };
        match (self.tensors.arithmetic(), scale) {
            (Arithmetic::Kernels, EmbeddingScale::Rounded(factor)) => rounded(factor, self.tensors.float()),
            (Arithmetic::Kernels, EmbeddingScale::Bfloat16(factor)) => rounded(factor, Dtype::Bfloat16),
            (_, scale) => Ok(scale),
        }
    }
}
