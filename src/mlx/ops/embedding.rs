//! Rows of the embedding table.

use super::Weight;
use crate::base::{Error, Result};
use crate::mlx::{Array, microscaled, prim};

/// Token ids `[1, tokens]`, checked against the table: MLX itself reads whatever lies behind it.
pub fn token_ids(ids: &[u32], vocabulary: u32) -> Result<Array> {
    if let Some(position) = ids.iter().position(|id| *id >= vocabulary) {
        return Err(Error::invalid_argument(format!(
            "token {} is outside the vocabulary of {vocabulary}",
            ids[position]
        ))
        .field("tokens")
        .position(position as u64));
    }
    let count = i32::try_from(ids.len()).map_err(|_| Error::invalid_argument("too many tokens at once"))?;
    Array::from_slice(ids, &[1, count])
}

/// The rows of `weight` at `ids` `[batch, tokens]`: `[batch, tokens, features]`.
pub fn embedding(ids: &Array, weight: &Weight) -> Result<Array> {
    match weight {
        Weight::Dense { matrix, .. } => prim::take(matrix, ids, 0),
        Weight::Affine { packed, scales, biases, group, bits } => prim::dequantize(
            &prim::take(packed, ids, 0)?,
            &prim::take(scales, ids, 0)?,
            &prim::take(biases, ids, 0)?,
            *group,
            *bits,
        ),
        Weight::Microscaled { packed, scales, mode } => {
            microscaled::values(&prim::take(packed, ids, 0)?, &prim::take(scales, ids, 0)?, *mode)
        }
        Weight::Packed(table) => super::fused::packed_rows(ids, table),
    }
}
