//! Rotation, storage and attention as one operation, over keys and values in the kernels' own order.

use std::sync::Arc;

use parking_lot::Mutex;

use super::fused::{only, wrong_count};
use super::rope::Rope;
use crate::base::{Error, Result};
use crate::mlx::kernels::attention::{self, Attention, KvForm, KvShape, NewTokens, Sequence, Span};
use crate::mlx::kernels::bytes::{floats, floats_mut};
use crate::mlx::kernels::kernel::{Kernel, Output};
use crate::mlx::kernels::primitive::apply;
use crate::mlx::kernels::rope::Rotation;
use crate::mlx::kernels::slab::Slab;
use crate::mlx::kernels::{scratch, threads};
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
    /// A query sees at most that many of the latest keys, its own included.
    pub window: Option<usize>,
    rotation: Arc<Rotation>,
}

impl CausalAttention {
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize, scale: f32, rope: &Rope) -> Result<Self> {
        let rotation = Rotation::new(rope.frequencies()?, 1.0, rope.is_traditional());
        Ok(CausalAttention { heads, kv_heads, head_dim, scale, window: None, rotation: Arc::new(rotation) })
    }
}

/// The keys and values of one layer and sequence in memory for more: only this file knows their order.
///
/// Operations change the memory in place. All that concern one value run in the order in which they were built,
/// because each has the last one's `written` as an input. A clone shares the memory until either is written again:
/// then that one copies it first.
#[derive(Clone, Debug)]
pub struct KvSlabs {
    place: Place,
    /// Computed when everything is written that was appended so far; absent before the first time.
    written: Option<Array>,
    /// One reference for each value that uses this memory.
    users: Arc<()>,
}

/// Where keys and values are.
#[derive(Clone, Debug)]
struct Place {
    shape: KvShape,
    /// Tokens that there is room for, a multiple of 16.
    capacity: usize,
    /// The keys, then the values.
    memory: Arc<Slab>,
}

impl KvSlabs {
    /// Room for `capacity` tokens, a multiple of 16, of elements of a float type.
    pub fn new(attention: &CausalAttention, capacity: usize, dtype: Dtype) -> Result<Self> {
        let form = match dtype {
            Dtype::Float32 => KvForm::F32,
            Dtype::Float16 => KvForm::F16,
            Dtype::Bfloat16 => KvForm::Bf16,
            other => return Err(Error::internal(format!("keys of {}", other.name()))),
        };
        let (kv_heads, dims) = (attention.kv_heads, attention.head_dim);
        Self::of_shape(KvShape { kv_heads, key_dims: dims, value_dims: dims, form }, capacity)
    }

    fn of_shape(shape: KvShape, capacity: usize) -> Result<Self> {
        let memory = Slab::new(shape.key_bytes(capacity) + shape.value_bytes(capacity))?;
        let place = Place { shape, capacity, memory: Arc::new(memory) };
        Ok(KvSlabs { place, written: None, users: Arc::new(()) })
    }

    /// These for `tokens` tokens: the same memory if it is large enough and nobody else's, else a copy with room for
    /// `capacity` tokens, a multiple of 16.
    pub fn with_room(&self, tokens: usize, capacity: usize) -> Result<Self> {
        // The value itself is one of the users.
        if tokens <= self.place.capacity && Arc::strong_count(&self.users) == 1 {
            return Ok(self.clone());
        }
        let copy = Self::of_shape(self.place.shape, capacity.max(self.place.capacity))?;
        let kernel = Copying { from: self.place.clone(), to: copy.place.clone() };
        let inputs: Vec<&Array> = self.written.iter().collect();
        let [written] = apply(kernel, &inputs, [WRITTEN])?;
        // The other users of this memory may change it as soon as this returns.
        written.eval()?;
        Ok(KvSlabs { written: Some(written), ..copy })
    }

    pub fn byte_size(&self) -> usize {
        self.place.memory.len()
    }

    /// What has to be computed for everything to be written.
    pub fn written(&self) -> Option<&Array> {
        self.written.as_ref()
    }
}

/// The result that says that an operation has run.
const WRITTEN: Output<'static> = Output { shape: &[1], dtype: Dtype::Uint8 };

/// Copies slabs to the beginning of others that are as large or larger, head by head.
struct Copying {
    from: Place,
    to: Place,
}

impl Kernel for Copying {
    fn run(&self, _inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        only(outputs)?.fill(1);
        let (shape, heads) = (&self.from.shape, self.from.shape.kv_heads);
        // SAFETY: operations on the old memory follow each other, and this one is waited for before another is built;
        // nobody else knows the new memory.
        let (from, to) = unsafe { (self.from.memory.bytes(), self.to.memory.bytes_mut()) };
        let (old_keys, old_values) = from.split_at(shape.key_bytes(self.from.capacity));
        let (new_keys, new_values) = to.split_at_mut(shape.key_bytes(self.to.capacity));
        let old_values = &old_values[..shape.value_bytes(self.from.capacity)];
        let new_values = &mut new_values[..shape.value_bytes(self.to.capacity)];
        let mut parts: Vec<Mutex<(&[u8], &mut [u8])>> = Vec::with_capacity(2 * heads);
        for (old, new) in [(old_keys, new_keys), (old_values, new_values)] {
            let (from, to) = (old.len() / heads, new.len() / heads);
            parts.extend(old.chunks_exact(from).zip(new.chunks_exact_mut(to)).map(Mutex::new));
        }
        let copy = |part: usize| {
            let mut part = parts[part].lock();
            let (from, to) = &mut *part;
            to[..from.len()].copy_from_slice(from);
        };
        Ok(threads::pool()?.run(parts.len(), &copy)?)
    }
}

/// Rotates the queries and keys of `qkv` `[1, tokens, (heads + 2 kv heads) * dims]`, which are the products of queries,
/// keys and values one after the other; stores keys and values behind the first `offset` tokens of the slabs; attends.
/// Returns `[1, tokens, heads * dims]` and the slabs, which must have the room and no other users.
pub fn attend(
    qkv: &Array,
    slabs: KvSlabs,
    offset: usize,
    attention: &CausalAttention,
) -> Result<(Array, KvSlabs)> {
    let width =
        i32::try_from(attention.heads * attention.head_dim).map_err(|_| Error::internal("too many heads"))?;
    let shape = [qkv.dim(0), qkv.dim(1), width];
    let kernel = Step { attention: attention.clone(), place: slabs.place.clone(), offset };
    let [attended, written] = apply(kernel, &inputs(qkv, &slabs), [Output::float(&shape), WRITTEN])?;
    Ok((attended, KvSlabs { written: Some(written), ..slabs }))
}

/// As `attend` for `kv` `[1, tokens, 2 kv heads * dims]`, keys and values alone, without attending.
pub fn store(kv: &Array, slabs: KvSlabs, offset: usize, attention: &CausalAttention) -> Result<KvSlabs> {
    let attention = CausalAttention { heads: 0, ..attention.clone() };
    let kernel = Step { attention, place: slabs.place.clone(), offset };
    let [written] = apply(kernel, &inputs(kv, &slabs), [WRITTEN])?;
    Ok(KvSlabs { written: Some(written), ..slabs })
}

/// The products, and what has to be written before.
fn inputs<'a>(projected: &'a Array, slabs: &'a KvSlabs) -> Vec<&'a Array> {
    [Some(projected), slabs.written()].into_iter().flatten().collect()
}

struct Step {
    attention: CausalAttention,
    place: Place,
    offset: usize,
}

impl Kernel for Step {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
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
            self.rotate(projected, stride, queries, 0, heads)?;
            self.rotate(projected, stride, new_keys, query_width, kv_heads)?;
            let new = NewTokens {
                keys: new_keys,
                key_stride: kv_width,
                values: &projected[query_width + kv_width..],
                value_stride: stride,
                tokens,
            };
            let Place { shape, capacity, memory } = &self.place;
            // SAFETY: nothing but operations made in this file reads or changes the memory. Those of this value follow
            // each other by `written`. Other values that used the memory have copied it before this operation was
            // built, or copy it before they change it; such a copy is waited for, and so comes behind operations that
            // were dispatched before it and in front of all others.
            let memory = unsafe { memory.bytes_mut() };
            let (keys, values) = memory.split_at_mut(shape.key_bytes(*capacity));
            attention::store(shape, keys, values, *capacity, self.offset, &new);
            let Some(attended) = attended else { return Ok(()) };
            self.attend(queries, tokens, keys, values, floats_mut(attended)?)
        })
    }
}

impl Step {
    /// Copies `heads` heads that begin at `first` in each token's row into `rotated`, and rotates them.
    fn rotate(
        &self,
        projected: &[f32],
        stride: usize,
        rotated: &mut [f32],
        first: usize,
        heads: usize,
    ) -> Result<()> {
        let dims = self.attention.head_dim;
        let width = heads * dims;
        if width == 0 {
            return Ok(());
        }
        for (token, row) in rotated.chunks_exact_mut(width).enumerate() {
            row.copy_from_slice(&projected[token * stride + first..][..width]);
            self.attention.rotation.rotate(row, heads, dims, self.offset + token);
        }
        Ok(())
    }

    fn attend(
        &self,
        queries: &[f32],
        tokens: usize,
        keys: &[u8],
        values: &[u8],
        out: &mut [f32],
    ) -> Result<()> {
        let CausalAttention { heads, scale, window, .. } = self.attention;
        let attention = Attention {
            heads,
            shape: self.place.shape,
            scale,
            causal: true,
            window,
            soft_cap: None,
            sinks: None,
        };
        let span = Span { keys, values, capacity: self.place.capacity, first: 0, len: self.offset + tokens };
        let sequence = Sequence {
            queries: tokens,
            position: self.offset,
            spans: &[span],
            first_position: 0,
            mask: None,
        };
        Ok(attention::attend(&*threads::pool()?, &attention, &[sequence], queries, out)?)
    }
}
