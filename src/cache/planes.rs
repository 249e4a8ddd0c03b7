//! Planes: arrays `[batch, heads, tokens, fields]`, each one part of what tokens are stored as. A token is a column of
//! every plane.

use crate::base::{Error, Result};
use crate::mlx::{Array, prim};

/// Tokens by which planes grow.
pub const STEP: usize = 256;

/// Most columns of a plane, one step less than MLX can count.
pub const MOST: usize = i32::MAX as usize - STEP;

/// Columns `from..to`, as a view.
pub fn columns(plane: &Array, from: usize, to: usize) -> Result<Array> {
    let stop = [plane.dim(0), plane.dim(1), to as i32, plane.dim(3)];
    prim::slice(plane, &[0, 0, from as i32, 0], &stop)
}

/// `plane` with `update` from column `start` on.
pub fn written(plane: &Array, update: &Array, start: usize) -> Result<Array> {
    let stop = [plane.dim(0), plane.dim(1), start as i32 + update.dim(2), plane.dim(3)];
    prim::slice_update(plane, update, &[0, 0, start as i32, 0], &stop)
}

/// The columns of the parts one after another; there is at least one part.
pub fn joined(parts: &[Array]) -> Result<Array> {
    match parts {
        [one] => Ok(one.clone()),
        _ => prim::concatenate(&parts.iter().collect::<Vec<_>>(), 2),
    }
}

/// `tokens` columns of zeros for a plane of the kind of `like`.
pub fn zeros(like: &Array, tokens: usize) -> Result<Array> {
    prim::zeros(&[like.dim(0), like.dim(1), tokens as i32, like.dim(3)], like.dtype())
}

/// Columns that the planes have room for.
pub fn length(planes: &[Array]) -> usize {
    planes.first().map_or(0, |plane| plane.dim(2) as usize)
}

pub fn bytes(planes: &[Array]) -> usize {
    planes.iter().map(Array::byte_size).sum()
}

/// The number of tokens, at least one, in new columns that may follow those in `held`, if there are any. INTERNAL if
/// they do not fit each other or those.
pub fn tokens_of(new: &[Array], held: &[Array]) -> Result<usize> {
    let like = new.first().ok_or_else(|| Error::internal("no planes were given to a cache"))?;
    let together = new.iter().all(|plane| {
        plane.shape().len() == 4
            && (0..3).all(|axis| plane.dim(axis) == like.dim(axis))
            && (0..4).all(|axis| plane.dim(axis) > 0)
    });
    let rows = held.is_empty() || held[0].dim(0) == like.dim(0);
    if !together || !rows || !continues(new, held) {
        return Err(Error::internal(format!("a cache with {held:?} cannot continue with {new:?}")));
    }
    Ok(like.dim(2) as usize)
}

/// Whether planes have the heads, fields and types of those in `held`, if there are any.
pub fn continues(new: &[Array], held: &[Array]) -> bool {
    held.is_empty()
        || held.len() == new.len()
            && held.iter().zip(new).all(|(old, new)| {
                old.dtype() == new.dtype() && [1, 3].iter().all(|&axis| old.dim(axis) == new.dim(axis))
            })
}

/// The number of tokens after `tokens` more; CONTEXT_FULL if that is more than arrays can count.
pub fn end(offset: usize, tokens: usize) -> Result<usize> {
    offset
        .checked_add(tokens)
        .filter(|end| *end <= MOST)
        .ok_or_else(|| Error::context_full(format!("a cache covers at most {MOST} tokens")))
}
