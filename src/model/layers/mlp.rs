//! The gated feed-forward layer.

use crate::base::Result;
use crate::mlx::Array;
use crate::mlx::ops::{self, Linear};
use crate::model::graph::Pace;

/// `down(silu(gate(x)) * up(x))`
#[derive(Debug)]
pub struct GatedMlp {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

impl GatedMlp {
    pub fn forward(&self, x: &Array, pace: &mut dyn Pace) -> Result<Array> {
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

    /// Multiplications of a token that `forward` has not reported itself.
    pub fn rest_of_work(&self) -> f64 {
        self.down.work()
    }
}
