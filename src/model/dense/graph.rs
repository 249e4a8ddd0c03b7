//! The forward of a dense decoder.

use crate::base::Result;
use crate::cache::{LayerCache, LayerNeeds};
use crate::mlx::ops::{self, Linear, Weight};
use crate::mlx::{Array, Mask};
use crate::model::config::{EmbeddingScale, HeadConfig};
use crate::model::graph::{CausalGraph, Pace};
use crate::model::layers::{Block, Norm};
use crate::model::tensors::Arithmetic;

pub(super) struct Dense {
    pub(super) embedding: Weight,
    pub(super) embedding_scale: Option<EmbeddingScale>,
    pub(super) blocks: Vec<Block>,
    /// Of each block. Layers with one window see the same tokens.
    pub(super) windows: Vec<Option<usize>>,
    pub(super) norm: Norm,
    pub(super) head: Head,
    pub(super) arithmetic: Arithmetic,
}

/// From hidden values to scores.
pub(super) struct Head {
    pub(super) linear: Linear,
    pub(super) config: HeadConfig,
}

/// The masks of a forward, one for each window.
type Masks = Vec<(Option<usize>, Mask)>;

impl Dense {
    /// Asked before any layer appends.
    fn masks(&self, tokens: usize, caches: &[Box<dyn LayerCache>]) -> Result<Masks> {
        let mut masks = Masks::new();
        for (window, cache) in self.windows.iter().zip(caches) {
            if !masks.iter().any(|(known, _)| known == window) {
                masks.push((*window, cache.mask(tokens, *window)?));
            }
        }
        Ok(masks)
    }

    fn mask<'a>(&self, masks: &'a Masks, index: usize) -> &'a Mask {
        let window = self.windows[index];
        masks.iter().find(|(known, _)| *known == window).map_or(&Mask::None, |(_, mask)| mask)
    }

    /// The first `count` layers; what comes out of them.
    fn body(
        &self,
        x: &Array,
        count: usize,
        masks: &Masks,
        caches: &mut [Box<dyn LayerCache>],
        pace: &mut dyn Pace,
    ) -> Result<Array> {
        let mut x = x.clone();
        for (index, (block, cache)) in self.blocks.iter().zip(caches).take(count).enumerate() {
            x = block.forward(&x, self.mask(masks, index), cache.as_mut(), pace)?;
        }
        Ok(x)
    }
}

impl CausalGraph for Dense {
    fn cache_needs(&self) -> Vec<LayerNeeds> {
        self.blocks.iter().map(|block| block.attention.cache_needs()).collect()
    }

    fn embed(&self, ids: &Array) -> Result<Array> {
        let x = ops::embedding(ids, &self.embedding)?;
        match self.embedding_scale {
            None => Ok(x),
            Some(EmbeddingScale::Plain(factor)) if self.arithmetic == Arithmetic::Kernels => {
                ops::rescaled(&x, factor as f32, None)
            }
            Some(EmbeddingScale::Plain(factor) | EmbeddingScale::Rounded(factor)) => ops::scaled(&x, factor),
            Some(EmbeddingScale::Bfloat16(factor)) => ops::scaled_by_bfloat16(&x, factor),
        }
    }

    fn extend(&self, x: &Array, caches: &mut [Box<dyn LayerCache>], pace: &mut dyn Pace) -> Result<()> {
        let last = self.blocks.len().saturating_sub(1);
        let masks = self.masks(x.dim(1) as usize, caches)?;
        let x = self.body(x, last, &masks, caches, pace)?;
        if let (Some(block), Some(cache)) = (self.blocks.last(), caches.last_mut()) {
            block.remember(&x, cache.as_mut(), pace)?;
        }
        Ok(())
    }

    fn hidden(&self, x: &Array, caches: &mut [Box<dyn LayerCache>], pace: &mut dyn Pace) -> Result<Array> {
        let masks = self.masks(x.dim(1) as usize, caches)?;
        let x = self.body(x, self.blocks.len(), &masks, caches, pace)?;
        self.norm.apply(&x)
    }

    fn scores(&self, hidden: &Array) -> Result<Array> {
        let Head { linear, config } = &self.head;
        let HeadConfig { input_divisor, factor, divisor, softcap, .. } = *config;
        if self.arithmetic == Arithmetic::Kernels {
            let scores = linear.apply(hidden)?;
            let factor = factor.unwrap_or(1.0) / (divisor.unwrap_or(1.0) * input_divisor.unwrap_or(1.0));
            if factor == 1.0 && softcap.is_none() {
                return Ok(scores);
            }
            return ops::rescaled(&scores, factor as f32, softcap.map(|cap| cap as f32));
        }
        let mut scores = match input_divisor {
            Some(divisor) => linear.apply(&ops::divided(hidden, divisor)?)?,
            None => linear.apply(hidden)?,
        };
        if let Some(factor) = factor {
            scores = ops::scaled(&scores, factor)?;
        }
        if let Some(divisor) = divisor {
            scores = ops::divided(&scores, divisor)?;
        }
        match softcap {
            Some(cap) => ops::soft_capped(&scores, cap),
            None => Ok(scores),
        }
    }
}
