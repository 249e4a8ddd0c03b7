//! Filters on normalised scores `[1, vocabulary]`: what they remove becomes negative infinity.
//! At least one candidate always survives.

use crate::base::Result;
use crate::mlx::{Array, Dtype, prim};

fn minus_infinity(like: &Array) -> Result<Array> {
    prim::astype(&Array::scalar(f32::NEG_INFINITY)?, like.dtype())
}

/// Keeps the fewest likeliest tokens whose mass exceeds `p` of the total, for `p` in (0, 1).
///
/// The total is summed, not assumed to be one: an earlier filter may have taken mass away.
pub fn top_p(logprobs: &Array, p: f32) -> Result<Array> {
    let ascending = prim::sort(logprobs, -1)?;
    let probabilities = prim::exp(&prim::astype(&ascending, Dtype::Float32)?)?;
    let above = prim::cumsum(&probabilities, -1, true, false)?;
    let first = |a: &Array| prim::slice(a, &[0, 0], &[a.dim(0), 1]);
    let total = prim::add(&first(&above)?, &first(&probabilities)?)?;
    let enough = prim::multiply(&Array::scalar(p)?, &total)?;
    let dropped = prim::sum(&prim::greater_equal(&above, &enough)?, -1, true)?;
    let threshold = prim::take_along(&ascending, &dropped, -1)?;
    prim::select(&prim::less(logprobs, &threshold)?, &minus_infinity(logprobs)?, logprobs)
}

/// Keeps tokens at least `p` times as likely as the likeliest, for `p` in (0, 1]. The
/// probabilities are those before the temperature.
pub fn min_p(logprobs: &Array, p: f32) -> Result<Array> {
    let greatest = prim::max(logprobs, -1, true)?;
    let distance = prim::astype(&Array::scalar(f64::from(p).ln() as f32)?, logprobs.dtype())?;
    let threshold = prim::add(&greatest, &distance)?;
    prim::select(&prim::less(logprobs, &threshold)?, &minus_infinity(logprobs)?, logprobs)
}

/// Keeps exactly `k` likeliest tokens, ties in any order, for `k` in 1..vocabulary.
pub fn top_k(logprobs: &Array, k: i32) -> Result<Array> {
    let order = prim::argpartition(&prim::negative(logprobs)?, k - 1, -1)?;
    let removed = prim::slice(&order, &[0, k], &[order.dim(0), order.dim(1)])?;
    prim::put_along(logprobs, &removed, &minus_infinity(logprobs)?, -1)
}
