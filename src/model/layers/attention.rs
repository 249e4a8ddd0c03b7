//! Multi-head attention with grouped keys and values, rotary positions and a cache.

use super::norm::RmsNorm;
use crate::base::Result;
use crate::cache::{KvSizes, LayerCache, LayerNeeds};
use crate::mlx::ops::{self, CausalAttention, KeysValues, Linear, Rope};
use crate::mlx::{Array, Mask, prim};
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
    pub scale: f32,
}

/// The projections of a layer's attention.
pub struct Projections {
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
}

pub struct Attention {
    shape: AttentionShape,
    projections: Projections,
    rope: Rope,
    /// MLX's own attention over all keys, as mlx-lm calls it.
    exact: bool,
    /// Steps of the layer as single operations.
    fused: Option<CausalAttention>,
}

impl Attention {
    pub fn new(
        shape: AttentionShape,
        projections: Projections,
        rope: Rope,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        let AttentionShape { heads, kv_heads, head_dim, scale } = shape;
        let fused = match arithmetic {
            Arithmetic::Kernels => Some(CausalAttention::new(
                heads as usize,
                kv_heads as usize,
                head_dim as usize,
                scale,
                &rope,
            )?),
            Arithmetic::Exact | Arithmetic::Blas => None,
        };
        Ok(Attention { shape, projections, rope, exact: arithmetic == Arithmetic::Exact, fused })
    }

    pub fn cache_needs(&self) -> LayerNeeds {
        let AttentionShape { kv_heads, head_dim, .. } = self.shape;
        let dims = head_dim as usize;
        let sizes = KvSizes { kv_heads: kv_heads as usize, key_dims: dims, value_dims: dims };
        LayerNeeds { sizes, window: None }
    }

    /// `x + attention(norm(x))` for `x` `[1, tokens, hidden]`: the tokens that follow those of the cache.
    pub fn onto(
        &self,
        x: &Array,
        norm: &RmsNorm,
        mask: &Mask,
        cache: &mut dyn LayerCache,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let tokens = f64::from(x.dim(1));
        let Projections { query, key, value, output } = &self.projections;
        let Some(fused) = &self.fused else {
            let attended = self.forward(&norm.apply(x)?, mask, cache, pace)?;
            let x = ops::add(x, &output.apply(&attended)?)?;
            pace.reached(tokens * output.work(), &[&x])?;
            return Ok(x);
        };
        let qkv = ops::joined_products(x, Some(norm.parameters()), &[query, key, value])?;
        pace.reached(tokens * (query.work() + key.work() + value.work()), &[x, &qkv])?;
        let attended = cache.attend(&qkv, fused)?;
        let keys = cache.offset() as f64;
        let scores = tokens * keys * f64::from(self.shape.heads * self.shape.head_dim * 2);
        // What is written to the cache is computed with the heads' results.
        pace.reached(scores, &[x, &attended])?;
        let x = ops::product_onto(&attended, output, x)?;
        pace.reached(tokens * output.work(), &[&x])?;
        Ok(x)
    }

    /// The heads' results `[1, tokens, heads * dims]` for normalised `x`.
    fn forward(
        &self,
        x: &Array,
        mask: &Mask,
        cache: &mut dyn LayerCache,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let offset = cache.offset() as i32;
        let heads = self.shape.heads;
        let Projections { query, key, value, .. } = &self.projections;
        let queries = ops::rope(&ops::split_heads(&query.apply(x)?, heads)?, &self.rope, offset)?;
        let tokens = f64::from(x.dim(1));
        pace.reached(tokens * query.work(), &[&queries])?;
        let (keys, values) = self.keys_and_values(x, offset)?;
        pace.reached(tokens * (key.work() + value.work()), &[&queries, &keys, &values])?;

        let remembered = cache.append(&keys, &values)?;
        let attended = self.attend(&queries, &remembered, mask, pace)?;
        ops::merge_heads(&attended)
    }

    /// Appends the tokens `x` to the cache without attending: all that is left to do in the last
    /// layer when no scores are wanted.
    pub fn remember(&self, x: &Array, norm: &RmsNorm, cache: &mut dyn LayerCache) -> Result<()> {
        if let Some(fused) = &self.fused {
            let Projections { key, value, .. } = &self.projections;
            let kv = ops::joined_products(x, Some(norm.parameters()), &[key, value])?;
            return cache.store(&kv, fused);
        }
        let (keys, values) = self.keys_and_values(&norm.apply(x)?, cache.offset() as i32)?;
        cache.append(&keys, &values)?;
        Ok(())
    }

    fn keys_and_values(&self, x: &Array, offset: i32) -> Result<(Array, Array)> {
        let heads = self.shape.kv_heads;
        let keys = ops::rope(&ops::split_heads(&self.projections.key.apply(x)?, heads)?, &self.rope, offset)?;
        let values = ops::split_heads(&self.projections.value.apply(x)?, heads)?;
        Ok((keys, values))
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
        match (mask, remembered) {
            (Mask::None, KeysValues::Plain { keys, values }) if tokens == 1 && !self.exact => {
                ops::attention_of_one(queries, keys, values, self.shape.scale)
            }
            (Mask::Causal, KeysValues::Plain { keys, values }) if tokens > BLOCK && !self.exact => {
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
        let AttentionShape { heads, kv_heads, scale, .. } = self.shape;
        let work = self.score_work(f64::from(queries.dim(2)), f64::from(remembered.tokens()));
        if !pace.is_long(work) {
            let output = ops::attention(queries, remembered, scale, mask)?;
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
                let output = ops::attention(&query, &remembered, scale, mask)?;
                pace.reached(work / f64::from(heads), &[&output])?;
                outputs.push(output);
            }
        }
        prim::concatenate(&outputs.iter().collect::<Vec<_>>(), 1)
    }
}
