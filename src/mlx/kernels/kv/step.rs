//! Rotation, storage and attention as one operation over segments.

use std::sync::Arc;

use super::segments::Segments;
use super::tokens::Tokens;
use crate::base::{Error, Result};
use crate::mlx::kernels::attention::{self, Attention, NewTokens, Sequence};
use crate::mlx::kernels::bytes::{floats, floats_mut};
use crate::mlx::kernels::chain::apply;
use crate::mlx::kernels::kernel::{Kernel, Output};
use crate::mlx::kernels::norm::{layer_norm, rms_norm};
use crate::mlx::kernels::rope::Rotation;
use crate::mlx::kernels::{rows, scratch, threads};
use crate::mlx::{Array, Dtype};

/// Causal attention with grouped heads and rotary positions.
#[derive(Clone)]
pub struct CausalAttention {
    pub heads: usize,
    /// Divides `heads`.
    pub kv_heads: usize,
    /// Of queries, keys and values.
    pub head_dim: usize,
    pub scale: f32,
    /// Scores `s` become `soft_cap * tanh(s / soft_cap)`.
    pub soft_cap: Option<f32>,
    pub rotation: Arc<Rotation>,
    /// Of queries and keys, before they are rotated.
    pub norms: Option<Arc<HeadNorms>>,
    pub growth: Option<QueryGrowth>,
}

impl CausalAttention {
    fn check_norms(&self) -> Result<()> {
        let Some(norms) = &self.norms else { return Ok(()) };
        let gains = |heads: usize| match norms.form {
            HeadNorm::Shared => self.head_dim,
            HeadNorm::Whole | HeadNorm::Own => heads * self.head_dim,
        };
        // Where keys are stored alone there are no queries.
        let queries_fit = self.heads == 0 || norms.queries.len() == gains(self.heads);
        if queries_fit && norms.keys.len() == gains(self.kv_heads) {
            return Ok(());
        }
        Err(Error::internal("norms of other heads than those of the layer"))
    }
}

/// Norms of the queries and keys of a token.
#[derive(Debug)]
pub struct HeadNorms {
    pub form: HeadNorm,
    pub eps: f32,
    /// Gains, as many as `form` says.
    pub queries: Vec<f32>,
    pub keys: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorm {
    /// Root mean squares of each head; one gain for all: `[head_dim]`.
    Shared,
    /// The root mean square of all heads together: `[heads * head_dim]`.
    Whole,
    /// Layer norms of each head with a gain of its own: `[heads * head_dim]`.
    Own,
}

impl HeadNorm {
    /// The norm of `x`, the heads of a token.
    fn apply(self, x: &[f32], out: &mut [f32], head_dim: usize, gain: &[f32], eps: f32) {
        let heads = x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
        match self {
            HeadNorm::Whole => rms_norm(x, Some(gain), eps, out),
            HeadNorm::Shared => heads.for_each(|(x, out)| rms_norm(x, Some(gain), eps, out)),
            HeadNorm::Own => heads
                .zip(gain.chunks_exact(head_dim))
                .for_each(|((x, out), gain)| layer_norm(x, Some(gain), None, eps, out)),
        }
    }
}

/// Queries at position `p` are multiplied by `1 + beta * ln(1 + floor(p / positions))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    pub beta: f32,
    pub positions: f32,
}

impl QueryGrowth {
    fn at(self, position: usize) -> f32 {
        1.0 + self.beta * (1.0 + (position as f32 / self.positions).floor()).ln()
    }
}

/// What a query may see of the tokens up to its own: the first `keep`, and the latest `window`, its own included;
/// all without a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    pub window: Option<usize>,
    pub keep: usize,
}

/// The result that says that an operation has run.
pub(super) const WRITTEN: Output<'static> = Output { shape: &[1], dtype: Dtype::Uint8 };

/// Rotates the queries and keys of `qkv` `[1, tokens, (heads + 2 kv heads) * dims]`, which are the products of queries,
/// keys and values one after the other; stores keys and values behind the first `offset` tokens of the segments;
/// attends. Returns `[1, tokens, heads * dims]`. Fails without a change to what the segments hold.
pub fn attend(
    qkv: &Array,
    segments: &mut Segments,
    offset: usize,
    attention: &CausalAttention,
    visible: Visible,
) -> Result<Array> {
    let width =
        i32::try_from(attention.heads * attention.head_dim).map_err(|_| Error::internal("too many heads"))?;
    let shape = [qkv.dim(0), qkv.dim(1), width];
    let step = Step::new(qkv, segments, offset, attention.clone(), visible)?;
    let [attended, written] = apply(step, &inputs(qkv, segments), [Output::float(&shape), WRITTEN])?;
    segments.set_written(written);
    Ok(attended)
}

/// As `attend` for `kv` `[1, tokens, 2 kv heads * dims]`, keys and values alone, without attending.
pub fn store(kv: &Array, segments: &mut Segments, offset: usize, attention: &CausalAttention) -> Result<()> {
    let attention = CausalAttention { heads: 0, ..attention.clone() };
    let step = Step::new(kv, segments, offset, attention, Visible::default())?;
    let [written] = apply(step, &inputs(kv, segments), [WRITTEN])?;
    segments.set_written(written);
    Ok(())
}

/// The products, and what has to be written before.
fn inputs<'a>(projected: &'a Array, segments: &'a Segments) -> Vec<&'a Array> {
    [Some(projected), segments.written()].into_iter().flatten().collect()
}

struct Step {
    attention: CausalAttention,
    visible: Visible,
    tokens: Tokens,
}

impl Step {
    fn new(
        projected: &Array,
        segments: &mut Segments,
        offset: usize,
        attention: CausalAttention,
        visible: Visible,
    ) -> Result<Self> {
        let shape = *segments.shape();
        if shape.kv_heads != attention.kv_heads
            || [shape.key_dims, shape.value_dims] != [attention.head_dim; 2]
        {
            return Err(Error::internal("a cache of another layer's shape"));
        }
        attention.check_norms()?;
        let tokens = Tokens::with_room(segments, offset, projected.dim(1) as usize)?;
        Ok(Step { attention, visible, tokens })
    }
}

impl Kernel for Step {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let wrong_count = || Error::internal("a kernel was given the wrong number of arrays");
        let Some(projected) = inputs.first() else { return Err(wrong_count()) };
        let (attended, written) = match outputs {
            [attended, written] => (Some(attended), written),
            [written] => (None, written),
            _ => return Err(wrong_count()),
        };
        written.fill(1);
        let projected = floats(projected)?;
        let CausalAttention { heads, kv_heads, head_dim, .. } = self.attention;
        let (query_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let stride = query_width + 2 * kv_width;
        let tokens = projected.len() / stride;
        scratch::with(tokens * (query_width + kv_width), |rotated| {
            let (queries, new_keys) = rotated.split_at_mut(tokens * query_width);
            let norms = self.attention.norms.as_deref();
            let gain = norms.map(|norms| norms.queries.as_slice());
            self.rotate(projected, stride, queries, 0, heads, gain, self.attention.growth)?;
            let gain = norms.map(|norms| norms.keys.as_slice());
            self.rotate(projected, stride, new_keys, query_width, kv_heads, gain, None)?;
            let new = NewTokens {
                keys: new_keys,
                key_stride: kv_width,
                values: &projected[query_width + kv_width..],
                value_stride: stride,
                tokens,
            };
            self.tokens.store(&new)?;
            match attended {
                Some(attended) => self.attend(queries, tokens, floats_mut(attended)?),
                None => Ok(()),
            }
        })
    }
}

impl Step {
    /// Copies `heads` heads that begin at `first` in each token's row into `rotated`, normalises and rotates them.
    #[expect(clippy::too_many_arguments, reason = "queries and keys differ in each")]
    fn rotate(
        &self,
        projected: &[f32],
        stride: usize,
        rotated: &mut [f32],
        first: usize,
        heads: usize,
        gain: Option<&[f32]>,
        growth: Option<QueryGrowth>,
    ) -> Result<()> {
        let CausalAttention { head_dim, rotation, norms, .. } = &self.attention;
        let (dims, width) = (*head_dim, heads * head_dim);
        Ok(rows::each(&*threads::pool()?, rotated, width, &|token, row| {
            let (projected, position) =
                (&projected[token * stride + first..][..width], self.tokens.offset + token);
            match (norms, gain) {
                (Some(norms), Some(gain)) => norms.form.apply(projected, row, dims, gain, norms.eps),
                _ => row.copy_from_slice(projected),
            }
            rotation.rotate(row, heads, dims, position);
            if let Some(growth) = growth {
                let factor = growth.at(position);
                row.iter_mut().for_each(|query| *query *= factor);
            }
        })?)
    }

    fn attend(&self, queries: &[f32], tokens: usize, out: &mut [f32]) -> Result<()> {
        let CausalAttention { heads, scale, .. } = self.attention;
        let attention = Attention {
            heads,
            shape: self.tokens.shape,
            scale,
            causal: true,
            window: self.visible.window,
            keep: self.visible.keep,
            soft_cap: self.attention.soft_cap,
            sinks: None,
        };
        let position = self.tokens.offset;
        let spans = self.tokens.spans(position + tokens);
        let sequence = Sequence { queries: tokens, position, spans: &spans, first_position: 0, mask: None };
        Ok(attention::attend(&*threads::pool()?, &attention, &[sequence], queries, out)?)
    }
}
