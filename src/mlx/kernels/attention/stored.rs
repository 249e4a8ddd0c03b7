//! How keys and values are read: in place, or converted to float32 before.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::micro::{ScoreStrip, ValueStrip};
use super::shape::{GROUP, KvShape};
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::sixteen::{LANES, Lanes, Task};

/// Numbers that inner loops read in place, sixteen at a time.
pub trait Element: Copy {
    const BYTES: usize;

    /// # Safety
    /// Sixteen numbers from `at` on must be readable. There is no alignment.
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::V;

    /// One number from exactly `BYTES` bytes.
    fn one(bytes: &[u8]) -> f32;
}

/// When inner loops read what is stored, instead of numbers that were converted to float32 before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InPlace {
    Never,
    /// When it is read once: for a single strip of rows.
    Once,
    Always,
}

/// A form of keys or values.
pub trait Stored {
    const IN_PLACE: InPlace;
}

/// A form of keys.
pub trait Keys: Stored {
    /// Converts groups of sixteen keys into `[groups][key_dims][16]` floats.
    fn keys<S: Lanes>(s: S, shape: &KvShape, from: &[u8], to: &mut [f32]);

    /// The scores of a strip against keys as they are stored. Never called where they are not read in place.
    ///
    /// # Safety
    /// As for [`ScoreStrip::run`].
    unsafe fn score(_: &ScoreStrip, _: &KvShape, _: Path) {
        unreachable!("these keys are converted")
    }
}

/// A form of values.
pub trait Values: Stored {
    /// Converts the first `positions` of groups of sixteen values into rows of `stride` floats: a multiple of 16, at
    /// least as many as dimensions, filled up with zeros. There is room for whole groups.
    fn values<S: Lanes>(s: S, shape: &KvShape, from: &[u8], positions: usize, to: &mut [f32], stride: usize);

    /// Whether values of this shape can be read in place at all.
    fn fit(shape: &KvShape) -> bool {
        shape.value_dims.is_multiple_of(LANES)
    }

    /// A strip's weighted sums of values as they are stored. Never called where they are not read in place.
    ///
    /// # Safety
    /// As for [`ValueStrip::run`].
    unsafe fn weigh(_: &ValueStrip, _: &KvShape, _: Path) {
        unreachable!("these values are converted")
    }
}

/// [`Keys::keys`] as a task: each instruction set has one copy of it for each form.
pub struct ReadKeys<'a, E> {
    pub form: PhantomData<E>,
    pub shape: &'a KvShape,
    pub from: &'a [u8],
    pub to: &'a mut [f32],
}

impl<E: Keys> Task for ReadKeys<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        E::keys(s, self.shape, self.from, self.to);
    }
}

/// [`Values::values`] as a task.
pub struct ReadValues<'a, E> {
    pub form: PhantomData<E>,
    pub shape: &'a KvShape,
    pub from: &'a [u8],
    pub positions: usize,
    pub to: &'a mut [f32],
    pub stride: usize,
}

impl<E: Values> Task for ReadValues<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        E::values(s, self.shape, self.from, self.positions, self.to, self.stride);
    }
}

#[derive(Clone, Copy)]
pub struct F32;
#[derive(Clone, Copy)]
pub struct F16;
#[derive(Clone, Copy)]
pub struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::V {
        // SAFETY: the caller vouches for 64 bytes.
        s.load_f32(unsafe { &*at.cast() })
    }

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::V {
        // SAFETY: the caller vouches for 32 bytes.
        s.load_f16(unsafe { &*at.cast() })
    }

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::V {
        // SAFETY: the caller vouches for 32 bytes.
        s.load_bf16(unsafe { &*at.cast() })
    }

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl<E: Element> Stored for E {
    const IN_PLACE: InPlace = if E::BYTES == 4 { InPlace::Always } else { InPlace::Once };
}

impl<E: Element> Keys for E {
    #[inline(always)]
    fn keys<S: Lanes>(s: S, _: &KvShape, from: &[u8], to: &mut [f32]) {
        convert::<S, E>(s, from, to);
    }

    unsafe fn score(strip: &ScoreStrip, _: &KvShape, path: Path) {
        // SAFETY: the caller's promise.
        unsafe { strip.run::<E>(path) }
    }
}

impl<E: Element> Values for E {
    #[inline(always)]
    fn values<S: Lanes>(s: S, shape: &KvShape, from: &[u8], positions: usize, to: &mut [f32], stride: usize) {
        let dims = shape.value_dims;
        if dims == stride {
            return convert::<S, E>(s, &from[..positions * dims * E::BYTES], &mut to[..positions * stride]);
        }
        let whole = dims / LANES * LANES;
        let rows = from.chunks_exact(dims * E::BYTES).zip(to.chunks_exact_mut(stride));
        for (from, to) in rows.take(positions) {
            convert::<S, E>(s, &from[..whole * E::BYTES], &mut to[..whole]);
            let tail = from[whole * E::BYTES..].chunks_exact(E::BYTES);
            let mut filled = whole;
            for bytes in tail {
                to[filled] = E::one(bytes);
                filled += 1;
            }
            to[filled..].fill(0.0);
        }
    }

    unsafe fn weigh(strip: &ValueStrip, _: &KvShape, path: Path) {
        // SAFETY: the caller's promise.
        unsafe { strip.run::<E>(path) }
    }
}

/// Converts a multiple of sixteen numbers.
#[inline(always)]
fn convert<S: Lanes, E: Element>(s: S, from: &[u8], to: &mut [f32]) {
    assert!(from.len() == to.len() * E::BYTES && to.len().is_multiple_of(GROUP));
    for (i, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        // SAFETY: the lengths match, so that these sixteen numbers are there.
        s.store(unsafe { E::load(s, from.as_ptr().add(i * LANES * E::BYTES)) }, to);
    }
}
