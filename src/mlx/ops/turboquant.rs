//! TurboQuant with MLX's own operations: where MLX computes attention, and for files. The format is in
//! `mlx/turboquant`.
//!
//! Keys and values are `[batch, kv heads, tokens, dims]`. Numbers are packed along the dimensions as a flat bit stream,
//! little-endian: number i has the bits from i · b up to (i + 1) · b.

use crate::base::{Error, Result};
use crate::mlx::turboquant::{EPSILON, GROUP, boundaries, centroids, negative, supported};
use crate::mlx::{Array, Dtype, prim};

/// Keys as they are stored.
#[derive(Clone, Debug)]
pub struct EncodedKeys {
    /// int8 for 8 bits, else uint8: `[batch, kv heads, tokens, dims · bits / 8]`.
    pub numbers: Array,
    /// float16: `[batch, kv heads, tokens, dims / 32]`.
    pub scales: Array,
    /// float16: as `scales`. Infinite for a group of equal numbers that are not 0, which is then read as NaN: so the
    /// format has it.
    pub zeros: Array,
}

/// Values as they are stored.
#[derive(Clone, Debug)]
pub struct EncodedValues {
    /// uint8: `[batch, kv heads, tokens, dims · bits / 8]`.
    pub numbers: Array,
    /// float16: `[batch, kv heads, tokens, dims / 32]`.
    pub scales: Array,
}

/// The codec for keys and values of given bits and sizes.
#[derive(Clone, Debug)]
pub struct TurboQuant {
    key_bits: u32,
    value_bits: u32,
    /// Of the rotation of values: float32 1 or -1, `[value dims]`.
    signs: Array,
    /// float32, `[2^bits]` and one fewer.
    centroids: Array,
    boundaries: Array,
}

impl TurboQuant {
    /// Dimensions that share a scale.
    pub const GROUP: usize = GROUP;

    /// UNSUPPORTED when the format has no such bits or dimensions of a head.
    pub fn new(key_bits: u32, value_bits: u32, key_dims: usize, value_dims: usize) -> Result<Self> {
        supported(key_bits, value_bits, key_dims, value_dims).map_err(Error::unsupported)?;
        let missing = || Error::internal("a table of TurboQuant is missing");
        let negative = negative(value_dims).ok_or_else(missing)?;
        let sign = |i: usize| if negative[i / 64] >> (i % 64) & 1 == 1 { -1.0 } else { 1.0 };
        let signs: Vec<f32> = (0..value_dims).map(sign).collect();
        let row = |numbers: &[f32]| Array::from_slice(numbers, &[numbers.len() as i32]);
        Ok(TurboQuant {
            key_bits,
            value_bits,
            signs: row(&signs)?,
            centroids: row(centroids(value_bits).ok_or_else(missing)?)?,
            boundaries: row(boundaries(value_bits).ok_or_else(missing)?)?,
        })
    }

    /// Of the rotation of values: float32 1 or -1, `[value dims]`.
    pub fn signs(&self) -> &Array {
        &self.signs
    }

    /// Encodes keys of any float type.
    pub fn encode_keys(&self, keys: &Array) -> Result<EncodedKeys> {
        let signed = self.key_bits == 8;
        let largest = if signed { 127.0 } else { ((1_u32 << self.key_bits) - 1) as f32 };
        let x = grouped(&prim::astype(keys, Dtype::Float32)?)?;
        let (low, high) = (prim::min(&x, -1, true)?, prim::max(&x, -1, true)?);
        let steps = Array::scalar(if signed { 2.0 * largest } else { largest })?;
        let scale = prim::divide(&prim::subtract(&high, &low)?, &steps)?;
        let divisor = prim::add(&scale, &Array::scalar(EPSILON)?)?;
        let zero = if signed {
            let twice = prim::multiply(&Array::scalar(2.0)?, &divisor)?;
            prim::divide(&prim::add(&high, &low)?, &twice)?
        } else {
            prim::divide(&low, &divisor)?
        };
        let zero = prim::round(&zero)?;
        let numbers = prim::round(&prim::subtract(&prim::divide(&x, &divisor)?, &zero)?)?;
        let least = Array::scalar(if signed { -largest } else { 0.0 })?;
        let numbers = prim::reshape(&prim::clip(&numbers, &least, &Array::scalar(largest)?)?, keys.shape())?;
        let numbers = if signed {
            prim::astype(&numbers, Dtype::Int8)?
        } else {
            pack(&prim::astype(&numbers, Dtype::Uint8)?, self.key_bits)?
        };
        Ok(EncodedKeys { numbers, scales: halves(&scale)?, zeros: halves(&zero)? })
    }

    /// The keys that were encoded, in `dtype`.
    pub fn decode_keys(&self, keys: &EncodedKeys, dtype: Dtype) -> Result<Array> {
        let numbers =
            if self.key_bits == 8 { keys.numbers.clone() } else { unpack(&keys.numbers, self.key_bits)? };
        let sum = prim::add(&grouped(&prim::astype(&numbers, Dtype::Float32)?)?, &of_groups(&keys.zeros)?)?;
        let x = prim::multiply(&sum, &of_groups(&keys.scales)?)?;
        prim::astype(&prim::reshape(&x, numbers.shape())?, dtype)
    }

    /// Encodes values of any float type.
    pub fn encode_values(&self, values: &Array) -> Result<EncodedValues> {
        let signed = prim::multiply(&prim::astype(values, Dtype::Float32)?, &self.signs)?;
        let y = grouped(&prim::hadamard_transform(&signed)?)?;
        let scale = prim::sqrt(&prim::mean(&prim::square(&y)?, -1, true)?)?;
        let t = prim::divide(&y, &prim::add(&scale, &Array::scalar(EPSILON)?)?)?;
        let numbers = prim::reshape(&prim::count_below(&self.boundaries, &t)?, values.shape())?;
        let numbers = pack(&prim::astype(&numbers, Dtype::Uint8)?, self.value_bits)?;
        Ok(EncodedValues { numbers, scales: halves(&scale)? })
    }

    /// The values that were encoded, in `dtype`.
    pub fn decode_values_eager(&self, values: &EncodedValues, dtype: Dtype) -> Result<Array> {
        self.rotate_back(&self.decode_values_deferred(values, Dtype::Float32)?, dtype)
    }

    /// The same in the rotated space. Attention over them gives a result in that space, for `rotate_back`.
    pub fn decode_values_deferred(&self, values: &EncodedValues, dtype: Dtype) -> Result<Array> {
        let numbers = prim::astype(&unpack(&values.numbers, self.value_bits)?, Dtype::Uint32)?;
        let y = prim::multiply(
            &grouped(&prim::take(&self.centroids, &numbers, 0)?)?,
            &of_groups(&values.scales)?,
        )?;
        prim::astype(&prim::reshape(&y, numbers.shape())?, dtype)
    }

    /// Takes `[…, value dims]` out of the rotated space: computed in float32, given in `dtype`.
    pub fn rotate_back(&self, rotated: &Array, dtype: Dtype) -> Result<Array> {
        rotated_back(rotated, &self.signs, dtype)
    }
}

/// Takes `[…, dims]` out of the space into which a Hadamard transform rotates numbers times `signs`: computed in
/// float32, given in `dtype`.
pub(super) fn rotated_back(rotated: &Array, signs: &Array, dtype: Dtype) -> Result<Array> {
    let turned = prim::hadamard_transform(&prim::astype(rotated, Dtype::Float32)?)?;
    prim::astype(&prim::multiply(&turned, signs)?, dtype)
}

/// `a` with its last axis in groups: `[…, dims / 32, 32]`.
fn grouped(a: &Array) -> Result<Array> {
    split(a, GROUP as i32)
}

/// `a` with its last axis cut into rows of `width`.
fn split(a: &Array, width: i32) -> Result<Array> {
    let mut shape = a.shape().to_vec();
    let last = shape.last_mut().ok_or_else(|| Error::internal("a scalar has no last axis"))?;
    *last /= width;
    shape.push(width);
    prim::reshape(a, &shape)
}

/// `a` with its last two axes as one.
fn joined(a: &Array) -> Result<Array> {
    let mut shape = a.shape().to_vec();
    let width = shape.pop().unwrap_or(1);
    let last = shape.last_mut().ok_or_else(|| Error::internal("a row has no axis before the last"))?;
    *last *= width;
    prim::reshape(a, &shape)
}

/// What is stored of groups `[…, dims / 32, 1]`.
fn halves(groups: &Array) -> Result<Array> {
    joined(&prim::astype(groups, Dtype::Float16)?)
}

/// The inverse of `halves`, in float32.
fn of_groups(halves: &Array) -> Result<Array> {
    prim::expand_dims(&prim::astype(halves, Dtype::Float32)?, -1)
}

/// `step` times 0, 1, … up to `count`: uint64.
fn multiples(step: u32, count: u32) -> Result<Array> {
    let numbers: Vec<u64> = (0..count).map(|i| u64::from(step * i)).collect();
    Array::from_slice(&numbers, &[count as i32])
}

/// Packs uint8 numbers of `bits` bits along the last axis, a multiple of 8.
fn pack(numbers: &Array, bits: u32) -> Result<Array> {
    if bits == 8 {
        return Ok(numbers.clone());
    }
    regrouped(numbers, 8, bits, bits, 8)
}

/// The inverse of `pack`.
fn unpack(packed: &Array, bits: u32) -> Result<Array> {
    if bits == 8 {
        return Ok(packed.clone());
    }
    regrouped(packed, bits, 8, 8, bits)
}

/// Makes one number of each `count` of `bits` bits, and cuts it into `new_count` of `new_bits`.
fn regrouped(numbers: &Array, count: u32, bits: u32, new_count: u32, new_bits: u32) -> Result<Array> {
    let rows = split(&prim::astype(numbers, Dtype::Uint64)?, count as i32)?;
    let whole = prim::sum(&prim::left_shift(&rows, &multiples(bits, count)?)?, -1, true)?;
    let parts = prim::right_shift(&whole, &multiples(new_bits, new_count)?)?;
    let mask = Array::from_slice(&[(1_u64 << new_bits) - 1], &[1])?;
    joined(&prim::astype(&prim::bitwise_and(&parts, &mask)?, Dtype::Uint8)?)
}

#[cfg(test)]
#[path = "turboquant_tests.rs"]
mod tests;
