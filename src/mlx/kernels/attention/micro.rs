//! The two inner loops: scores of a strip of rows against groups of keys, and weighted sums of values.
//!
//! A *row* is one query of one head. A *strip* is up to twelve rows that share loads of keys and values. How
//! many rows and registers a strip has decides the speed only: each score is one chain of fused multiply-adds
//! over the dimensions in order, and each output dimension one chain over the positions in order.

// Arrays of registers are indexed by constants after unrolling.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use super::shape::BLOCK;
use super::stored::Element;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::sixteen::{self, LANES, Lanes, Task};

/// Floats from one row of scores to the next. More than a block, so that rows do not fall on the same cache sets.
pub const SCORES_STRIDE: usize = BLOCK + LANES;

/// Rows of the largest strip.
pub const MAX_STRIP: usize = 12;

/// The largest strip of this instruction set that fits into so many rows.
#[inline(always)]
pub fn strip_rows<S: Lanes>(left: usize) -> usize {
    match left {
        MAX_STRIP.. if S::WIDE => MAX_STRIP,
        6.. => 6,
        5 => 4,
        _ => left,
    }
}

/// A strip's part of the scores: `rows` rows against `groups` groups of sixteen keys.
pub struct ScoreStrip {
    /// Queries as `[key_dims][rows]`.
    pub queries: *const f32,
    pub rows: usize,
    pub dims: usize,
    /// Groups as `[key_dims][16]` elements, one after the other, or as their form has them.
    pub keys: *const u8,
    pub groups: usize,
    /// Row 0's score for the first key; rows are `SCORES_STRIDE` apart.
    pub out: *mut f32,
    /// Whether to ask for the keys of the next step.
    pub prefetch: bool,
}

/// The strip as a task: each instruction set has one copy of it for each form of the numbers.
struct CompiledScoreStrip<'a, E>(&'a ScoreStrip, PhantomData<E>);

impl<E: Element> Task for CompiledScoreStrip<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        // SAFETY: `run`, which alone makes these, was told that the pointers are good; the number of rows is that
        // of the callee's type.
        unsafe {
            if S::WIDE {
                match self.0.rows {
                    12 => self.0.groups::<S, E, 12, 2>(s),
                    6 => self.0.groups::<S, E, 6, 4>(s),
                    4 => self.0.groups::<S, E, 4, 4>(s),
                    3 => self.0.groups::<S, E, 3, 4>(s),
                    2 => self.0.groups::<S, E, 2, 4>(s),
                    _ => self.0.groups::<S, E, 1, 8>(s),
                }
            } else {
                match self.0.rows {
                    6 => self.0.groups::<S, E, 6, 1>(s),
                    4 => self.0.groups::<S, E, 4, 1>(s),
                    3 => self.0.groups::<S, E, 3, 2>(s),
                    2 => self.0.groups::<S, E, 2, 2>(s),
                    _ => self.0.groups::<S, E, 1, 4>(s),
                }
            }
        }
    }
}

impl ScoreStrip {
    /// # Safety
    /// The pointers must be good for what the fields say: `rows * dims` queries, `groups` groups of sixteen
    /// keys, and `rows` rows of `groups * 16` scores that nothing else refers to.
    pub unsafe fn run<E: Element>(&self, path: Path) {
        sixteen::run(path, CompiledScoreStrip::<E>(self, PhantomData));
    }

    /// Takes `N` groups at a time, the last ones overlapping those before: each score depends on its key alone.
    ///
    /// # Safety
    /// As for `run`, with `R` rows.
    #[inline(always)]
    unsafe fn groups<S: Lanes, E: Element, const R: usize, const N: usize>(&self, s: S) {
        let mut done = 0;
        while done < self.groups {
            let left = self.groups - done;
            // SAFETY: both calls stay within the strip's groups.
            unsafe {
                if self.groups >= N {
                    let at = if left >= N { done } else { self.groups - N };
                    self.step::<S, E, R, N>(s, at);
                    done = at + N;
                } else {
                    self.step::<S, E, R, 1>(s, done);
                    done += 1;
                }
            }
        }
    }

    /// # Safety
    /// As for `run`, with `R` rows and at least `at + N` groups.
    #[inline(always)]
    unsafe fn step<S: Lanes, E: Element, const R: usize, const N: usize>(&self, s: S, at: usize) {
        let group_bytes = self.dims * LANES * E::BYTES;
        // SAFETY: the offsets are those of group `at` and its scores, within what the caller vouches for.
        unsafe {
            let keys = self.keys.add(at * group_bytes);
            let mut sums = [[s.splat(0.0); N]; R];
            for dim in 0..self.dims {
                let mut key = [s.splat(0.0); N];
                for n in 0..N {
                    let from = keys.add(n * group_bytes + dim * LANES * E::BYTES);
                    key[n] = E::load(s, from);
                    if self.prefetch {
                        s.prefetch(from.wrapping_add(N * group_bytes));
                    }
                }
                for r in 0..R {
                    let query = s.splat(*self.queries.add(dim * R + r));
                    for n in 0..N {
                        sums[r][n] = s.fma(query, key[n], sums[r][n]);
                    }
                }
            }
            for r in 0..R {
                for n in 0..N {
                    s.store(sums[r][n], &mut *self.out.add(r * SCORES_STRIDE + (at + n) * LANES).cast());
                }
            }
        }
    }
}

/// A strip's part of the weighted sums of values.
pub struct ValueStrip {
    /// Row 0's weight of the first position; rows are `SCORES_STRIDE` apart.
    pub weights: *const f32,
    pub rows: usize,
    /// Values as `[positions][dims]` elements, or as their form has them.
    pub values: *const u8,
    /// How many of these positions come before the first that counts, and how many count.
    pub first: usize,
    pub positions: usize,
    /// A multiple of 16; also the floats from one row of `out` to the next.
    pub dims: usize,
    /// The sums so far, which are continued.
    pub out: *mut f32,
    /// Bytes ahead of the values to prefetch; 0 for none.
    pub ahead: usize,
}

/// The strip as a task: each instruction set has one copy of it for each form of the numbers.
struct CompiledValueStrip<'a, E>(&'a ValueStrip, PhantomData<E>);

impl<E: Element> Task for CompiledValueStrip<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        // SAFETY: `run`, which alone makes these, was told that the pointers are good; the number of rows is that
        // of the callee's type.
        unsafe {
            if S::WIDE {
                match self.0.rows {
                    12 => self.0.dims::<S, E, 12, 2>(s),
                    6 => self.0.dims::<S, E, 6, 4>(s),
                    4 => self.0.dims::<S, E, 4, 4>(s),
                    3 => self.0.dims::<S, E, 3, 4>(s),
                    2 => self.0.dims::<S, E, 2, 4>(s),
                    _ => self.0.dims::<S, E, 1, 4>(s),
                }
            } else {
                match self.0.rows {
                    6 => self.0.dims::<S, E, 6, 1>(s),
                    4 => self.0.dims::<S, E, 4, 1>(s),
                    3 => self.0.dims::<S, E, 3, 2>(s),
                    2 => self.0.dims::<S, E, 2, 2>(s),
                    _ => self.0.dims::<S, E, 1, 4>(s),
                }
            }
        }
    }
}

impl ValueStrip {
    /// # Safety
    /// The pointers must be good for what the fields say: `rows` rows of `positions` weights, values of `first +
    /// positions` positions, and `rows * dims` floats of sums that nothing else refers to.
    pub unsafe fn run<E: Element>(&self, path: Path) {
        sixteen::run(path, CompiledValueStrip::<E>(self, PhantomData));
    }

    /// # Safety
    /// As for `run`, with `R` rows.
    #[inline(always)]
    unsafe fn dims<S: Lanes, E: Element, const R: usize, const N: usize>(&self, s: S) {
        let mut dim = 0;
        // SAFETY: `dims` is a multiple of 16 and each step takes no more than what is left.
        unsafe {
            while dim + N * LANES <= self.dims {
                self.step::<S, E, R, N>(s, dim);
                dim += N * LANES;
            }
            while dim < self.dims {
                self.step::<S, E, R, 1>(s, dim);
                dim += LANES;
            }
        }
    }

    /// # Safety
    /// As for `run`, with `R` rows and at least `dim + 16 N` dimensions.
    #[inline(always)]
    unsafe fn step<S: Lanes, E: Element, const R: usize, const N: usize>(&self, s: S, dim: usize) {
        // SAFETY: the offsets stay within the rows and positions that the caller vouches for.
        unsafe {
            let out = self.out.add(dim);
            let mut sums = [[s.splat(0.0); N]; R];
            for r in 0..R {
                for n in 0..N {
                    sums[r][n] = s.load(&*out.add(r * self.dims + n * LANES).cast());
                }
            }
            let mut from = self.values.add((self.first * self.dims + dim) * E::BYTES);
            for position in 0..self.positions {
                let mut value = [s.splat(0.0); N];
                for n in 0..N {
                    value[n] = E::load(s, from.add(n * LANES * E::BYTES));
                    if self.ahead > 0 {
                        s.prefetch(from.wrapping_add(n * LANES * E::BYTES + self.ahead));
                    }
                }
                for r in 0..R {
                    let weight = s.splat(*self.weights.add(r * SCORES_STRIDE + position));
                    for n in 0..N {
                        sums[r][n] = s.fma(weight, value[n], sums[r][n]);
                    }
                }
                from = from.wrapping_add(self.dims * E::BYTES);
            }
            for r in 0..R {
                for n in 0..N {
                    s.store(sums[r][n], &mut *out.add(r * self.dims + n * LANES).cast());
                }
            }
        }
    }
}
