//! Attention over compressed keys and values, which all heads share, and the choice of the tokens that it attends.

use std::sync::Arc;

use super::segments::Segments;
use super::step::WRITTEN;
use super::tokens::Tokens;
use crate::base::{Error, Result};
use crate::mlx::kernels::attention::{self, Attention, Indexer, KvShape, Mask, NewTokens, Sequence};
use crate::mlx::kernels::bytes::{floats, floats_mut};
use crate::mlx::kernels::chain::apply;
use crate::mlx::kernels::kernel::{Kernel, Output};
use crate::mlx::kernels::rope::Rotation;
use crate::mlx::kernels::{rows, scratch, threads};
use crate::mlx::{Array, Dtype};

/// Causal attention in the space of the compressed vectors: a token's key is its latent part and, behind it, its rotated
/// part; its value is the latent part.
#[derive(Clone)]
pub struct LatentAttention {
    pub heads: usize,
    /// Dimensions of the latent part.
    pub latent: usize,
    /// Dimensions of the part that is rotated.
    pub rope: usize,
    pub scale: f32,
    /// Of the rotated parts of queries and keys.
    pub rotation: Arc<Rotation>,
}

/// What chooses the tokens that a query attends.
#[derive(Clone)]
pub struct TokenIndexer {
    pub heads: usize,
    /// Of a head's query, and of a token's key.
    pub dims: usize,
    /// Tokens that a query attends: those with the best scores, of equal ones the first. All while there are no more.
    pub chosen: usize,
    /// Of the first dimensions of queries and keys.
    pub rotation: Arc<Rotation>,
}

/// Rotates the last dimensions of `queries` `[1, tokens, heads * (latent + rope)]` and of `keys`
/// `[1, tokens, latent + rope]`, stores the keys behind the first `offset` tokens of the segments and attends: those that
/// `attended`, bytes `[1, tokens, offset + tokens]`, has something else than 0 for, if there is one. Returns
/// `[1, tokens, heads * latent]`. Fails without a change to what the segments hold.
pub fn attend_latent(
    queries: &Array,
    keys: &Array,
    segments: &mut Segments,
    offset: usize,
    attention: &LatentAttention,
    attended: Option<&Array>,
) -> Result<Array> {
    let LatentAttention { heads, latent, rope, .. } = *attention;
    let tokens = keys.dim(1) as usize;
    check(segments.shape(), latent + rope, latent)?;
    check_sizes(&[(queries, tokens * heads * (latent + rope)), (keys, tokens * (latent + rope))])?;
    if let Some(attended) = attended {
        check_sizes(&[(attended, tokens * (offset + tokens))])?;
    }
    let width = i32::try_from(heads * latent).map_err(|_| Error::internal("too many heads"))?;
    let shape = [1, keys.dim(1), width];
    let masked = attended.is_some();
    let step =
        Attend { attention: attention.clone(), tokens: Tokens::with_room(segments, offset, tokens)?, masked };
    let inputs: Vec<&Array> =
        [Some(queries), Some(keys), attended, segments.written()].into_iter().flatten().collect();
    let [out, written] = apply(step, &inputs, [Output::float(&shape), WRITTEN])?;
    segments.set_written(written);
    Ok(out)
}

/// Rotates the first dimensions of each head of `queries` `[1, tokens, heads * dims]` and of `keys` `[1, tokens, dims]`,
/// stores the keys behind the first `offset` tokens of the segments, and chooses by the heads' `weights`
/// `[1, tokens, heads]` what each token attends: bytes `[1, tokens, offset + tokens]`, not 0 for those. `None` if that is
/// everything before it for each. Fails without a change to what the segments hold.
pub fn choose_tokens(
    queries: &Array,
    keys: &Array,
    weights: &Array,
    segments: &mut Segments,
    offset: usize,
    indexer: &TokenIndexer,
) -> Result<Option<Array>> {
    let TokenIndexer { heads, dims, chosen, .. } = *indexer;
    let tokens = keys.dim(1) as usize;
    check(segments.shape(), dims, dims)?;
    check_sizes(&[(queries, tokens * heads * dims), (keys, tokens * dims), (weights, tokens * heads)])?;
    let step = Choose { indexer: indexer.clone(), tokens: Tokens::with_room(segments, offset, tokens)? };
    let inputs: Vec<&Array> =
        [Some(queries), Some(keys), Some(weights), segments.written()].into_iter().flatten().collect();
    let end = i32::try_from(offset + tokens).map_err(|_| Error::internal("too many tokens"))?;
    let attended = Output { shape: &[1, keys.dim(1), end], dtype: Dtype::Uint8 };
    if offset + tokens <= chosen {
        let [written] = apply(step, &inputs, [WRITTEN])?;
        segments.set_written(written);
        return Ok(None);
    }
    let [attended, written] = apply(step, &inputs, [attended, WRITTEN])?;
    segments.set_written(written);
    Ok(Some(attended))
}

/// INTERNAL unless the segments hold keys of such sizes of one head, values in them.
fn check(shape: &KvShape, key_dims: usize, value_dims: usize) -> Result<()> {
    if shape.is_joint() && (shape.kv_heads, shape.key_dims, shape.value_dims) == (1, key_dims, value_dims) {
        return Ok(());
    }
    Err(Error::internal("a cache of another layer's shape"))
}

fn check_sizes(arrays: &[(&Array, usize)]) -> Result<()> {
    if arrays.iter().all(|(array, size)| array.size() == *size) {
        return Ok(());
    }
    Err(Error::internal("compressed keys and queries of other sizes than the layer's"))
}

fn wrong_count() -> Error {
    Error::internal("a kernel was given the wrong number of arrays")
}

struct Attend {
    attention: LatentAttention,
    tokens: Tokens,
    /// Whether there is a third input, what is attended.
    masked: bool,
}

impl Kernel for Attend {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let (&[queries, keys, ..], [out, written]) = (inputs, outputs) else { return Err(wrong_count()) };
        written.fill(1);
        let (queries, keys) = (floats(queries)?, floats(keys)?);
        let LatentAttention { heads, latent, rope, scale, ref rotation } = self.attention;
        let dims = latent + rope;
        let tokens = keys.len() / dims;
        let rotate = |head: &mut [f32], position: usize| {
            rotation.rotate(&mut head[latent..], 1, rope, position);
        };
        let attended: Option<Vec<bool>> = match (self.masked, inputs.get(2)) {
            (true, Some(attended)) => Some(attended.iter().map(|attended| *attended != 0).collect()),
            (true, None) => return Err(wrong_count()),
            (false, _) => None,
        };
        scratch::with(queries.len() + keys.len(), |rotated| {
            let (rotated_queries, rotated_keys) = rotated.split_at_mut(queries.len());
            self.tokens.rotate(keys, rotated_keys, dims, dims, &rotate)?;
            self.tokens.rotate(queries, rotated_queries, heads * dims, dims, &rotate)?;
            self.tokens.store(&joint(rotated_keys, dims, tokens))?;
            let attention = Attention {
                heads,
                shape: self.tokens.shape,
                scale,
                causal: true,
                window: None,
                keep: 0,
                soft_cap: None,
                sinks: None,
            };
            let position = self.tokens.offset;
            let spans = self.tokens.spans(position + tokens);
            let mask = attended.as_deref().map(Mask::Allowed);
            let sequence = Sequence { queries: tokens, position, spans: &spans, first_position: 0, mask };
            let out = floats_mut(out)?;
            Ok(attention::attend(&*threads::pool()?, &attention, &[sequence], rotated_queries, out)?)
        })
    }
}

struct Choose {
    indexer: TokenIndexer,
    tokens: Tokens,
}

impl Kernel for Choose {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let &[queries, keys, weights, ..] = inputs else { return Err(wrong_count()) };
        let (attended, written) = match outputs {
            [attended, written] => (Some(attended), written),
            [written] => (None, written),
            _ => return Err(wrong_count()),
        };
        written.fill(1);
        let (queries, keys, weights) = (floats(queries)?, floats(keys)?, floats(weights)?);
        let TokenIndexer { heads, dims, chosen, ref rotation } = self.indexer;
        let tokens = keys.len() / dims;
        let rotate = |head: &mut [f32], position: usize| rotation.rotate(head, 1, dims, position);
        scratch::with(queries.len() + keys.len(), |rotated| {
            let (rotated_queries, rotated_keys) = rotated.split_at_mut(queries.len());
            self.tokens.rotate(keys, rotated_keys, dims, dims, &rotate)?;
            self.tokens.store(&joint(rotated_keys, dims, tokens))?;
            let Some(attended) = attended else { return Ok(()) };
            self.tokens.rotate(queries, rotated_queries, heads * dims, dims, &rotate)?;
            let indexer = Indexer { heads, shape: self.tokens.shape, chosen };
            let position = self.tokens.offset;
            let spans = self.tokens.spans(position + tokens);
            let sequence =
                Sequence { queries: tokens, position, spans: &spans, first_position: 0, mask: None };
            let mut choice = vec![false; attended.len()];
            let pool = &*threads::pool()?;
            attention::choose(pool, &indexer, &sequence, rotated_queries, weights, &mut choice)?;
            attended.iter_mut().zip(choice).for_each(|(to, attended)| *to = attended.into());
            Ok(())
        })
    }
}

/// Tokens whose values are a part of their keys.
fn joint(keys: &[f32], dims: usize, tokens: usize) -> NewTokens<'_> {
    NewTokens { keys, key_stride: dims, values: &[], value_stride: 0, tokens }
}

impl Tokens {
    /// Copies rows of `width` numbers, one for each token of the operation, and rotates their heads of `dims` each.
    fn rotate(
        &self,
        from: &[f32],
        to: &mut [f32],
        width: usize,
        dims: usize,
        rotate: &(dyn Fn(&mut [f32], usize) + Sync),
    ) -> Result<()> {
        Ok(rows::each(&*threads::pool()?, to, width, &|token, row| {
            row.copy_from_slice(&from[token * width..][..width]);
            row.chunks_exact_mut(dims).for_each(|head| rotate(head, self.offset + token));
        })?)
    }
}
