//! Multi-head attention with grouped keys and values, rotary positions and a cache.

use crate::base::Result;
use crate::cache::KvCache;
use crate::mlx::ops::{self, Linear, Rope};
use crate::mlx::{Array, Mask, prim};
use crate::model::graph::Pace;

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
    /// MLX's own attention over all keys, as mlx-lm calls it.
    pub exact: bool,
}

#[derive(Debug)]
pub struct Attention {
    pub shape: AttentionShape,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    pub rope: Rope,
}

impl Attention {
    /// `x` `[1, tokens, hidden]`: the tokens that follow those of the cache.
    pub fn forward(
        &self,
        x: &Array,
        mask: &Mask,
        cache: &mut dyn KvCache,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let offset = cache.offset() as i32;
        let heads = self.shape.heads;
        let queries = ops::rope(&ops::split_heads(&self.query.apply(x)?, heads)?, &self.rope, offset)?;
        let tokens = f64::from(x.dim(1));
        pace.reached(tokens * self.query.work(), &[&queries])?;
        let (keys, values) = self.keys_and_values(x, offset)?;
        pace.reached(tokens * (self.key.work() + self.value.work()), &[&queries, &keys, &values])?;

        let (keys, values) = cache.append(&keys, &values)?;
        let attended = self.attend(&queries, &keys, &values, mask, pace)?;
        self.output.apply(&ops::merge_heads(&attended)?)
    }

    /// Appends the tokens `x` to the cache without attending: all that is left to do in the last
    /// layer when no scores are wanted.
    pub fn remember(&self, x: &Array, cache: &mut dyn KvCache) -> Result<()> {
        let (keys, values) = self.keys_and_values(x, cache.offset() as i32)?;
        cache.append(&keys, &values)?;
        Ok(())
    }

    fn keys_and_values(&self, x: &Array, offset: i32) -> Result<(Array, Array)> {
        let heads = self.shape.kv_heads;
        let keys = ops::rope(&ops::split_heads(&self.key.apply(x)?, heads)?, &self.rope, offset)?;
        let values = ops::split_heads(&self.value.apply(x)?, heads)?;
        Ok((keys, values))
    }

    /// Multiplications of a token that `forward` has not reported itself.
    pub fn rest_of_work(&self) -> f64 {
        self.output.work()
    }

    fn score_work(&self, tokens: f64, keys: f64) -> f64 {
        let per_score = 2.0 * f64::from(self.shape.head_dim) + TRANSCENDENTAL;
        f64::from(self.shape.heads) * tokens * keys * per_score
    }

    fn attend(
        &self,
        queries: &Array,
        keys: &Array,
        values: &Array,
        mask: &Mask,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let tokens = queries.dim(2);
        match mask {
            Mask::None if tokens == 1 && !self.shape.exact => {
                ops::attention_of_one(queries, keys, values, self.shape.scale)
            }
            Mask::Causal if tokens > BLOCK && !self.shape.exact => {
                self.attend_in_blocks(queries, keys, values, pace)
            }
            _ => self.attend_to_all(queries, keys, values, mask, pace),
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
            let (keys, values) = (cut(keys, 0, behind + to)?, cut(values, 0, behind + to)?);
            let queries = cut(queries, from, to)?;
            outputs.push(self.attend_to_all(&queries, &keys, &values, &Mask::Causal, pace)?);
        }
        prim::concatenate(&outputs.iter().collect::<Vec<_>>(), 2)
    }

    fn attend_to_all(
        &self,
        queries: &Array,
        keys: &Array,
        values: &Array,
        mask: &Mask,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let AttentionShape { heads, kv_heads, scale, .. } = self.shape;
        let work = self.score_work(f64::from(queries.dim(2)), f64::from(keys.dim(2)));
        if !pace.is_long(work) {
            let output = ops::attention(queries, keys, values, scale, mask)?;
            pace.reached(work, &[&output])?;
            return Ok(output);
        }
        // Heads do not touch each other, so one after the other gives the same bits.
        let one = |x: &Array, head: i32| {
            prim::slice(x, &[0, head, 0, 0], &[x.dim(0), head + 1, x.dim(2), x.dim(3)])
        };
        let mut outputs = Vec::with_capacity(heads as usize);
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let output = ops::attention(
                &one(queries, head)?,
                &one(keys, kv_head)?,
                &one(values, kv_head)?,
                scale,
                mask,
            )?;
            pace.reached(work / f64::from(heads), &[&output])?;
            outputs.push(output);
        }
        prim::concatenate(&outputs.iter().collect::<Vec<_>>(), 1)
    }
}
