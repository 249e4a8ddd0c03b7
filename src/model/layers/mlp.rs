//! The gated feed-forward layer.

use super::norm::RmsNorm;
use crate::base::Result;
use crate::mlx::Array;
use crate::mlx::ops::{self, Linear};
use crate::model::graph::Pace;
use crate::model::tensors::Arithmetic;

/// `down(silu(gate(x)) * up(x))`
#[derive(Debug)]
pub struct GatedMlp {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    pub arithmetic: Arithmetic,
}

impl GatedMlp {
    /// `x + mlp(norm(x))`
    pub fn onto(&self, x: &Array, norm: &RmsNorm, pace: &mut dyn Pace) -> Result<Array> {
        let tokens = f64::from(x.dim(1));
        let x = if self.arithmetic == Arithmetic::Kernels {
            let inner = ops::gated_products(x, norm.parameters(), &self.gate, &self.up)?;
            pace.reached(tokens * (self.gate.work() + self.up.work()), &[x, &inner])?;
            ops::product_onto(&inner, &self.down, x)?
        } else {
            ops::add(x, &self.forward(&norm.apply(x)?, pace)?)?
        };
        pace.reached(tokens * self.down.work(), &[&x])?;
        Ok(x)
    }

    fn forward(&self, x: &Array, pace: &mut dyn Pace) -> Result<Array> {
        let tokens = f64::from(x.dim(1));
        let gate = self.gate.apply(x)?;
        pace.reached(tokens * self.gate.work(), &[&gate])?;
        let up = self.up.apply(x)?;
        pace.reached(tokens * self.up.work(), &[&up])?;
        let inner = ops::silu_gate(&gate, &up)?;
        drop((gate, up));
        let pointwise = f64::from(self.down.weight.inputs()) * super::attention::TRANSCENDENTAL;
        pace.reached(tokens * pointwise, &[&inner])?;
        self.down.apply(&inner)
    }
}
