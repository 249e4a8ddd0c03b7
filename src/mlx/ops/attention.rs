//! Scaled dot-product attention.

use super::pointwise::{scaled, soft_capped};
use super::turboquant::rotated_back;
use crate::base::Result;
use crate::mlx::prim::{self, Mask};
use crate::mlx::{Array, Dtype};

/// `[batch, tokens, heads * dims]` to `[batch, heads, tokens, dims]`.
pub fn split_heads(x: &Array, heads: i32) -> Result<Array> {
    let (batch, tokens) = (x.dim(0), x.dim(1));
    prim::transpose_axes(&prim::reshape(x, &[batch, tokens, heads, -1])?, &[0, 2, 1, 3])
}

/// `[batch, heads, tokens, dims]` to `[batch, tokens, heads * dims]`.
pub fn merge_heads(x: &Array) -> Result<Array> {
    let (batch, tokens) = (x.dim(0), x.dim(2));
    prim::reshape(&prim::transpose_axes(x, &[0, 2, 1, 3])?, &[batch, tokens, -1])
}

/// The keys and values of one layer, as attention reads them: `[batch, kv heads, tokens, dims]`.
#[derive(Clone, Debug)]
pub enum KeysValues {
    Plain {
        keys: Array,
        values: Array,
    },
    /// In affine groups along the head: packed words, scales and biases, `[batch, kv heads, tokens, …]` each.
    Affine {
        keys: [Array; 3],
        values: [Array; 3],
        group: u32,
        bits: u32,
    },
    /// As `Plain`, but the results must be rotated back: values were multiplied by `signs` `[dims]` and went through a
    /// Hadamard transform.
    Rotated {
        keys: Array,
        values: Array,
        signs: Array,
    },
}

impl KeysValues {
    /// Tokens that can be read.
    pub fn tokens(&self) -> i32 {
        match self {
            KeysValues::Plain { keys, .. }
            | KeysValues::Rotated { keys, .. }
            | KeysValues::Affine { keys: [keys, ..], .. } => keys.dim(2),
        }
    }

    /// The same with keys of another type, where they are not quantised.
    pub fn with_keys_as(&self, dtype: Dtype) -> Result<Self> {
        let mut other = self.clone();
        if let KeysValues::Plain { keys, .. } | KeysValues::Rotated { keys, .. } = &mut other {
            *keys = prim::astype(keys, dtype)?;
        }
        Ok(other)
    }

    /// Keys and values as floats of `dtype`, and the signs by which results must be rotated back.
    fn floats(&self, dtype: Dtype) -> Result<(Array, Array, Option<&Array>)> {
        match self {
            KeysValues::Plain { keys, values } => Ok((keys.clone(), values.clone(), None)),
            KeysValues::Rotated { keys, values, signs } => Ok((keys.clone(), values.clone(), Some(signs))),
            KeysValues::Affine { keys, values, group, bits } => {
                let float = |[words, scales, biases]: &[Array; 3]| {
                    prim::astype(&prim::dequantize(words, scales, biases, *group, *bits)?, dtype)
                };
                Ok((float(keys)?, float(values)?, None))
            }
        }
    }

    /// Those of one head.
    pub fn of_head(&self, head: i32) -> Result<Self> {
        let one = |x: &Array| prim::slice(x, &[0, head, 0, 0], &[x.dim(0), head + 1, x.dim(2), x.dim(3)]);
        let three = |[words, scales, biases]: &[Array; 3]| -> Result<[Array; 3]> {
            Ok([one(words)?, one(scales)?, one(biases)?])
        };
        Ok(match self {
            KeysValues::Plain { keys, values } => {
                KeysValues::Plain { keys: one(keys)?, values: one(values)? }
            }
            KeysValues::Affine { keys, values, group, bits } => {
                KeysValues::Affine { keys: three(keys)?, values: three(values)?, group: *group, bits: *bits }
            }
            KeysValues::Rotated { keys, values, signs } => {
                KeysValues::Rotated { keys: one(keys)?, values: one(values)?, signs: signs.clone() }
            }
        })
    }
}

/// Attention of queries `[batch, heads, queries, dims]` over what a cache remembers; `heads` is a multiple of its
/// heads.
pub fn attention(queries: &Array, remembered: &KeysValues, scale: f32, mask: &Mask) -> Result<Array> {
    match remembered {
        KeysValues::Plain { keys, values } => {
            prim::scaled_dot_product_attention(queries, keys, values, scale, mask)
        }
        KeysValues::Affine { keys, values, group, bits } => {
            affine_attention(queries, keys, values, scale, mask, *group, *bits)
        }
        KeysValues::Rotated { keys, values, signs } => {
            let attended = prim::scaled_dot_product_attention(queries, keys, values, scale, mask)?;
            rotated_back(&attended, signs, attended.dtype())
        }
    }
}

/// As `attention` with scores `s` that become `cap * tanh(s / cap)` before their mask, in mlx-lm's order of operations
/// for Gemma 2.
pub fn capped_attention(
    queries: &Array,
    remembered: &KeysValues,
    scale: f64,
    cap: f64,
    mask: &Mask,
) -> Result<Array> {
    let (batch, heads, tokens, dims) = (queries.dim(0), queries.dim(1), queries.dim(2), queries.dim(3));
    let (mut keys, mut values, signs) = remembered.floats(queries.dtype())?;
    let kv_heads = keys.dim(1);
    let repeats = heads / kv_heads;
    let mut queries = scaled(queries, scale)?;
    let mut turned = [0, 1, 3, 2].as_slice();
    if repeats > 1 {
        queries = prim::reshape(&queries, &[batch, kv_heads, repeats, tokens, dims])?;
        keys = prim::expand_dims(&keys, 2)?;
        values = prim::expand_dims(&values, 2)?;
        turned = &[0, 1, 2, 4, 3];
    }
    let scores = prim::matmul(&queries, &prim::transpose_axes(&keys, turned)?)?;
    let scores = masked(soft_capped(&scores, cap)?, mask, keys.dim(-2), tokens, repeats)?;
    let attended = prim::matmul(&prim::softmax(&scores, -1)?, &values)?;
    let attended =
        if repeats > 1 { prim::reshape(&attended, &[batch, heads, tokens, -1])? } else { attended };
    match signs {
        Some(signs) => rotated_back(&attended, signs, attended.dtype()),
        None => Ok(attended),
    }
}

/// Scores `[.., queries, keys]` under a mask.
fn masked(scores: Array, mask: &Mask, keys: i32, tokens: i32, repeats: i32) -> Result<Array> {
    let mask = match mask {
        Mask::None => return Ok(scores),
        Mask::Causal => {
            let index = |from: i32| prim::arange(f64::from(from), f64::from(keys), 1.0, Dtype::Int32);
            let rows = prim::expand_dims(&index(keys - tokens)?, 1)?;
            prim::greater_equal(&rows, &prim::expand_dims(&index(0)?, 0)?)?
        }
        Mask::Array(mask) if repeats > 1 && mask.shape().len() > 3 => prim::expand_dims(mask, -3)?,
        Mask::Array(mask) => mask.clone(),
    };
    if mask.dtype() != Dtype::Bool {
        return prim::add(&scores, &mask);
    }
    let least = prim::astype(&Array::scalar(least_of(scores.dtype()))?, scores.dtype())?;
    prim::select(&mask, &scores, &least)
}

/// Products with the quantised keys and values themselves, in mlx-lm's order: scores, their mask, a softmax with
/// float32 sums, weighted values.
fn affine_attention(
    queries: &Array,
    keys: &[Array; 3],
    values: &[Array; 3],
    scale: f32,
    mask: &Mask,
    group: u32,
    bits: u32,
) -> Result<Array> {
    let (batch, heads, tokens, dims) = (queries.dim(0), queries.dim(1), queries.dim(2), queries.dim(3));
    let kv_heads = keys[0].dim(1);
    let repeats = heads / kv_heads;
    let mut queries = prim::multiply(queries, &prim::astype(&Array::scalar(scale)?, queries.dtype())?)?;
    let mut shared = [keys.clone(), values.clone()];
    if repeats > 1 {
        queries = prim::reshape(&queries, &[batch, kv_heads, repeats, tokens, dims])?;
        for part in shared.iter_mut().flatten() {
            *part = prim::expand_dims(part, -3)?;
        }
    }
    let [[key_words, key_scales, key_biases], [value_words, value_scales, value_biases]] = &shared;
    let scores = prim::quantized_matmul(&queries, key_words, key_scales, key_biases, true, group, bits)?;
    let scores = masked(scores, mask, key_scales.dim(-2), tokens, repeats)?;
    let weights = prim::softmax(&scores, -1)?;
    let attended =
        prim::quantized_matmul(&weights, value_words, value_scales, value_biases, false, group, bits)?;
    if repeats > 1 { prim::reshape(&attended, &[batch, heads, tokens, -1]) } else { Ok(attended) }
}

/// The least finite number of a type.
fn least_of(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Float16 => half::f16::MIN.to_f32(),
        Dtype::Bfloat16 => half::bf16::MIN.to_f32(),
        _ => f32::MIN,
    }
}

/// As `attention`, for one query that sees every key and for results that need not be MLX's to the
/// bit: the heads that share keys are the rows of one product.
pub fn attention_of_one(queries: &Array, keys: &Array, values: &Array, scale: f32) -> Result<Array> {
    let (batch, heads, dims) = (queries.dim(0), queries.dim(1), queries.dim(3));
    let kv_heads = keys.dim(1);
    let scaled = prim::multiply(queries, &prim::astype(&Array::scalar(scale)?, queries.dtype())?)?;
    let rows = prim::reshape(&scaled, &[batch, kv_heads, heads / kv_heads, dims])?;
    let scores = prim::matmul(&rows, &prim::transpose_axes(keys, &[0, 1, 3, 2])?)?;
    let attended = prim::matmul(&prim::softmax(&scores, -1)?, values)?;
    prim::reshape(&attended, &[batch, heads, 1, -1])
}

impl Mask {
    /// The mask for queries at absolute positions `offset..offset + queries` over all keys from
    /// position 0, where a query sees at most the `window` latest keys, its own included.
    pub fn causal(queries: i32, offset: i32, window: Option<i32>) -> Result<Mask> {
        match window {
            None if queries == 1 => Ok(Mask::None),
            None => Ok(Mask::Causal),
            Some(window) if offset == 0 && queries <= window => Ok(Mask::Causal),
            Some(window) => {
                let end = f64::from(offset) + f64::from(queries);
                let keys = prim::expand_dims(&prim::arange(0.0, end, 1.0, Dtype::Int32)?, 0)?;
                let rows = prim::expand_dims(&prim::arange(f64::from(offset), end, 1.0, Dtype::Int32)?, 1)?;
                let window = Array::from_slice(&[window], &[])?;
                let behind = prim::greater_equal(&rows, &keys)?;
                let near = prim::less(&rows, &prim::add(&keys, &window)?)?;
                Ok(Mask::Array(prim::logical_and(&behind, &near)?))
            }
        }
    }
}
