//! Multi-head attention with grouped keys and values, rotary positions and a cache.

use std::rc::Rc;
use std::sync::Arc;

use super::norm::Input;
use super::rope::{Rotations, Turning};
use crate::base::Result;
use crate::cache::{KvSizes, LayerCache, LayerNeeds};
use crate::mlx::ops::{self, CausalAttention, HeadNorms, KeysValues, Linear, Rope};
use crate::mlx::{Array, Dtype, Mask, prim};
use crate::model::config::{HeadNorm, QueryGrowth, Wide};
use crate::model::graph::Pace;
use crate::model::tensors::Arithmetic;

/// What an exponential and the passes around it cost, in multiplications of a matrix product.
pub(super) const TRANSCENDENTAL: f64 = 600.0;

/// Queries that share a range of keys in a forward that need not be exact.
const BLOCK: i32 = 128;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    pub heads: i32,
    /// Divides `heads`.
    pub kv_heads: i32,
    pub head_dim: i32,
    pub scale: f64,
    /// A query sees at most that many of the latest tokens, its own included.
    pub window: Option<usize>,
    /// Scores `s` become `soft_cap * tanh(s / soft_cap)`.
    pub soft_cap: Option<f64>,
    pub growth: Option<QueryGrowth>,
    pub wide: Wide,
}

/// The projections that a layer's attention begins with.
pub enum Projections {
    Separate {
        query: Linear,
        key: Linear,
        value: Linear,
    },
    /// The rows of the three in one matrix.
    Joined(Linear),
}

impl Projections {
    fn all(&self) -> Vec<&Linear> {
        match self {
            Projections::Separate { query, key, value } => vec![query, key, value],
            Projections::Joined(all) => vec![all],
        }
    }

    fn work(&self) -> f64 {
        self.all().iter().map(|linear| linear.work()).sum()
    }
}

/// Gains of the norms of queries and keys: `[head_dim]`, `[heads * head_dim]` or `[heads, head_dim]`, as `norm` says.
pub struct HeadGains {
    pub norm: HeadNorm,
    pub queries: Array,
    pub keys: Array,
    pub eps: f32,
}

pub struct Attention {
    shape: AttentionShape,
    projections: Projections,
    pub output: Linear,
    rope: Option<Rope>,
    gains: Option<HeadGains>,
    /// MLX's own attention over all keys, as mlx-lm calls it.
    exact: bool,
    /// Steps of the layer as single operations.
    fused: Option<Fused>,
}

struct Fused {
    attention: CausalAttention,
    rotations: Rc<Rotations>,
}

impl Fused {
    fn new(shape: AttentionShape, turning: &Turning, gains: Option<&HeadGains>) -> Result<Self> {
        let norms = match gains {
            None => None,
            Some(gains) => Some(Arc::new(HeadNorms {
                form: match gains.norm {
                    HeadNorm::Shared => ops::HeadNorm::Shared,
                    HeadNorm::Whole => ops::HeadNorm::Whole,
                    HeadNorm::Own => ops::HeadNorm::Own,
                },
                eps: gains.eps,
                queries: gains.queries.to_vec::<f32>()?,
                keys: gains.keys.to_vec::<f32>()?,
            })),
        };
        let growth = shape
            .growth
            .map(|growth| ops::QueryGrowth { beta: growth.beta as f32, positions: growth.positions as f32 });
        let rotations = Rc::clone(&turning.rotations);
        let attention = CausalAttention {
            heads: shape.heads as usize,
            kv_heads: shape.kv_heads as usize,
            head_dim: shape.head_dim as usize,
            scale: shape.scale as f32,
            soft_cap: shape.soft_cap.map(|cap| cap as f32),
            rotation: ops::rotation(None)?,
            norms,
            growth,
        };
        Ok(Fused { attention, rotations })
    }

    /// The step for a sequence of `length` positions. That is the prompt's end for every part of a prompt: how one is
    /// cut into forwards must not change a bit.
    fn at_length(&self, length: usize) -> Result<CausalAttention> {
        let rotation = self.rotations.at_length(length)?;
        Ok(CausalAttention { rotation, ..self.attention.clone() })
    }
}

impl Attention {
    pub fn new(
        shape: AttentionShape,
        projections: Projections,
        output: Linear,
        turning: Turning,
        gains: Option<HeadGains>,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        let fused = match arithmetic {
            Arithmetic::Kernels => Some(Fused::new(shape, &turning, gains.as_ref())?),
            Arithmetic::Exact | Arithmetic::Blas => None,
        };
        let exact = arithmetic == Arithmetic::Exact;
        Ok(Attention { shape, projections, output, rope: turning.rope, gains, exact, fused })
    }

    pub fn cache_needs(&self) -> LayerNeeds {
        let AttentionShape { kv_heads, head_dim, window, .. } = self.shape;
        let dims = head_dim as usize;
        let sizes = KvSizes { kv_heads: kv_heads as usize, key_dims: dims, value_dims: dims };
        LayerNeeds { sizes, window }
    }

    /// The heads' results `[1, tokens, heads * dims]` for the tokens that follow those of the cache.
    pub fn attended(
        &self,
        input: Input<'_>,
        mask: &Mask,
        cache: &mut dyn LayerCache,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let Some(fused) = &self.fused else {
            return self.composed(&input.normalized()?, mask, cache, pace);
        };
        let x = input.x;
        let tokens = f64::from(x.dim(1));
        let qkv = ops::joined_products(x, input.parameters(), &self.projections.all())?;
        pace.reached(tokens * self.projections.work(), &[x, &qkv])?;
        let attended =
            cache.attend(&qkv, &fused.at_length(pace.horizon().max(cache.offset() + x.dim(1) as usize))?)?;
        let keys = cache.offset() as f64;
        let scores = tokens * keys * f64::from(self.shape.heads * self.shape.head_dim * 2);
        // What is written to the cache is computed with the heads' results.
        pace.reached(scores, &[x, &attended])?;
        Ok(attended)
    }

    /// The same for normalised `x`, of MLX's operations.
    fn composed(
        &self,
        x: &Array,
        mask: &Mask,
        cache: &mut dyn LayerCache,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let offset = cache.offset() as i32;
        let tokens = f64::from(x.dim(1));
        let queries;
        let keys;
        let values;
        match &self.projections {
            Projections::Separate { query, key, value } => {
                queries = self.queries(&query.apply(x)?, offset)?;
                pace.reached(tokens * query.work(), &[&queries])?;
                (keys, values) = self.keys_and_values(&key.apply(x)?, &value.apply(x)?, offset)?;
                pace.reached(tokens * (key.work() + value.work()), &[&queries, &keys, &values])?;
            }
            Projections::Joined(all) => {
                let [q, k, v] = ops::split_columns(&all.apply(x)?, self.widths())?;
                queries = self.queries(&q, offset)?;
                (keys, values) = self.keys_and_values(&k, &v, offset)?;
                pace.reached(tokens * all.work(), &[&queries, &keys, &values])?;
            }
        }
        let remembered = cache.append(&keys, &values)?;
        let attended = match self.shape.wide {
            Wide::Always => {
                let queries = prim::astype(&queries, Dtype::Float32)?;
                let attended =
                    self.attend(&queries, &remembered.with_keys_as(Dtype::Float32)?, mask, pace)?;
                prim::astype(&attended, values.dtype())?
            }
            Wide::Float16Queries if queries.dtype() == Dtype::Float16 => {
                let wide = prim::astype(&queries, Dtype::Float32)?;
                prim::astype(&self.attend(&wide, &remembered, mask, pace)?, queries.dtype())?
            }
            Wide::Never | Wide::Float16Queries => self.attend(&queries, &remembered, mask, pace)?,
        };
        ops::merge_heads(&attended)
    }

    /// Appends the tokens of `input` to the cache without attending.
    pub fn remember(&self, input: Input<'_>, cache: &mut dyn LayerCache, pace: &dyn Pace) -> Result<()> {
        let offset = cache.offset();
        let Some(fused) = &self.fused else {
            let x = &input.normalized()?;
            let (keys, values) = match &self.projections {
                Projections::Separate { key, value, .. } => {
                    self.keys_and_values(&key.apply(x)?, &value.apply(x)?, offset as i32)?
                }
                Projections::Joined(all) => {
                    let [_, k, v] = ops::split_columns(&all.apply(x)?, self.widths())?;
                    self.keys_and_values(&k, &v, offset as i32)?
                }
            };
            cache.append(&keys, &values)?;
            return Ok(());
        };
        let kv = match &self.projections {
            Projections::Separate { key, value, .. } => {
                ops::joined_products(input.x, input.parameters(), &[key, value])?
            }
            Projections::Joined(all) => {
                let qkv = ops::joined_products(input.x, input.parameters(), &[all])?;
                let [queries, keys, values] = self.widths();
                let [_, kv] = ops::split_columns(&qkv, [queries, keys + values])?;
                prim::contiguous(&kv)?
            }
        };
        cache.store(&kv, &fused.at_length(pace.horizon().max(offset + input.x.dim(1) as usize))?)
    }

    /// Columns of queries, keys and values.
    fn widths(&self) -> [i32; 3] {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    }

    /// `[1, tokens, heads * dims]` to `[1, heads, tokens, dims]`, ready for attention.
    fn queries(&self, projected: &Array, offset: i32) -> Result<Array> {
        let heads =
            self.heads(projected, self.shape.heads, self.gains.as_ref().map(|gains| &gains.queries))?;
        let turned = self.turned(&heads, offset)?;
        let Some(QueryGrowth { beta, positions }) = self.shape.growth else { return Ok(turned) };
        let end = f64::from(offset + turned.dim(2));
        let at = prim::arange(f64::from(offset), end, 1.0, Dtype::Int32)?;
        let steps = prim::floor(&prim::divide(&at, &Array::scalar(positions as f32)?)?)?;
        let one = Array::scalar(1.0)?;
        let grown = prim::multiply(&Array::scalar(beta as f32)?, &prim::log(&prim::add(&one, &steps)?)?)?;
        let factor = prim::expand_dims(&prim::add(&one, &grown)?, 1)?;
        prim::multiply(&turned, &prim::astype(&factor, turned.dtype())?)
    }

    fn keys_and_values(&self, keys: &Array, values: &Array, offset: i32) -> Result<(Array, Array)> {
        let heads = self.shape.kv_heads;
        let keys = self.heads(keys, heads, self.gains.as_ref().map(|gains| &gains.keys))?;
        Ok((self.turned(&keys, offset)?, ops::split_heads(values, heads)?))
    }

    /// Normalised heads `[1, heads, tokens, dims]`.
    fn heads(&self, projected: &Array, heads: i32, gain: Option<&Array>) -> Result<Array> {
        let (Some(gains), Some(gain)) = (&self.gains, gain) else {
            return ops::split_heads(projected, heads);
        };
        if gains.norm == HeadNorm::Whole {
            return ops::split_heads(&ops::rms_norm(projected, gain, gains.eps)?, heads);
        }
        let rows = prim::reshape(projected, &[projected.dim(0), projected.dim(1), heads, -1])?;
        let rows = match gains.norm {
            HeadNorm::Own => prim::multiply(gain, &ops::layer_norm(&rows, None, None, gains.eps)?)?,
            HeadNorm::Shared | HeadNorm::Whole => ops::rms_norm(&rows, gain, gains.eps)?,
        };
        prim::transpose_axes(&rows, &[0, 2, 1, 3])
    }

    fn turned(&self, x: &Array, offset: i32) -> Result<Array> {
        self.rope.as_ref().map_or_else(|| Ok(x.clone()), |rope| ops::rope(x, rope, offset))
    }

    fn score_work(&self, tokens: f64, keys: f64) -> f64 {
        let per_score = 2.0 * f64::from(self.shape.head_dim) + TRANSCENDENTAL;
        f64::from(self.shape.heads) * tokens * keys * per_score
    }

    fn attend(
        &self,
        queries: &Array,
        remembered: &KeysValues,
        mask: &Mask,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let tokens = queries.dim(2);
        let quick = !self.exact && self.shape.soft_cap.is_none();
        match (mask, remembered) {
            (Mask::None, KeysValues::Plain { keys, values }) if tokens == 1 && quick => {
                ops::attention_of_one(queries, keys, values, self.shape.scale as f32)
            }
            (Mask::Causal, KeysValues::Plain { keys, values }) if tokens > BLOCK && quick => {
                self.attend_in_blocks(queries, keys, values, pace)
            }
            _ => self.attend_to_all(queries, remembered, mask, pace),
        }
    }

    /// Each block of queries with the keys up to its last: MLX computes what a mask hides too.
    fn attend_in_blocks(
        &self,
        queries: &Array,
        keys: &Array,
        values: &Array,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let tokens = queries.dim(2);
        let behind = keys.dim(2) - tokens;
        let cut = |x: &Array, from: i32, to: i32| {
            prim::slice(x, &[0, 0, from, 0], &[x.dim(0), x.dim(1), to, x.dim(3)])
        };
        let mut outputs = Vec::new();
        for from in (0..tokens).step_by(BLOCK as usize) {
            let to = tokens.min(from + BLOCK);
            let seen =
                KeysValues::Plain { keys: cut(keys, 0, behind + to)?, values: cut(values, 0, behind + to)? };
            let queries = cut(queries, from, to)?;
            outputs.push(self.attend_to_all(&queries, &seen, &Mask::Causal, pace)?);
        }
        prim::concatenate(&outputs.iter().collect::<Vec<_>>(), 2)
    }

    fn attend_to_all(
        &self,
        queries: &Array,
        remembered: &KeysValues,
        mask: &Mask,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let AttentionShape { heads, kv_heads, scale, soft_cap, .. } = self.shape;
        let attention = |queries: &Array, remembered: &KeysValues| match soft_cap {
            None => ops::attention(queries, remembered, scale as f32, mask),
            Some(cap) => ops::capped_attention(queries, remembered, scale, cap, mask),
        };
        let work = self.score_work(f64::from(queries.dim(2)), f64::from(remembered.tokens()));
        if !pace.is_long(work) {
            let output = attention(queries, remembered)?;
            pace.reached(work, &[&output])?;
            return Ok(output);
        }
        // Heads do not touch each other, so one group of them after the other gives the same bits.
        let mut outputs = Vec::with_capacity(heads as usize);
        for kv_head in 0..kv_heads {
            let remembered = remembered.of_head(kv_head)?;
            for head in kv_head * (heads / kv_heads)..(kv_head + 1) * (heads / kv_heads) {
                let query = prim::slice(
                    queries,
                    &[0, head, 0, 0],
                    &[queries.dim(0), head + 1, queries.dim(2), queries.dim(3)],
                )?;
                let output = attention(&query, &remembered)?;
                pace.reached(work / f64::from(heads), &[&output])?;
                outputs.push(output);
            }
        }
        prim::concatenate(&outputs.iter().collect::<Vec<_>>(), 1)
    }
}
