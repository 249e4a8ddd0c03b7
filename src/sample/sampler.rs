//! One draw: normalise, filter, scale, choose.

use super::filters::{min_p, top_k, top_p};
use crate::base::Result;
use crate::base::options::Sampling;
use crate::mlx::{Array, Dtype, ops, prim};

/// At and below this temperature the likeliest token is certain within float32, and scaling by
/// its inverse would only leave the range of the numbers.
const COLDEST: f32 = 1e-6;

/// The choice among a row of scores, not yet computed.
#[derive(Debug)]
pub struct Sampled {
    /// uint32 `[1]`
    pub token: Array,
    /// Normalised scores before temperature and filters, `[1, vocabulary]`.
    pub logprobs: Array,
    /// One float32, finite if there was a choice: no score is NaN or ∞, and some are above -∞.
    pub sound: Array,
}

/// The seed of the draw at `step`: every step has its own key, so a draw depends on nothing but
/// the request's seed and its position.
pub fn step_seed(seed: u64, step: u64) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    seed ^ step.wrapping_add(1).wrapping_mul(GOLDEN)
}

/// How scores become probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// By MLX's operations in mlx-lm's order, in the type of the scores.
    Exact,
    /// By our kernels; the scores are float32.
    Kernels,
}

/// Chooses from `scores` `[1, vocabulary]`: top-p, then min-p, then top-k, then a draw at the
/// temperature. Without a temperature: the likeliest of the normalised scores in their own
/// precision, the lowest id among equals.
pub fn sample(scores: &Array, sampling: &Sampling, step: u64, precision: Precision) -> Result<Sampled> {
    let kernels = precision == Precision::Kernels;
    let [logprobs, sum] =
        if kernels { ops::normalized_scores(scores)? } else { ops::log_probabilities(scores)? };
    if sampling.temperature > COLDEST {
        let token = draw(filtered(logprobs.clone(), sampling)?, sampling, step)?;
        return Ok(Sampled { token, logprobs, sound: prim::astype(&sum, Dtype::Float32)? });
    }
    if kernels {
        // Scores that are equal once they are normalised may differ before; and nobody may ask for those.
        let [token, sound] = ops::best(scores)?;
        return Ok(Sampled { token, logprobs, sound });
    }
    Ok(Sampled { token: ops::argmax(&logprobs)?, logprobs, sound: prim::astype(&sum, Dtype::Float32)? })
}

fn filtered(mut logprobs: Array, sampling: &Sampling) -> Result<Array> {
    if sampling.top_p > 0.0 && sampling.top_p < 1.0 {
        logprobs = top_p(&logprobs, sampling.top_p)?;
    }
    if sampling.min_p > 0.0 {
        logprobs = min_p(&logprobs, sampling.min_p)?;
    }
    let vocabulary = logprobs.dim(-1);
    if sampling.top_k > 0 && i64::from(sampling.top_k) < i64::from(vocabulary) {
        logprobs = top_k(&logprobs, sampling.top_k as i32)?;
    }
    Ok(logprobs)
}

fn draw(mut logprobs: Array, sampling: &Sampling, step: u64) -> Result<Array> {
    // Low temperatures stretch scores beyond the range of float16.
    if logprobs.dtype() == Dtype::Float16 {
        logprobs = prim::astype(&logprobs, Dtype::Float32)?;
    }
    let inverse =
        prim::astype(&Array::scalar((1.0 / f64::from(sampling.temperature)) as f32)?, logprobs.dtype())?;
    let key = prim::random_key(step_seed(sampling.seed, step))?;
    prim::random_categorical(&prim::multiply(&logprobs, &inverse)?, -1, &key)
}
