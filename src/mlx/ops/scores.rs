//! From hidden values to scores and to the choice among them.

use crate::base::Result;
use crate::mlx::{Array, prim};

/// The last token's row: `[batch, tokens, n]` to `[batch, 1, n]`.
pub fn last_row(x: &Array) -> Result<Array> {
    let (batch, tokens, width) = (x.dim(0), x.dim(1), x.dim(2));
    if tokens == 1 {
        return Ok(x.clone());
    }
    prim::slice(x, &[0, tokens - 1, 0], &[batch, tokens, width])
}

/// `log(sum(exp(scores)))` along the last axis, which is kept.
pub fn logsumexp(scores: &Array) -> Result<Array> {
    prim::logsumexp(scores, -1, true)
}

/// Normalised scores, and what was taken from them: a number that is finite unless a score is NaN or ∞, or all are -∞.
pub fn log_probabilities(scores: &Array) -> Result<[Array; 2]> {
    let sum = logsumexp(scores)?;
    Ok([prim::subtract(scores, &sum)?, sum])
}

/// The lowest index of the greatest score along the last axis: uint32.
pub fn argmax(scores: &Array) -> Result<Array> {
    prim::argmax(scores, -1, false)
}
