//! Rotary position embedding.

use crate::base::{Error, Result};
use crate::mlx::{Array, Dtype, prim};

/// The frequencies of a rotation.
#[derive(Clone, Debug)]
pub struct Rope {
    dims: i32,
    traditional: bool,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Position times `scale`, frequencies `base^(-2i/dims)`.
    Base { base: f32, scale: f32 },
    /// Wavelengths (over 2π) of the pairs: float32 `[dims / 2]`.
    Wavelengths(Array),
}

/// Llama 3's stretching of the long wavelengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_positions: f64,
}

impl Rope {
    pub fn plain(dims: i32, traditional: bool, theta: f64, scale: f64) -> Self {
        Rope { dims, traditional, kind: Kind::Base { base: theta as f32, scale: scale as f32 } }
    }

    /// The pairs' wavelengths `theta^(2i/dims)` multiplied by `factors`.
    pub fn with_factors(dims: i32, traditional: bool, theta: f64, factors: &[f32]) -> Result<Self> {
        if factors.len() * 2 != dims as usize {
            return Err(Error::internal("the RoPE factors do not fit the head"));
        }
        let factors = Array::from_slice(factors, &[dims / 2])?;
        Self::of_wavelengths(dims, traditional, prim::multiply(&wavelengths(dims, theta)?, &factors)?)
    }

    /// mlx-lm's operations in mlx-lm's order, so that the wavelengths are the same to the bit.
    pub fn llama3(dims: i32, traditional: bool, theta: f64, scaling: Llama3Scaling) -> Result<Self> {
        let scalar = |value: f64| Array::scalar(value as f32);
        let Llama3Scaling { factor, low_freq_factor, high_freq_factor, original_max_positions } = scaling;
        let longest = scalar(original_max_positions / low_freq_factor)?;
        let shortest = scalar(original_max_positions / high_freq_factor)?;
        let one = scalar(1.0)?;
        let factor = scalar(factor)?;

        let freqs = wavelengths(dims, theta)?;
        let lengths = prim::multiply(&scalar(2.0 * std::f64::consts::PI)?, &freqs)?;
        let stretched =
            prim::select(&prim::greater(&lengths, &longest)?, &prim::multiply(&freqs, &factor)?, &freqs)?;
        let medium =
            prim::logical_and(&prim::greater(&lengths, &shortest)?, &prim::less(&lengths, &longest)?)?;
        let smooth = prim::divide(
            &prim::subtract(
                &prim::divide(&scalar(original_max_positions)?, &lengths)?,
                &scalar(low_freq_factor)?,
            )?,
            &scalar(high_freq_factor - low_freq_factor)?,
        )?;
        let blend = prim::add(&prim::divide(&prim::subtract(&one, &smooth)?, &factor)?, &smooth)?;
        let smoothed = prim::divide(&stretched, &blend)?;
        Self::of_wavelengths(dims, traditional, prim::select(&medium, &smoothed, &stretched)?)
    }

    pub fn is_traditional(&self) -> bool {
        self.traditional
    }

    /// Radians per position of each of the `dims / 2` pairs.
    pub fn frequencies(&self) -> Result<Vec<f64>> {
        match &self.kind {
            Kind::Base { base, scale } => {
                let dims = f64::from(self.dims);
                let pairs = 0..self.dims / 2;
                let power = |pair: i32| f64::from(*base).powf(-2.0 * f64::from(pair) / dims);
                Ok(pairs.map(|pair| f64::from(*scale) * power(pair)).collect())
            }
            Kind::Wavelengths(wavelengths) => {
                Ok(wavelengths.to_vec::<f32>()?.into_iter().map(|length| 1.0 / f64::from(length)).collect())
            }
        }
    }

    fn of_wavelengths(dims: i32, traditional: bool, wavelengths: Array) -> Result<Self> {
        wavelengths.eval()?;
        Ok(Rope { dims, traditional, kind: Kind::Wavelengths(wavelengths) })
    }
}

/// `theta^(2i/dims)`, float32 `[dims / 2]`.
fn wavelengths(dims: i32, theta: f64) -> Result<Array> {
    let even = prim::arange(0.0, f64::from(dims), 2.0, Dtype::Int32)?;
    let exponents = prim::divide(&even, &Array::scalar(dims as f32)?)?;
    prim::power(&Array::scalar(theta as f32)?, &exponents)
}

/// Rotates `x` `[batch, heads, tokens, dims]` whose first token stands at position `offset`.
pub fn rope(x: &Array, rope: &Rope, offset: i32) -> Result<Array> {
    match &rope.kind {
        Kind::Base { base, scale } => {
            prim::rope(x, rope.dims, rope.traditional, Some(*base), *scale, offset, None)
        }
        Kind::Wavelengths(wavelengths) => {
            prim::rope(x, rope.dims, rope.traditional, None, 1.0, offset, Some(wavelengths))
        }
    }
}
