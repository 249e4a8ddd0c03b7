//! The feed-forward half of a layer, up to its last product.

use super::norm::Input;
use crate::base::Result;
use crate::mlx::Array;
use crate::mlx::ops::{self, Activation, Linear};
use crate::model::graph::Pace;
use crate::model::tensors::Arithmetic;

#[derive(Debug)]
pub struct Mlp {
    pub form: MlpWeights,
    pub activation: Activation,
    pub down: Linear,
    pub arithmetic: Arithmetic,
}

#[derive(Debug)]
pub enum MlpWeights {
    /// `activation(gate(x)) * up(x)`
    Gated { gate: Linear, up: Linear },
    /// The same, with the rows of gate and up in one matrix.
    GatedJoined(Linear),
    /// `activation(up(x))`
    Plain(Linear),
}

impl Mlp {
    /// What `down` takes.
    pub fn inner(&self, input: Input<'_>, pace: &mut dyn Pace) -> Result<Array> {
        if self.arithmetic == Arithmetic::Kernels { self.fused(input, pace) } else { self.exact(input, pace) }
    }

    fn fused(&self, input: Input<'_>, pace: &mut dyn Pace) -> Result<Array> {
        let Input { x, .. } = input;
        let (inner, work) = match &self.form {
            MlpWeights::Gated { gate, up } => {
                let inner = ops::gated_products(x, input.parameters(), gate, up, self.activation)?;
                (inner, gate.work() + up.work())
            }
            MlpWeights::GatedJoined(both) => {
                let product = ops::joined_products(x, input.parameters(), &[both])?;
                (ops::gated_halves(&product, self.activation)?, both.work())
            }
            MlpWeights::Plain(up) => {
                let product = ops::joined_products(x, input.parameters(), &[up])?;
                (ops::activated_rows(&product, self.activation)?, up.work())
            }
        };
        pace.reached(f64::from(x.dim(1)) * work, &[x, &inner])?;
        Ok(inner)
    }

    fn exact(&self, input: Input<'_>, pace: &mut dyn Pace) -> Result<Array> {
        let x = &input.normalized()?;
        let tokens = f64::from(x.dim(1));
        let inner = match &self.form {
            MlpWeights::Gated { gate, up } => {
                let gated = gate.apply(x)?;
                pace.reached(tokens * gate.work(), &[&gated])?;
                let factor = up.apply(x)?;
                pace.reached(tokens * up.work(), &[&factor])?;
                ops::gated(&gated, &factor, self.activation)?
            }
            MlpWeights::GatedJoined(both) => {
                let product = both.apply(x)?;
                pace.reached(tokens * both.work(), &[&product])?;
                let half = both.weight.outputs() / 2;
                let [gate, up] = ops::split_columns(&product, [half, half])?;
                ops::gated(&gate, &up, self.activation)?
            }
            MlpWeights::Plain(up) => {
                let product = up.apply(x)?;
                pace.reached(tokens * up.work(), &[&product])?;
                ops::activated(&product, self.activation)?
            }
        };
        let pointwise = f64::from(self.down.weight.inputs()) * super::attention::TRANSCENDENTAL;
        pace.reached(tokens * pointwise, &[&inner])?;
        Ok(inner)
    }
}
