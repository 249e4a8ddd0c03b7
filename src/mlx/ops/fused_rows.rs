//! Steps between products, row by row, as single operations; see `fused`.

use super::fused::{Norm, NormForm, only, width, wrong_count};
use crate::base::Result;
use crate::mlx::Array;
use crate::mlx::kernels::activation::Activation;
use crate::mlx::kernels::bytes::{floats, floats_mut};
use crate::mlx::kernels::chain::apply;
use crate::mlx::kernels::kernel::{Kernel, Output};
use crate::mlx::kernels::{pointwise, rows, scratch, threads};

/// The function of each number of `x`.
pub fn activated_rows(x: &Array, activation: Activation) -> Result<Array> {
    activation_of(x, activation, false)
}

/// `activation(a) * b` for `x` `[.., 2 * features]` whose rows are `a` and `b` one after the other.
pub fn gated_halves(x: &Array, activation: Activation) -> Result<Array> {
    activation_of(x, activation, true)
}

fn activation_of(x: &Array, activation: Activation, gated: bool) -> Result<Array> {
    let mut shape = x.shape().to_vec();
    if let (true, Some(last)) = (gated, shape.last_mut()) {
        *last /= 2;
    }
    let kernel = Activated { activation, gated, width: width(x) };
    let [result] = apply(kernel, &[x], [Output::float(&shape)])?;
    Ok(result)
}

struct Activated {
    activation: Activation,
    gated: bool,
    /// Of the input.
    width: usize,
}

impl Kernel for Activated {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let out = floats_mut(only(outputs)?)?;
        let [x] = inputs else { return Err(wrong_count()) };
        let (x, half) = (floats(x)?, self.width / 2);
        let (of, width) = if self.gated { (self.width, half) } else { (self.width, self.width) };
        let row = |row: usize, out: &mut [f32]| {
            let x = &x[row * of..][..of];
            match self.gated {
                true => pointwise::activate(self.activation, &x[..half], Some(&x[half..]), out),
                false => pointwise::activate(self.activation, x, None, out),
            }
        };
        Ok(rows::each(&*threads::pool()?, out, width, &row)?)
    }
}

/// `residual + factor * norm(x)`, without what is `None`.
pub fn added(residual: &Array, x: &Array, norm: Option<Norm<'_>>, factor: Option<f32>) -> Result<Array> {
    let mut inputs = vec![residual, x];
    inputs.extend(norm.into_iter().flat_map(Norm::inputs));
    let kernel = Added { norm: norm.map(Norm::form), factor: factor.unwrap_or(1.0), width: width(x) };
    let [result] = apply(kernel, &inputs, [Output::float(x.shape())])?;
    Ok(result)
}

struct Added {
    /// Its gain and bias come last.
    norm: Option<NormForm>,
    factor: f32,
    width: usize,
}

impl Added {
    fn add(&self, residual: &[f32], x: &[f32], out: &mut [f32]) -> Result<()> {
        let row = |row: usize, out: &mut [f32]| {
            let range = row * self.width..(row + 1) * self.width;
            for ((out, residual), x) in out.iter_mut().zip(&residual[range.clone()]).zip(&x[range]) {
                *out = residual + x * self.factor;
            }
        };
        Ok(rows::each(&*threads::pool()?, out, self.width, &row)?)
    }
}

impl Kernel for Added {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let out = floats_mut(only(outputs)?)?;
        let [residual, x, rest @ ..] = inputs else { return Err(wrong_count()) };
        let (residual, x) = (floats(residual)?, floats(x)?);
        let Some(norm) = self.norm else { return self.add(residual, x, out) };
        scratch::with(x.len(), |normal| {
            norm.run(x, self.width, rest, normal)?;
            self.add(residual, normal, out)
        })
    }
}

/// `factor * x` and then, with a cap, `cap * tanh(x / cap)`.
pub fn rescaled(x: &Array, factor: f32, cap: Option<f32>) -> Result<Array> {
    let [result] = apply(Rescaled { factor, cap, width: width(x) }, &[x], [Output::float(x.shape())])?;
    Ok(result)
}

struct Rescaled {
    factor: f32,
    cap: Option<f32>,
    width: usize,
}

impl Kernel for Rescaled {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let out = floats_mut(only(outputs)?)?;
        let [x] = inputs else { return Err(wrong_count()) };
        let x = floats(x)?;
        let row = |row: usize, out: &mut [f32]| {
            for (out, x) in out.iter_mut().zip(&x[row * self.width..]) {
                *out = x * self.factor;
            }
            if let Some(cap) = self.cap {
                pointwise::soft_cap(out, cap);
            }
        };
        Ok(rows::each(&*threads::pool()?, out, self.width, &row)?)
    }
}
