//! Rotary position embedding.

use super::pointwise::{scaled, split_columns};
use crate::base::{Error, Result};
use crate::mlx::{Array, Dtype, prim};

/// A rotation of the first `dims` elements of each head.
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
    /// Wavelengths (over 2π) of the pairs: float32 `[dims / 2]`; what turns is multiplied by `factor` first.
    Wavelengths { lengths: Array, factor: Option<f64> },
    /// As `Base` with a base that grows with the length of the sequence, once that exceeds `positions`.
    Dynamic { base: f64, factor: f64, positions: f64 },
    /// The first rotation up to that length of the sequence, the second beyond.
    Switch { limit: usize, rotations: Box<[Rope; 2]> },
}

/// The parameters of YaRN. `scale` multiplies what turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    pub factor: f64,
    pub original_max_positions: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    pub scale: f64,
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
        Self::of_wavelengths(dims, traditional, prim::multiply(&factors, &wavelengths(dims, theta)?)?, None)
    }

    /// As `with_factors`, and what turns is multiplied by `scale`.
    fn with_factors_and_scale(dims: i32, theta: f64, factors: &[f64], scale: f64) -> Result<Self> {
        let factors: Vec<f32> = factors.iter().map(|factor| *factor as f32).collect();
        let mut rope = Self::with_factors(dims, false, theta, &factors)?;
        if let Kind::Wavelengths { factor, .. } = &mut rope.kind {
            *factor = Some(scale);
        }
        Ok(rope)
    }

    /// LongRoPE: factors and a scale for sequences of up to `limit` positions, and those for longer ones.
    pub fn long(
        dims: i32,
        theta: f64,
        limit: usize,
        short: (&[f64], f64),
        long: (&[f64], f64),
    ) -> Result<Self> {
        let one = |(factors, scale): (&[f64], f64)| Self::with_factors_and_scale(dims, theta, factors, scale);
        let rotations = Box::new([one(short)?, one(long)?]);
        Ok(Rope { dims, traditional: false, kind: Kind::Switch { limit, rotations } })
    }

    /// NTK-aware scaling by the length of the sequence.
    pub fn dynamic(dims: i32, traditional: bool, theta: f64, factor: f64, positions: f64) -> Self {
        Rope { dims, traditional, kind: Kind::Dynamic { base: theta, factor, positions } }
    }

    /// Pairs as of `dims` elements of which only those of the first `rotated` turn.
    pub fn proportional(dims: i32, rotated: i32, traditional: bool, theta: f64, factor: f64) -> Result<Self> {
        let exponents = prim::divide(
            &prim::arange(0.0, f64::from(rotated), 2.0, Dtype::Float32)?,
            &Array::scalar(dims as f32)?,
        )?;
        let lengths = prim::power(&Array::scalar(theta as f32)?, &exponents)?;
        let lengths = prim::multiply(&Array::scalar(factor as f32)?, &lengths)?;
        let still = (dims - rotated) / 2;
        if still == 0 {
            return Self::of_wavelengths(dims, traditional, lengths, None);
        }
        let still = Array::from_slice(&vec![f32::INFINITY; still as usize], &[still])?;
        Self::of_wavelengths(dims, traditional, prim::concatenate(&[&lengths, &still], 0)?, None)
    }

    /// mlx-lm's operations in mlx-lm's order. Pairs between the two limits are blended (Peng et al. 2023, YaRN).
    pub fn yarn(dims: i32, traditional: bool, theta: f64, scaling: YarnScaling) -> Result<Self> {
        let YarnScaling { factor, original_max_positions, beta_fast, beta_slow, scale } = scaling;
        let scalar = |value: f64| Array::scalar(value as f32);
        // The pair that turns that many times within the original positions.
        let pair = |turns: f64| {
            let turn = original_max_positions / (turns * 2.0 * std::f64::consts::PI);
            (f64::from(dims) * turn.ln()) / (2.0 * theta.ln())
        };
        let low = pair(beta_fast).floor().max(0.0);
        let mut high = pair(beta_slow).ceil().min(f64::from(dims - 1));
        if low == high {
            high += 0.001;
        }
        let index = prim::arange(0.0, f64::from(dims / 2), 1.0, Dtype::Float32)?;
        let ramp = prim::divide(&prim::subtract(&index, &scalar(low)?)?, &scalar(high - low)?)?;
        let one = scalar(1.0)?;
        let kept = prim::subtract(&one, &prim::clip(&ramp, &scalar(0.0)?, &one)?)?;
        let lengths = wavelengths(dims, theta)?;
        let stretched = prim::multiply(&scalar(factor)?, &lengths)?;
        let blend = prim::add(
            &prim::multiply(&stretched, &kept)?,
            &prim::multiply(&lengths, &prim::subtract(&one, &kept)?)?,
        )?;
        let lengths = prim::divide(&prim::multiply(&stretched, &lengths)?, &blend)?;
        let factor = Some(scale).filter(|scale| *scale != 1.0);
        Self::of_wavelengths(dims, traditional, lengths, factor)
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
        Self::of_wavelengths(dims, traditional, prim::select(&medium, &smoothed, &stretched)?, None)
    }

    pub fn is_traditional(&self) -> bool {
        self.traditional
    }

    /// Whether the rotation depends on how long the sequence is.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.kind, Kind::Dynamic { .. } | Kind::Switch { .. })
    }

    /// The rotation of a sequence of that many positions.
    pub fn at_length(&self, length: usize) -> Self {
        match &self.kind {
            Kind::Base { .. } | Kind::Wavelengths { .. } => self.clone(),
            Kind::Switch { limit, rotations } => rotations[usize::from(length > *limit)].clone(),
            Kind::Dynamic { base, factor, positions } => {
                let length = (length as f64).max(*positions);
                let growth = (factor * length / positions) - (factor - 1.0);
                let dims = f64::from(self.dims);
                Rope::plain(self.dims, self.traditional, base * growth.powf(dims / (dims - 2.0)), 1.0)
            }
        }
    }

    /// Radians per position of each of the `dims / 2` pairs, and the factor of what turns.
    pub fn frequencies(&self) -> Result<(Vec<f64>, f64)> {
        match &self.kind {
            Kind::Base { base, scale } => {
                let dims = f64::from(self.dims);
                let pairs = 0..self.dims / 2;
                let power = |pair: i32| f64::from(*base).powf(-2.0 * f64::from(pair) / dims);
                Ok((pairs.map(|pair| f64::from(*scale) * power(pair)).collect(), 1.0))
            }
            Kind::Wavelengths { lengths, factor } => {
                let lengths = lengths.to_vec::<f32>()?;
                let frequencies = lengths.into_iter().map(|length| 1.0 / f64::from(length)).collect();
                Ok((frequencies, factor.unwrap_or(1.0)))
            }
            Kind::Dynamic { .. } | Kind::Switch { .. } => {
                Err(Error::internal("a rotation that depends on the length has no frequencies of its own"))
            }
        }
    }

    fn of_wavelengths(dims: i32, traditional: bool, lengths: Array, factor: Option<f64>) -> Result<Self> {
        lengths.eval()?;
        Ok(Rope { dims, traditional, kind: Kind::Wavelengths { lengths, factor } })
    }
}

/// `theta^(2i/dims)`, float32 `[dims / 2]`.
fn wavelengths(dims: i32, theta: f64) -> Result<Array> {
    let even = prim::arange(0.0, f64::from(dims), 2.0, Dtype::Int32)?;
    let exponents = prim::divide(&even, &Array::scalar(dims as f32)?)?;
    prim::power(&Array::scalar(theta as f32)?, &exponents)
}

/// Rotates `x` `[batch, heads, tokens, head dims]` whose first token stands at position `offset`, as the last positions
/// of a sequence that ends with them.
pub fn rope(x: &Array, rope: &Rope, offset: i32) -> Result<Array> {
    match &rope.kind {
        Kind::Base { base, scale } => {
            prim::rope(x, rope.dims, rope.traditional, Some(*base), *scale, offset, None)
        }
        Kind::Wavelengths { lengths, factor } => {
            let scaled = match factor {
                Some(factor) => &scaled_beginning(x, rope.dims, *factor)?,
                None => x,
            };
            prim::rope(scaled, rope.dims, rope.traditional, None, 1.0, offset, Some(lengths))
        }
        Kind::Dynamic { .. } | Kind::Switch { .. } => {
            let length = (offset + x.dim(2)) as usize;
            self::rope(x, &rope.at_length(length), offset)
        }
    }
}

/// `x` with its first `dims` columns multiplied by `factor`.
fn scaled_beginning(x: &Array, dims: i32, factor: f64) -> Result<Array> {
    let width = x.dim(3);
    if dims == width {
        return scaled(x, factor);
    }
    let [beginning, rest] = split_columns(x, [dims, width - dims])?;
    prim::concatenate(&[&scaled(&beginning, factor)?, &rest], -1)
}
