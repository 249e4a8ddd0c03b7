//! Scaled dot-product attention.

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

/// Attention of queries `[batch, heads, queries, dims]` over keys and values
/// `[batch, kv heads, keys, dims]`; `heads` is a multiple of `kv heads`.
pub fn attention(queries: &Array, keys: &Array, values: &Array, scale: f32, mask: &Mask) -> Result<Array> {
    prim::scaled_dot_product_attention(queries, keys, values, scale, mask)
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
