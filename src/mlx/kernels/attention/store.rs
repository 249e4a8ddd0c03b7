//! Writing keys and values of new tokens into slabs.

use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};

use super::affine::{store_key, store_value};
use super::halves::store_nearest;
use super::shape::{GROUP, KvForm, KvShape};
use super::turbo;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::float::Float;
use crate::mlx::kernels::pool::{Panicked, Pool};
use crate::mlx::kernels::sixteen::{self, Lanes, Task};

/// Keys and values of consecutive new tokens, `[tokens][kv_heads * dims]`, keys rotated.
#[derive(Clone, Copy, Debug)]
pub struct NewTokens<'a> {
    pub keys: &'a [f32],
    /// Floats from one token's keys to the next one's.
    pub key_stride: usize,
    /// Not looked at where values are a part of the keys.
    pub values: &'a [f32],
    /// Floats from one token's values to the next one's.
    pub value_stride: usize,
    pub tokens: usize,
}

/// Stores tokens from slab index `at` on. Numbers are rounded to the nearest, ties to even, and in half precision to
/// finite ones; the affine form is
/// quantised as MLX does it, and TurboQuant's as `turboquant` says.
///
/// # Panics
/// When lengths do not fit together.
pub fn store(
    shape: &KvShape,
    keys: &mut [u8],
    values: &mut [u8],
    capacity: usize,
    at: usize,
    new: &NewTokens<'_>,
) {
    if new.tokens == 0 {
        return;
    }
    shape.check();
    assert!(capacity.is_multiple_of(GROUP) && at + new.tokens <= capacity, "tokens leave the slab");
    let (keys, values) = (&mut keys[..shape.key_bytes(capacity)], &mut values[..shape.value_bytes(capacity)]);
    match shape.form {
        KvForm::F32 | KvForm::Joint(Float::F32) => {
            store_floats::<4>(shape, keys, values, capacity, at, new, |from, to| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_le_bytes());
            });
        }
        KvForm::F16 | KvForm::Joint(Float::F16) => {
            store_floats::<2>(shape, keys, values, capacity, at, new, |from, to| {
                let mut halves = [f16::ZERO; PART];
                store_nearest(from, &mut halves[..from.len()]);
                to.iter_mut().zip(halves).for_each(|(to, half)| *to = half.to_le_bytes());
            });
        }
        KvForm::Bf16 | KvForm::Joint(Float::Bf16) => {
            store_floats::<2>(shape, keys, values, capacity, at, new, |from, to| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_f32(*from).to_le_bytes());
            });
        }
        KvForm::Affine { bits, group } => {
            store_quantised(shape, keys, values, capacity, at, new, &AffineForm { bits, group })
        }
        KvForm::Turbo { key_bits, value_bits } => sixteen::run(
            Path::best(),
            StoreTurbo { shape, keys, values, capacity, at, new, form: TurboForm { key_bits, value_bits } },
        ),
    }
}

/// Quantises and stores one position.
trait Quantiser {
    /// Its key: `lane` of the sixteen positions whose bytes are `to`.
    fn key(&self, from: &[f32], to: &mut [u8], lane: usize);

    /// Its value: number `at` of the sixteen positions whose bytes are `to`.
    fn value(&self, from: &[f32], to: &mut [u8], at: usize);
}

struct AffineForm {
    bits: u32,
    group: usize,
}

impl Quantiser for AffineForm {
    fn key(&self, from: &[f32], to: &mut [u8], lane: usize) {
        store_key(self.bits, self.group, from, to, lane);
    }

    fn value(&self, from: &[f32], to: &mut [u8], at: usize) {
        store_value(self.bits, self.group, from, to, at);
    }
}

struct TurboForm {
    key_bits: u32,
    value_bits: u32,
}

impl Quantiser for TurboForm {
    #[inline(always)]
    fn key(&self, from: &[f32], to: &mut [u8], lane: usize) {
        turbo::store_key(self.key_bits, from, to, lane);
    }

    #[inline(always)]
    fn value(&self, from: &[f32], to: &mut [u8], at: usize) {
        turbo::store_value(self.value_bits, from, to, at);
    }
}

/// Storing as TurboQuant, compiled for each instruction set: the compiler finds the vectors by itself.
struct StoreTurbo<'a> {
    shape: &'a KvShape,
    keys: &'a mut [u8],
    values: &'a mut [u8],
    capacity: usize,
    at: usize,
    new: &'a NewTokens<'a>,
    form: TurboForm,
}

impl Task for StoreTurbo<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _: S) {
        let StoreTurbo { shape, keys, values, capacity, at, new, form } = self;
        store_quantised(shape, keys, values, capacity, at, new, &form);
    }
}

/// Positions of a head that a thread stores at a time: a multiple of 16, because such lie together.
const RUN: usize = 64;

/// Fewer tokens than this are not worth waking other threads.
const FEW: usize = 32;

/// [`store`] on all threads of a pool where there is enough to do.
///
/// # Panics
/// When lengths do not fit together. A panic of a thread at work is an error instead.
pub fn store_on(
    pool: &Pool,
    shape: &KvShape,
    keys: &mut [u8],
    values: &mut [u8],
    capacity: usize,
    at: usize,
    new: &NewTokens<'_>,
) -> Result<(), Panicked> {
    if new.tokens < FEW || pool.threads() == 1 {
        store(shape, keys, values, capacity, at, new);
        return Ok(());
    }
    shape.check();
    assert!(capacity.is_multiple_of(GROUP) && at + new.tokens <= capacity, "tokens leave the slab");
    let (keys, values) = (&mut keys[..shape.key_bytes(capacity)], &mut values[..shape.value_bytes(capacity)]);
    let end = at + new.tokens;
    // A run of a head's positions is a slab by itself, of one head.
    let one = KvShape { kv_heads: 1, ..*shape };
    let heads = pieces(keys, one.key_bytes(capacity)).zip(pieces(values, one.value_bytes(capacity)));
    let mut parts = Vec::with_capacity(shape.kv_heads * (new.tokens / RUN + 2));
    for (head, (keys, values)) in heads.take(shape.kv_heads).enumerate() {
        let runs = pieces(keys, one.key_bytes(RUN)).zip(pieces(values, one.value_bytes(RUN)));
        for (index, run) in runs.enumerate().take(end.div_ceil(RUN)).skip(at / RUN) {
            let start = index * RUN;
            parts.push(Mutex::new((head, start, at.max(start)..end.min(start + RUN), run)));
        }
    }
    pool.run(parts.len(), &|part| {
        let mut part = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        let (head, start, positions, (keys, values)) = &mut *part;
        let token = positions.start - at;
        let new = NewTokens {
            keys: &new.keys[token * new.key_stride + *head * shape.key_dims..],
            values: match shape.is_joint() {
                true => &[],
                false => &new.values[token * new.value_stride + *head * shape.value_dims..],
            },
            tokens: positions.len(),
            ..*new
        };
        let capacity = RUN.min(capacity - *start);
        store(&one, keys, values, capacity, positions.start - *start, &new);
    })
}

/// A slab in pieces of so many bytes; without end where there are none in a piece.
fn pieces(slab: &mut [u8], bytes: usize) -> impl Iterator<Item = &mut [u8]> {
    let mut left = slab;
    std::iter::from_fn(move || {
        if bytes > 0 && left.is_empty() {
            return None;
        }
        let whole = std::mem::take(&mut left);
        let (piece, rest) = whole.split_at_mut(bytes.min(whole.len()));
        left = rest;
        Some(piece)
    })
}

/// Numbers that are converted at a time.
const PART: usize = 64;

/// `convert` takes up to `PART` numbers.
fn store_floats<const BYTES: usize>(
    shape: &KvShape,
    keys: &mut [u8],
    values: &mut [u8],
    capacity: usize,
    at: usize,
    new: &NewTokens<'_>,
    convert: impl Fn(&[f32], &mut [[u8; BYTES]]),
) {
    let keys = keys.as_chunks_mut::<BYTES>().0;
    let values = values.as_chunks_mut::<BYTES>().0;
    for head in 0..shape.kv_heads {
        for token in 0..new.tokens {
            if !shape.is_joint() {
                let dims = shape.value_dims;
                let from = &new.values[token * new.value_stride + head * dims..][..dims];
                let to = &mut values[(head * capacity + at + token) * dims..][..dims];
                from.chunks(PART).zip(to.chunks_mut(PART)).for_each(|(from, to)| convert(from, to));
            }

            let dims = shape.key_dims;
            let from = &new.keys[token * new.key_stride + head * dims..][..dims];
            let group = head * (capacity / GROUP) + (at + token) / GROUP;
            let lane = (at + token) % GROUP;
            let to = &mut keys[group * dims * GROUP..][..dims * GROUP];
            for (from, to) in from.chunks(PART).zip(to.chunks_mut(PART * GROUP)) {
                let mut part = [[0; BYTES]; PART];
                convert(from, &mut part[..from.len()]);
                for (to, number) in to.chunks_exact_mut(GROUP).zip(part) {
                    to[lane] = number;
                }
            }
        }
    }
}

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn store_quantised(
    shape: &KvShape,
    keys: &mut [u8],
    values: &mut [u8],
    capacity: usize,
    at: usize,
    new: &NewTokens<'_>,
    form: &impl Quantiser,
) {
    let (key_bytes, value_bytes) = (shape.key_group_bytes(), shape.value_group_bytes());
    for token in 0..new.tokens {
        for head in 0..shape.kv_heads {
            let sixteen = head * (capacity / GROUP) + (at + token) / GROUP;
            let lane = (at + token) % GROUP;
            let from = &new.keys[token * new.key_stride + head * shape.key_dims..][..shape.key_dims];
            form.key(from, &mut keys[sixteen * key_bytes..][..key_bytes], lane);
            let from = &new.values[token * new.value_stride + head * shape.value_dims..][..shape.value_dims];
            form.value(from, &mut values[sixteen * value_bytes..][..value_bytes], lane);
        }
    }
}
