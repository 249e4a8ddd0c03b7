//! Normalisation, gates and sums.

use crate::base::Result;
use crate::mlx::{Array, prim};

/// `x / sqrt(mean(x²) + eps) * gain` along the last axis; the mean in float32.
pub fn rms_norm(x: &Array, gain: &Array, eps: f32) -> Result<Array> {
    prim::rms_norm(x, gain, eps)
}

/// `gate * sigmoid(gate) * up`
pub fn silu_gate(gate: &Array, up: &Array) -> Result<Array> {
    let activated = prim::multiply(gate, &prim::sigmoid(gate)?)?;
    prim::multiply(&activated, up)
}

/// The residual sum.
pub fn add(a: &Array, b: &Array) -> Result<Array> {
    prim::add(a, b)
}
