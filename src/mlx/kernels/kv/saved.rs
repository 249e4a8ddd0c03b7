//! Segments as they are saved: the tokens that are held as one slab of keys and one of values, however large the
//! segments are.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::blocks::Pools;
use super::segments::Segments;
use crate::base::{Error, Result};
use crate::mlx::kernels::attention::{self, GROUP, KvShape, NewTokens};

/// Keys and values of consecutive tokens but for a range.
///
/// Each slab holds, for each head, sixteen positions after the other, in the order of [`KvShape`]. Positions behind the
/// last token hold zeros, as the form stores them: equal tokens give equal bytes.
#[derive(Clone, Debug)]
pub struct SavedTokens<'a> {
    /// The tokens that were given up: multiples of 16.
    pub absent: Range<usize>,
    /// `[kv heads, sixteens, bytes of a head's sixteen keys]`
    pub keys: Cow<'a, [u8]>,
    /// `[kv heads, sixteens, bytes of a head's sixteen values]`
    pub values: Cow<'a, [u8]>,
}

/// Consecutive sixteens of a segment in a slab.
struct Run {
    segment: usize,
    /// The first one's number in the slab.
    at: usize,
    sixteens: usize,
}

/// What is held of `tokens` tokens, segment by segment.
fn runs(tokens: usize, segment: usize, absent: &Range<usize>) -> Vec<Run> {
    let mut at = 0;
    let held = (0..tokens.div_ceil(segment)).filter(|index| !absent.contains(&(index * segment)));
    let run = held.map(|index| {
        let sixteens = segment.min(tokens - index * segment).div_ceil(GROUP);
        at += sixteens;
        Run { segment: index, at: at - sixteens, sixteens }
    });
    run.collect()
}

/// Copies `bytes` bytes of each head from one slab to another, from byte `from_at` of the head to byte `to_at`.
fn copy_heads(heads: usize, from: &[u8], from_at: usize, to: &mut [u8], to_at: usize, bytes: usize) {
    if bytes == 0 {
        return;
    }
    let (from_head, to_head) = (from.len() / heads, to.len() / heads);
    for (from, to) in from.chunks_exact(from_head).zip(to.chunks_exact_mut(to_head)) {
        to[to_at..][..bytes].copy_from_slice(&from[from_at..][..bytes]);
    }
}

impl Segments {
    /// The first `tokens` tokens. Waits for what is being written.
    pub fn saved(&self, tokens: usize) -> Result<SavedTokens<'static>> {
        if let Some(written) = self.written() {
            written.eval()?;
        }
        let (shape, segment) = (*self.shape(), self.segment_tokens());
        let absent = self.absent();
        let runs = runs(tokens, segment, &absent);
        let sixteens: usize = runs.iter().map(|run| run.sixteens).sum();
        let mut keys = vec![0; shape.key_bytes(sixteens * GROUP)];
        let mut values = vec![0; shape.value_bytes(sixteens * GROUP)];
        let (key_bytes, value_bytes) = bytes_of_sixteen(&shape);
        for run in runs {
            let Some(block) = self.block(run.segment) else {
                return Err(Error::internal("tokens were given up that others follow"));
            };
            // SAFETY: nothing that has been dispatched writes the block, for this value has waited; the next operation
            // on it comes after this call.
            let memory = unsafe { block.bytes() };
            let (from_keys, from_values) = memory.split_at(shape.key_bytes(segment));
            let Run { at, sixteens, .. } = run;
            copy_heads(shape.kv_heads, from_keys, 0, &mut keys, at * key_bytes, sixteens * key_bytes);
            copy_heads(shape.kv_heads, from_values, 0, &mut values, at * value_bytes, sixteens * value_bytes);
        }
        blank(&shape, &mut keys, &mut values, sixteens * GROUP, tokens.next_multiple_of(GROUP) - tokens);
        Ok(SavedTokens { absent, keys: Cow::Owned(keys), values: Cow::Owned(values) })
    }

    /// Segments of `segment` tokens each that hold the first `tokens` tokens. OUT_OF_MEMORY beyond the limit of the
    /// pools; INTERNAL unless the range that is absent falls into whole segments before the end, and the slabs have the
    /// bytes of what is left.
    pub fn restored(
        shape: KvShape,
        segment: usize,
        pools: Arc<Pools>,
        tokens: usize,
        saved: &SavedTokens<'_>,
    ) -> Result<Self> {
        let mut restored = Segments::new(shape, segment, pools);
        let segment = restored.segment_tokens();
        let SavedTokens { absent, keys, values } = saved;
        let runs = runs(tokens, segment, absent);
        let positions = runs.iter().map(|run| run.sixteens).sum::<usize>() * GROUP;
        let whole = absent.is_empty()
            || absent.end <= tokens
                && [absent.start, absent.end].iter().all(|end| end.is_multiple_of(segment));
        if !whole || [keys.len(), values.len()] != [shape.key_bytes(positions), shape.value_bytes(positions)]
        {
            return Err(Error::internal(format!("{tokens} tokens do not have these bytes")));
        }
        let (key_bytes, value_bytes) = bytes_of_sixteen(&shape);
        for run in runs {
            let block = restored.add_block(run.segment)?;
            // SAFETY: the block is known to nobody else yet.
            let memory = unsafe { block.bytes_mut() };
            let (to_keys, to_values) = memory.split_at_mut(shape.key_bytes(segment));
            let Run { at, sixteens, .. } = run;
            copy_heads(shape.kv_heads, keys, at * key_bytes, to_keys, 0, sixteens * key_bytes);
            copy_heads(shape.kv_heads, values, at * value_bytes, to_values, 0, sixteens * value_bytes);
        }
        restored.resize(tokens.div_ceil(segment));
        Ok(restored)
    }
}

/// Bytes of a head's sixteen keys, and of its values.
fn bytes_of_sixteen(shape: &KvShape) -> (usize, usize) {
    (shape.key_bytes(GROUP) / shape.kv_heads, shape.value_bytes(GROUP) / shape.kv_heads)
}

/// Stores zeros in the last `count` of `positions` positions.
fn blank(shape: &KvShape, keys: &mut [u8], values: &mut [u8], positions: usize, count: usize) {
    if positions == 0 {
        return;
    }
    let (key_width, value_width) = (shape.kv_heads * shape.key_dims, shape.kv_heads * shape.value_dims);
    let zeros = vec![0.0; count * key_width.max(value_width)];
    let new = NewTokens {
        keys: &zeros,
        key_stride: key_width,
        values: &zeros,
        value_stride: value_width,
        tokens: count,
    };
    attention::store(shape, keys, values, positions, positions - count, &new);
}
