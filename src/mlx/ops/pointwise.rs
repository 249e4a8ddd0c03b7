//! Normalisation, activations, gates, factors and sums, in mlx-lm's order of operations.
//!
//! A number beside an array is rounded to float32 and then to the array's type, as in Python.

use crate::base::Result;
use crate::mlx::kernels::activation::Activation;
use crate::mlx::{Array, Dtype, prim};

/// A number as an array of the type of `x`.
fn number(value: f64, x: &Array) -> Result<Array> {
    let scalar = Array::scalar(value as f32)?;
    if x.dtype() == Dtype::Float32 { Ok(scalar) } else { prim::astype(&scalar, x.dtype()) }
}

/// `x / sqrt(mean(x²) + eps) * gain` along the last axis; the mean in float32.
pub fn rms_norm(x: &Array, gain: &Array, eps: f32) -> Result<Array> {
    prim::rms_norm(x, gain, eps)
}

/// `(x - mean(x)) / sqrt(var(x) + eps) * gain + bias` along the last axis; the sums in float32.
pub fn layer_norm(x: &Array, gain: Option<&Array>, bias: Option<&Array>, eps: f32) -> Result<Array> {
    prim::layer_norm(x, gain, bias, eps)
}

/// One more than each number.
pub fn one_more(x: &Array) -> Result<Array> {
    prim::add(&number(1.0, x)?, x)
}

/// The function of each number.
pub fn activated(x: &Array, activation: Activation) -> Result<Array> {
    let times = |factor: f64, x: &Array| prim::multiply(x, &number(factor, x)?);
    match activation {
        Activation::Silu => prim::multiply(x, &prim::sigmoid(x)?),
        Activation::Gelu => {
            let share = prim::divide(x, &number(std::f64::consts::SQRT_2, x)?)?;
            let twice = prim::multiply(x, &prim::add(&number(1.0, x)?, &prim::erf(&share)?)?)?;
            prim::divide(&twice, &number(2.0, x)?)
        }
        Activation::GeluTanh => {
            let cubic = times(0.044715, &prim::power(x, &number(3.0, x)?)?)?;
            let inner = times((2.0 / std::f64::consts::PI).sqrt(), &prim::add(x, &cubic)?)?;
            let outer = prim::add(&number(1.0, x)?, &prim::tanh(&inner)?)?;
            prim::multiply(&times(0.5, x)?, &outer)
        }
        Activation::Relu2 => prim::square(&prim::maximum(x, &number(0.0, x)?)?),
    }
}

/// `activation(gate) * up`
pub fn gated(gate: &Array, up: &Array, activation: Activation) -> Result<Array> {
    prim::multiply(&activated(gate, activation)?, up)
}

/// The residual sum.
pub fn add(a: &Array, b: &Array) -> Result<Array> {
    prim::add(a, b)
}

/// The residual sum, kept below the infinity of float16 where that is the type.
pub fn add_clipped(a: &Array, b: &Array) -> Result<Array> {
    if a.dtype() != Dtype::Float16 {
        return prim::add(a, b);
    }
    let most = half::f16::MAX.to_f32();
    let wide = |x: &Array| prim::astype(x, Dtype::Float32);
    let sum = prim::add(&wide(a)?, &wide(b)?)?;
    prim::astype(&prim::clip(&sum, &Array::scalar(-most)?, &Array::scalar(most)?)?, Dtype::Float16)
}

/// `x * factor`
pub fn scaled(x: &Array, factor: f64) -> Result<Array> {
    prim::multiply(x, &number(factor, x)?)
}

/// As `scaled` with a factor that is rounded to bfloat16 first.
pub fn scaled_by_bfloat16(x: &Array, factor: f64) -> Result<Array> {
    let factor = prim::astype(&Array::scalar(factor as f32)?, Dtype::Bfloat16)?;
    prim::multiply(x, &prim::astype(&factor, x.dtype())?)
}

/// `x / divisor`
pub fn divided(x: &Array, divisor: f64) -> Result<Array> {
    prim::divide(x, &number(divisor, x)?)
}

/// `cap * tanh(x / cap)`
pub fn soft_capped(x: &Array, cap: f64) -> Result<Array> {
    scaled(&prim::tanh(&divided(x, cap)?)?, cap)
}

/// The columns of `x` in parts of these widths.
pub fn split_columns<const N: usize>(x: &Array, widths: [i32; N]) -> Result<[Array; N]> {
    let axes = x.shape().len();
    let mut from = 0;
    let mut parts = Vec::with_capacity(N);
    for width in widths {
        let (mut start, mut stop) = (vec![0; axes], x.shape().to_vec());
        start[axes - 1] = from;
        stop[axes - 1] = from + width;
        parts.push(prim::slice(x, &start, &stop)?);
        from += width;
    }
    parts.try_into().map_err(|_| crate::base::Error::internal("another number of parts than asked for"))
}
