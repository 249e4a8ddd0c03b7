//! The inner loops of few rows over affine-quantised keys and values, which stay in registers between the words that
//! they are packed in and the products.
//!
//! The arithmetic is that of [`super::micro`] over converted numbers, operation by operation, so that it does not
//! matter for any bit which of the two a row went through.

// Arrays of registers are indexed by constants after unrolling.
#![allow(clippy::needless_range_loop)]

use super::affine::{Affine, HALVES, ROW};
use super::micro::{SCORES_STRIDE, ScoreStrip, ValueStrip};
use super::shape::{GROUP, KvShape};
use crate::mlx::kernels::sixteen::{LANES, Lanes, Task};

/// The most groups of a value's dimensions whose scales fit on the stack.
pub const MOST_GROUPS: usize = 32;

/// Runs `$body` for each number `$i` of a word, written out: only so do compilers know every shift.
macro_rules! for_fields {
    ([$($n:literal)*] $per_word:expr, $i:ident, $body:block) => {
        $({
            let $i: usize = $n;
            if $i < $per_word $body
        })*
    };
    ($per_word:expr, |$i:ident| $body:block) => {
        for_fields!([0 1 2 3 4 5 6 7] $per_word, $i, $body)
    };
}

/// A strip's scores against affine keys of `BITS` bits.
pub struct AffineScores<'a, const BITS: u32> {
    pub strip: &'a ScoreStrip,
    pub shape: &'a KvShape,
}

impl<const BITS: u32> Task for AffineScores<'_, BITS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        // SAFETY: whoever makes these vouches for the strip's pointers, as for `ScoreStrip::run`.
        unsafe {
            match (S::WIDE, self.strip.rows) {
                (true, 12) => self.groups::<S, 12, 1>(s),
                (true, 6) => self.groups::<S, 6, 2>(s),
                (true, 4) => self.groups::<S, 4, 4>(s),
                (true, 3) => self.groups::<S, 3, 4>(s),
                (true, 2) => self.groups::<S, 2, 4>(s),
                (true, _) => self.groups::<S, 1, 4>(s),
                (false, 6) => self.groups::<S, 6, 1>(s),
                (false, 4) => self.groups::<S, 4, 1>(s),
                (false, 3) => self.groups::<S, 3, 1>(s),
                (false, 2) => self.groups::<S, 2, 1>(s),
                (false, _) => self.groups::<S, 1, 2>(s),
            }
        }
    }
}

impl<const BITS: u32> AffineScores<'_, BITS> {
    /// Takes `N` groups of sixteen keys at a time, then one by one.
    ///
    /// # Safety
    /// As for `ScoreStrip::run`, with `R` rows.
    #[inline(always)]
    unsafe fn groups<S: Lanes, const R: usize, const N: usize>(&self, s: S) {
        let mut done = 0;
        // SAFETY: both calls stay within the strip's groups.
        unsafe {
            while done + N <= self.strip.groups {
                self.step::<S, R, N>(s, done);
                done += N;
            }
            while done < self.strip.groups {
                self.step::<S, R, 1>(s, done);
                done += 1;
            }
        }
    }

    /// # Safety
    /// As for `ScoreStrip::run`, with `R` rows and at least `at + N` groups of sixteen keys.
    #[inline(always)]
    unsafe fn step<S: Lanes, const R: usize, const N: usize>(&self, s: S, at: usize) {
        let strip = self.strip;
        let per_word = Affine::<BITS>::PER_WORD;
        let group = self.shape.quantised_group();
        let group_bytes = 2 * HALVES + group / per_word * ROW;
        let key_bytes = self.shape.key_group_bytes();
        // SAFETY: the offsets are those of sixteen keys and of their scores, within what the caller vouches for.
        unsafe {
            let keys = strip.keys.add(at * key_bytes);
            let mut sums = [[s.splat(0.0); N]; R];
            for index in 0..strip.dims / group {
                let mut scales = [[s.splat(0.0); 2]; N];
                for n in 0..N {
                    let halves = keys.add(n * key_bytes + index * group_bytes);
                    scales[n] = [s.load_f16(&*halves.cast()), s.load_f16(&*halves.add(HALVES).cast())];
                }
                for row in 0..group / per_word {
                    let mut words = [s.splat_word(0); N];
                    for n in 0..N {
                        let from = keys.add(n * key_bytes + index * group_bytes + 2 * HALVES + row * ROW);
                        words[n] = s.load_words(&*from.cast());
                        if strip.prefetch {
                            s.prefetch(from.wrapping_add(N * key_bytes));
                        }
                    }
                    let queries = strip.queries.add((index * group + row * per_word) * R);
                    for_fields!(per_word, |i| {
                        let mut key = [s.splat(0.0); N];
                        for n in 0..N {
                            let number = s.field(words[n], i as u32 * BITS, Affine::<BITS>::MASK);
                            key[n] = s.fma(number, scales[n][0], scales[n][1]);
                        }
                        for r in 0..R {
                            let query = s.splat(*queries.add(i * R + r));
                            for n in 0..N {
                                sums[r][n] = s.fma(query, key[n], sums[r][n]);
                            }
                        }
                    });
                }
            }
            for r in 0..R {
                for n in 0..N {
                    s.store(sums[r][n], &mut *strip.out.add(r * SCORES_STRIDE + (at + n) * LANES).cast());
                }
            }
        }
    }
}

/// A strip's weighted sums of affine values of `BITS` bits. They have at most [`MOST_GROUPS`] groups.
pub struct AffineValues<'a, const BITS: u32> {
    pub strip: &'a ValueStrip,
    pub shape: &'a KvShape,
}

impl<const BITS: u32> Task for AffineValues<'_, BITS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        assert!(self.strip.dims / self.shape.quantised_group() <= MOST_GROUPS);
        // SAFETY: whoever makes these vouches for the strip's pointers, as for `ValueStrip::run`.
        unsafe {
            match (S::WIDE, self.strip.rows) {
                (true, 12) => self.dims::<S, 12, 2>(s),
                (true, 6) => self.dims::<S, 6, 4>(s),
                (true, 4) => self.dims::<S, 4, 4>(s),
                (true, 3) => self.dims::<S, 3, 4>(s),
                (true, 2) => self.dims::<S, 2, 4>(s),
                (true, _) => self.dims::<S, 1, 4>(s),
                (false, 6) => self.dims::<S, 6, 1>(s),
                (false, 4) => self.dims::<S, 4, 1>(s),
                (false, 3) => self.dims::<S, 3, 2>(s),
                (false, 2) => self.dims::<S, 2, 2>(s),
                (false, _) => self.dims::<S, 1, 4>(s),
            }
        }
    }
}

impl<const BITS: u32> AffineValues<'_, BITS> {
    /// # Safety
    /// As for `ValueStrip::run`, with `R` rows.
    #[inline(always)]
    unsafe fn dims<S: Lanes, const R: usize, const N: usize>(&self, s: S) {
        let vectors = self.strip.dims / LANES;
        // SAFETY: `dims` is a multiple of 16 and each step takes no more than what is left.
        unsafe {
            if vectors.is_multiple_of(N) {
                for vector in (0..vectors).step_by(N) {
                    self.step::<S, R, N>(s, vector * LANES);
                }
            } else if vectors.is_multiple_of(2) {
                for vector in (0..vectors).step_by(2) {
                    self.step::<S, R, 2>(s, vector * LANES);
                }
            } else {
                for vector in 0..vectors {
                    self.step::<S, R, 1>(s, vector * LANES);
                }
            }
        }
    }

    /// `N` is 1, 2 or 4 and divides the vectors of a position and those before `dim`: then the `N` vectors are in one
    /// row of words.
    ///
    /// # Safety
    /// As for `ValueStrip::run`, with `R` rows and at least `dim + 16 N` dimensions.
    #[inline(always)]
    unsafe fn step<S: Lanes, const R: usize, const N: usize>(&self, s: S, dim: usize) {
        let strip = self.strip;
        let per_word = Affine::<BITS>::PER_WORD;
        let (vectors, group_vectors) = (strip.dims / LANES, self.shape.quantised_group() / LANES);
        let groups = vectors / group_vectors;
        let mut group_of = [0; N];
        for n in 0..N {
            group_of[n] = (dim / LANES + n) / group_vectors;
        }
        let bytes = self.shape.value_group_bytes();
        let end = strip.first + strip.positions;
        // SAFETY: the offsets stay within the rows and positions that the caller vouches for; sixteen positions lie
        // together as a whole.
        unsafe {
            let out = strip.out.add(dim);
            let mut sums = [[s.splat(0.0); N]; R];
            for r in 0..R {
                for n in 0..N {
                    sums[r][n] = s.load(&*out.add(r * strip.dims + n * LANES).cast());
                }
            }
            for sixteen in strip.first / GROUP..end.div_ceil(GROUP) {
                let from = strip.values.add(sixteen * bytes);
                // Scales and biases `[position][group]` in float32.
                let mut pairs = [[0.0; LANES]; MOST_GROUPS * 2];
                for (index, pairs) in pairs[..groups * 2].iter_mut().enumerate() {
                    s.store(s.load_f16(&*from.add(index * HALVES).cast()), pairs);
                }
                let pairs = pairs.as_flattened().as_chunks::<2>().0;
                let rows = from.add(groups * 2 * HALVES);
                let start = sixteen * GROUP;
                for position in strip.first.max(start)..end.min(start + GROUP) {
                    let vector = (position - start) * vectors + dim / LANES;
                    let row = rows.add(vector / per_word * ROW);
                    let mut words = s.load_words(&*row.cast());
                    if strip.ahead > 0 {
                        s.prefetch(row.wrapping_add(strip.ahead));
                    }
                    let field = vector % per_word;
                    if field > 0 {
                        words = s.shr(words, field as u32 * BITS);
                    }
                    let mut value = [s.splat(0.0); N];
                    for n in 0..N {
                        let [scale, bias] = *pairs.get_unchecked((position - start) * groups + group_of[n]);
                        let number = s.field(words, n as u32 * BITS, Affine::<BITS>::MASK);
                        value[n] = s.fma(number, s.splat(scale), s.splat(bias));
                    }
                    let weights = strip.weights.add(position - strip.first);
                    for r in 0..R {
                        let weight = s.splat(*weights.add(r * SCORES_STRIDE));
                        for n in 0..N {
                            sums[r][n] = s.fma(weight, value[n], sums[r][n]);
                        }
                    }
                }
            }
            for r in 0..R {
                for n in 0..N {
                    s.store(sums[r][n], &mut *out.add(r * strip.dims + n * LANES).cast());
                }
            }
        }
    }
}
