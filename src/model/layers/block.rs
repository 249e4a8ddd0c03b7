//! A layer: attention and a feed-forward half, each added to what came in.

use super::attention::Attention;
use super::mlp::Mlp;
use super::norm::{Input, Norm};
use crate::base::Result;
use crate::cache::LayerCache;
use crate::mlx::ops::{self, Linear};
use crate::mlx::{Array, Mask};
use crate::model::config::Order;
use crate::model::graph::Pace;
use crate::model::tensors::Arithmetic;

pub struct Block {
    pub before_attention: Option<Norm>,
    pub attention: Attention,
    pub after_attention: Option<Norm>,
    pub before_mlp: Option<Norm>,
    pub mlp: Mlp,
    pub after_mlp: Option<Norm>,
    pub order: Order,
    /// Of what each half adds.
    pub residual_scale: Option<f64>,
    /// Sums in float16 stay below its infinity.
    pub clipped: bool,
    pub arithmetic: Arithmetic,
}

impl Block {
    /// What comes out for `x` `[1, tokens, hidden]`: the tokens that follow those of the cache.
    pub fn forward(
        &self,
        x: &Array,
        mask: &Mask,
        cache: &mut dyn LayerCache,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let exact = self.arithmetic != Arithmetic::Kernels;
        // Outside the kernels both halves of a parallel layer take the same array.
        let first = match &self.before_attention {
            Some(norm) if exact => Some(norm.apply(x)?),
            _ => None,
        };
        let input = match &first {
            Some(first) => Input { x: first, norm: None },
            None => Input { x, norm: self.before_attention.as_ref() },
        };
        let output = &self.attention.output;
        let attended = self.attention.attended(input, mask, cache, pace)?;
        match self.order {
            Order::Serial => {
                let x = self.onto(x, &attended, output, self.after_attention.as_ref(), pace)?;
                let inner = self.mlp.inner(Input { x: &x, norm: self.before_mlp.as_ref() }, pace)?;
                self.onto(&x, &inner, &self.mlp.down, self.after_mlp.as_ref(), pace)
            }
            Order::Parallel => {
                let sum = self.onto(x, &attended, output, None, pace)?;
                let inner = self.mlp.inner(input, pace)?;
                self.onto(&sum, &inner, &self.mlp.down, None, pace)
            }
            Order::ParallelFirst if exact => {
                let attended = output.apply(&attended)?;
                pace.reached(f64::from(x.dim(1)) * output.work(), &[x, &attended])?;
                let inner = self.mlp.inner(input, pace)?;
                let sum = ops::add(&attended, &self.mlp.down.apply(&inner)?)?;
                let sum = ops::add(&sum, x)?;
                pace.reached(f64::from(x.dim(1)) * self.mlp.down.work(), &[&sum])?;
                Ok(sum)
            }
            Order::ParallelFirst => {
                let inner = self.mlp.inner(input, pace)?;
                let sum = self.onto(x, &attended, output, None, pace)?;
                self.onto(&sum, &inner, &self.mlp.down, None, pace)
            }
        }
    }

    /// Appends the tokens `x` to the cache without attending: all that is left to do in the last layer when no scores
    /// are wanted.
    pub fn remember(&self, x: &Array, cache: &mut dyn LayerCache, pace: &dyn Pace) -> Result<()> {
        self.attention.remember(Input { x, norm: self.before_attention.as_ref() }, cache, pace)
    }

    /// `x + scale * norm(linear(inner))`
    fn onto(
        &self,
        x: &Array,
        inner: &Array,
        linear: &Linear,
        norm: Option<&Norm>,
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let sum = if self.arithmetic == Arithmetic::Kernels {
            match (norm, self.residual_scale) {
                (None, None) => ops::product_onto(inner, linear, x)?,
                (norm, scale) => {
                    let product = ops::joined_products(inner, None, &[linear])?;
                    ops::added(x, &product, norm.map(Norm::parameters), scale.map(|scale| scale as f32))?
                }
            }
        } else {
            let mut product = linear.apply(inner)?;
            if let Some(norm) = norm {
                product = norm.apply(&product)?;
            }
            if let Some(scale) = self.residual_scale {
                product = ops::scaled(&product, scale)?;
            }
            if self.clipped { ops::add_clipped(x, &product)? } else { ops::add(x, &product)? }
        };
        pace.reached(f64::from(x.dim(1)) * linear.work(), &[&sum])?;
        Ok(sum)
    }
}
