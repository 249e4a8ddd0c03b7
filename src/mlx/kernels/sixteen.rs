//! Sixteen float32 at a time, whatever the width of the registers.
//!
//! Where the number of lanes is part of the arithmetic (partial sums, interleaved keys), it is sixteen on every
//! processor: one AVX-512 register, two of AVX2, four of NEON. So all paths give the same bits.

// Arrays of registers are indexed by constants after unrolling.
#![allow(clippy::needless_range_loop)]

use super::cpu::{Path, Work};
use super::exp::exp;
use super::simd::Simd;

/// Values in a [`Sixteen::V`].
pub const LANES: usize = 16;

/// Operations on sixteen lanes. The names mean what they mean in [`Simd`].
pub trait Lanes: Copy {
    /// Sixteen values.
    type V: Copy;
    /// Sixteen 32-bit words.
    type W: Copy;

    /// Whether sixteen lanes are one register: kernels then block for 32 registers of that size.
    const WIDE: bool;

    fn splat(self, value: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, value: Self::V, to: &mut [f32; LANES]);
    /// Little-endian numbers at any alignment.
    fn load_f32(self, from: &[u8; 64]) -> Self::V;
    fn load_f16(self, from: &[u8; 32]) -> Self::V;
    fn load_bf16(self, from: &[u8; 32]) -> Self::V;
    fn load_words(self, from: &[u8; 64]) -> Self::W;
    /// `(word >> shift) & mask` as a number; below 2^24, so that it is exact.
    fn field(self, words: Self::W, shift: u32, mask: u32) -> Self::V;
    /// The 32 bits from bit `shift` on of `low` followed by `high`, for a shift from 1 to 31.
    fn joined(self, low: Self::W, high: Self::W, shift: u32) -> Self::W;
    /// Entry `(word >> shift) mod N` of a table; N is a power of two.
    fn entry<const N: usize>(self, words: Self::W, shift: u32, table: &[f32; N]) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `yes` where a < b, else `no`.
    fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    fn exp(self, x: Self::V) -> Self::V;
    /// Asks for the cache line at `at`, which need not exist.
    fn prefetch(self, at: *const u8);
}

/// Sixteen lanes in `K` registers of an instruction set.
#[derive(Clone, Copy)]
pub struct Sixteen<S, const K: usize>(S);

/// One value for each register. A plain loop: the compiler unrolls it, and does not always inline closures.
macro_rules! registers {
    ($start:expr; $i:ident => $value:expr) => {{
        let mut out = [$start; K];
        for $i in 0..K {
            out[$i] = $value;
        }
        out
    }};
}

impl<S: Simd, const K: usize> Lanes for Sixteen<S, K> {
    type V = [S::F; K];
    type W = [S::I; K];

    const WIDE: bool = K == 1;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [self.0.splat(value); K]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        assert!(K * S::LANES == LANES);
        // SAFETY: K registers of the set's width are exactly the sixteen values.
        registers!(self.0.splat(0.0); i => unsafe { self.0.load(from.as_ptr().add(i * S::LANES)) })
    }

    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32; LANES]) {
        assert!(K * S::LANES == LANES);
        for i in 0..K {
            // SAFETY: as for `load`.
            unsafe { self.0.store(to.as_mut_ptr().add(i * S::LANES), value[i]) }
        }
    }

    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> Self::V {
        assert!(K * S::LANES == LANES);
        // SAFETY: as for `load`; loads take any alignment.
        registers!(self.0.splat(0.0); i => unsafe { self.0.load(from.as_ptr().cast::<f32>().add(i * S::LANES)) })
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::V {
        assert!(K * S::LANES == LANES);
        // SAFETY: K registers take exactly sixteen numbers of two bytes.
        registers!(self.0.splat(0.0); i => unsafe { self.0.load_f16(from.as_ptr().add(i * S::LANES * 2)) })
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::V {
        assert!(K * S::LANES == LANES);
        // SAFETY: as for `load_f16`.
        registers!(self.0.splat(0.0); i => unsafe { self.0.load_bf16(from.as_ptr().add(i * S::LANES * 2)) })
    }

    #[inline(always)]
    fn load_words(self, from: &[u8; 64]) -> Self::W {
        assert!(K * S::LANES == LANES);
        // SAFETY: as for `load_f32`.
        registers!(self.0.splat_word(0); i => unsafe { self.0.load_words(from.as_ptr().add(i * S::LANES * 4)) })
    }

    #[inline(always)]
    fn field(self, words: Self::W, shift: u32, mask: u32) -> Self::V {
        let mask = self.0.splat_word(mask);
        registers!(self.0.splat(0.0); i => self.0.to_float(self.0.and(self.0.shr(words[i], shift), mask)))
    }

    #[inline(always)]
    fn joined(self, low: Self::W, high: Self::W, shift: u32) -> Self::W {
        registers!(low[0]; i => self.0.or(self.0.shr(low[i], shift), self.0.shl(high[i], 32 - shift)))
    }

    #[inline(always)]
    fn entry<const N: usize>(self, words: Self::W, shift: u32, table: &[f32; N]) -> Self::V {
        registers!(self.0.splat(0.0); i => self.0.entry(table, self.0.shr(words[i], shift)))
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        registers!(self.0.splat(0.0); i => self.0.fma(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        registers!(self.0.splat(0.0); i => self.0.add(a[i], b[i]))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        registers!(self.0.splat(0.0); i => self.0.sub(a[i], b[i]))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        registers!(self.0.splat(0.0); i => self.0.mul(a[i], b[i]))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        registers!(self.0.splat(0.0); i => self.0.div(a[i], b[i]))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        registers!(self.0.splat(0.0); i => self.0.max(a[i], b[i]))
    }

    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        registers!(self.0.splat(0.0); i => self.0.select_less(a[i], b[i], yes[i], no[i]))
    }

    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        registers!(self.0.splat(0.0); i => exp(self.0, x[i]))
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        self.0.prefetch(at);
    }
}

/// A computation over sixteen lanes that is compiled once for each instruction set. Its `run`, and all in it that
/// touches lanes, must be `#[inline(always)]`, or the instructions are not inlined.
pub trait Task {
    type Output;
    fn run<S: Lanes>(self, lanes: S) -> Self::Output;
}

/// Runs a task with the instructions of `path`.
pub fn run<T: Task>(path: Path, task: T) -> T::Output {
    path.run(Adapted(task))
}

/// A task as work for a [`Path`].
struct Adapted<T>(T);

impl<T: Task> Work for Adapted<T> {
    type Output = T::Output;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> T::Output {
        if S::LANES == 16 {
            self.0.run(Sixteen::<S, 1>(simd))
        } else if S::LANES == 8 {
            self.0.run(Sixteen::<S, 2>(simd))
        } else {
            self.0.run(Sixteen::<S, 4>(simd))
        }
    }
}

/// tanh, within 4 units in the last place; ±1 far out, NaN for NaN.
#[inline(always)]
pub fn tanh<S: Lanes>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let size = s.max(x, s.sub(zero, x));
    // Near 0: x + x³ P(x²), because the other form would cancel.
    let square = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.fma(p, square, s.splat(coefficient));
    }
    let near = s.fma(s.mul(square, x), p, x);
    let e = s.exp(s.mul(size, s.splat(-2.0)));
    let far = s.div(s.sub(s.splat(1.0), e), s.add(s.splat(1.0), e));
    let far = s.select_less(x, zero, s.sub(zero, far), far);
    // The comparison is false for NaN, and `far` is NaN then.
    s.select_less(size, s.splat(0.625), near, far)
}

/// The sum of all lanes by a fixed tree: lane i + lane i+8, then +4, +2, +1.
#[inline(always)]
pub fn sum_of_lanes<S: Lanes>(s: S, value: S::V) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(value, &mut lanes);
    tree(lanes)
}

/// The sum of sixteen numbers by the same tree.
#[inline(always)]
pub fn tree(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// The largest of lanes that are not NaN.
#[inline(always)]
pub fn largest_lane<S: Lanes>(s: S, value: S::V) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(value, &mut lanes);
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] { lanes[i + width] } else { lanes[i] };
        }
    }
    lanes[0]
}
