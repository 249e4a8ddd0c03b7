//! From one form of keys and values to another.

use std::marker::PhantomData;

use std::sync::{Mutex, PoisonError};

use super::forms::for_form;
use super::shape::{BLOCK, GROUP, KvForm, KvShape};
use super::store::{NewTokens, store};
use super::stored::{Keys, ReadKeys, ReadValues, Values};
use super::turbo;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::pool::{Panicked, Pool};
use crate::mlx::kernels::sixteen::{self, LANES};

/// Slabs to convert.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub shape: KvShape,
    pub keys: &'a [u8],
    pub values: &'a [u8],
    /// Positions for which the slabs have room: a multiple of 16.
    pub capacity: usize,
}

/// Slabs that receive what is converted.
#[derive(Debug)]
pub struct Target<'a> {
    /// That of the source with any form.
    pub shape: KvShape,
    pub keys: &'a mut [u8],
    pub values: &'a mut [u8],
    /// Positions for which the slabs have room: a multiple of 16.
    pub capacity: usize,
}

/// Reads the first `tokens` positions and stores them as [`store`] stores the float32 numbers that are read. What the
/// target holds of later positions stays.
///
/// # Panics
/// When the slabs do not fit together, before anything is stored.
pub fn convert(pool: &Pool, from: &Source<'_>, to: Target<'_>, tokens: usize) -> Result<(), Panicked> {
    let (source, target) = (&from.shape, &to.shape);
    source.check();
    target.check();
    assert_eq!(
        KvShape { form: source.form, ..*target },
        *source,
        "the shapes differ in more than their forms"
    );
    assert!(
        !source.is_joint() && !target.is_joint(),
        "values that are a part of the keys stay in their form"
    );
    for capacity in [from.capacity, to.capacity] {
        assert!(capacity.is_multiple_of(GROUP) && tokens <= capacity, "tokens leave the slab");
    }
    if tokens == 0 {
        return Ok(());
    }
    let groups = tokens.div_ceil(GROUP);
    let keys = blocks(
        &from.keys[..source.key_bytes(from.capacity)],
        source.kv_heads,
        source.key_group_bytes(),
        groups,
    );
    let values = blocks(
        &from.values[..source.value_bytes(from.capacity)],
        source.kv_heads,
        source.value_group_bytes(),
        groups,
    );
    let (key_bytes, value_bytes) = (target.key_bytes(to.capacity), target.value_bytes(to.capacity));
    let to_keys = blocks_mut(&mut to.keys[..key_bytes], target.kv_heads, target.key_group_bytes(), groups);
    let to_values =
        blocks_mut(&mut to.values[..value_bytes], target.kv_heads, target.value_group_bytes(), groups);
    let starts = (0..source.kv_heads).flat_map(|_| (0..tokens).step_by(BLOCK));
    let parts: Vec<Mutex<Part<'_>>> = starts
        .zip(keys.zip(values))
        .zip(to_keys.zip(to_values))
        .map(|((start, (keys, values)), (to_keys, to_values))| {
            let source = KvShape { kv_heads: 1, ..*source };
            let target = KvShape { kv_heads: 1, ..*target };
            let tokens = BLOCK.min(tokens - start);
            Mutex::new(Part { source, keys, values, tokens, target, to_keys, to_values })
        })
        .collect();
    pool.run_claiming(parts.len(), &|part| {
        parts[part].lock().unwrap_or_else(PoisonError::into_inner).convert()
    })
}

/// The first `groups` sixteen positions of each head, `bytes` each, a block at a time.
fn blocks(slab: &[u8], heads: usize, bytes: usize, groups: usize) -> impl Iterator<Item = &[u8]> {
    let heads = slab.chunks_exact(slab.len() / heads);
    heads.flat_map(move |head| head[..groups * bytes].chunks(BLOCK / GROUP * bytes))
}

/// The same to be written.
fn blocks_mut(slab: &mut [u8], heads: usize, bytes: usize, groups: usize) -> impl Iterator<Item = &mut [u8]> {
    let heads = slab.chunks_exact_mut(slab.len() / heads);
    heads.flat_map(move |head| head[..groups * bytes].chunks_mut(BLOCK / GROUP * bytes))
}

/// Up to a block of positions of one head.
struct Part<'a> {
    source: KvShape,
    keys: &'a [u8],
    values: &'a [u8],
    tokens: usize,
    target: KvShape,
    to_keys: &'a mut [u8],
    to_values: &'a mut [u8],
}

impl Part<'_> {
    fn convert(&mut self) {
        let form = self.source.form;
        let (dims, stride) = (self.source.key_dims, self.source.value_dims.next_multiple_of(LANES));
        let positions = self.tokens.next_multiple_of(GROUP);
        let mut lanes = vec![0.0; positions * dims];
        for_form!(keys form, self.read_keys(&mut lanes));
        let mut keys = vec![0.0; positions * dims];
        for (lanes, keys) in lanes.chunks_exact(GROUP * dims).zip(keys.chunks_exact_mut(GROUP * dims)) {
            for (dim, lanes) in lanes.as_chunks::<GROUP>().0.iter().enumerate() {
                for (position, number) in lanes.iter().enumerate() {
                    keys[position * dims + dim] = *number;
                }
            }
        }
        let mut values = vec![0.0; positions * stride];
        for_form!(values form, self.read_values(&mut values, stride));
        if let KvForm::Turbo { .. } = form {
            values.chunks_exact_mut(stride).for_each(turbo::rotate_back);
        }
        let new = NewTokens {
            keys: &keys,
            key_stride: dims,
            values: &values,
            value_stride: stride,
            tokens: self.tokens,
        };
        store(&self.target, self.to_keys, self.to_values, positions, 0, &new);
    }

    fn read_keys<E: Keys>(&self, to: &mut [f32]) {
        let (form, shape, from) = (PhantomData::<E>, &self.source, self.keys);
        sixteen::run(Path::best(), ReadKeys { form, shape, from, to });
    }

    fn read_values<E: Values>(&self, to: &mut [f32], stride: usize) {
        let (form, shape, from, positions) = (PhantomData::<E>, &self.source, self.values, self.tokens);
        sixteen::run(Path::best(), ReadValues { form, shape, from, positions, to, stride });
    }
}
