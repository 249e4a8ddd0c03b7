//! A block times a few rows: weights go from memory through registers into the products.

use super::arrange::{Chunk, PIECE};
use super::layout::{BLOCK, Float, Layout, WORDS};
use crate::mlx::kernels::sixteen::{LANES, Lanes, Task};

/// How far ahead of the products the weights are asked for, in bytes.
pub const AHEAD: usize = 8192;

/// An affine block of `BITS` bits (2, 4 or 8) times `ROWS` rows.
pub struct FewAffine<'a, const BITS: u32, const ROWS: usize> {
    pub layout: Layout,
    pub scales: Float,
    pub data: &'a [u8],
    pub x: Chunk<'a>,
    /// `[ROWS][32]`, to which the products are added.
    pub totals: &'a mut [f32],
}

impl<const BITS: u32, const ROWS: usize> Task for FewAffine<'_, BITS, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        // Vectors of outputs at a time, such that the sums of a group stay in registers; with few of
        // them, two groups at once, because a chain of sums waits for itself.
        match (S::WIDE, ROWS) {
            (true, 1) => self.all_groups::<S, 2, 2>(s),
            (true, _) | (false, 1 | 2) => self.all_groups::<S, 2, 1>(s),
            (false, _) => self.all_groups::<S, 1, 1>(s),
        }
    }
}

impl<const BITS: u32, const ROWS: usize> FewAffine<'_, BITS, ROWS> {
    #[inline(always)]
    fn all_groups<S: Lanes, const VECTORS: usize, const GROUPS: usize>(self, s: S) {
        let groups = self.layout.groups();
        assert!(self.data.len() == self.layout.block_bytes() && self.totals.len() == ROWS * BLOCK);
        assert!(self.x.rows == ROWS && self.x.values.len() == self.layout.inputs() * ROWS);
        assert!(self.x.sums.len() == groups * ROWS);
        let mut this = self;
        let mut group = 0;
        while group + GROUPS <= groups {
            // SAFETY: the sizes were checked above.
            unsafe { this.groups::<S, VECTORS, GROUPS>(s, group) };
            group += GROUPS;
        }
        while group < groups {
            // SAFETY: as above.
            unsafe { this.groups::<S, VECTORS, 1>(s, group) };
            group += 1;
        }
    }

    /// The products of `GROUPS` groups from `first`.
    ///
    /// # Safety
    /// The sizes are those that `all_groups` checks, and the groups exist.
    #[inline(always)]
    unsafe fn groups<S: Lanes, const VECTORS: usize, const GROUPS: usize>(&mut self, s: S, first: usize) {
        let (bytes, size) = (self.layout.group_bytes(), self.scales.size());
        let group_words = self.layout.group_words();
        let word_inputs = (32 / BITS) as usize;
        let data = self.data.as_ptr();
        for column in (0..BLOCK).step_by(VECTORS * LANES) {
            let mut sums = [[[s.splat(0.0); VECTORS]; ROWS]; GROUPS];
            for word in 0..group_words {
                for (index, sums) in sums.iter_mut().enumerate() {
                    let group = first + index;
                    // SAFETY: the word is in the group, the column in the block.
                    let line =
                        unsafe { data.add(group * bytes + 2 * BLOCK * size + word * WORDS + column * 4) };
                    // Loops and not `from_fn` or `map`, which may be compiled apart, without the instructions.
                    let mut words = [s.splat_word(0); VECTORS];
                    for (vector, words) in words.iter_mut().enumerate() {
                        s.prefetch(line.wrapping_add(AHEAD + vector * LANES * 4));
                        // SAFETY: the vector's columns are in the block.
                        *words = s.load_words(unsafe { &*line.add(vector * LANES * 4).cast() });
                    }
                    let input = (group * group_words + word) * word_inputs;
                    // SAFETY: the inputs of a word are in one piece.
                    let mut x =
                        unsafe { self.x.values.as_ptr().add(input / PIECE * ROWS * PIECE + input % PIECE) };
                    for half in 0..2 {
                        for place in 0..16 / BITS {
                            let mut weights = [s.splat(0.0); VECTORS];
                            for (weight, words) in weights.iter_mut().zip(words) {
                                *weight = number::<S, BITS>(s, words, place);
                            }
                            for (row, sums) in sums.iter_mut().enumerate() {
                                // SAFETY: a piece has values of each row.
                                let value = s.splat(unsafe { *x.add(row * PIECE) });
                                for (sum, weight) in sums.iter_mut().zip(weights) {
                                    *sum = s.fma(weight, value, *sum);
                                }
                            }
                            x = x.wrapping_add(1);
                        }
                        if half == 0 {
                            for words in &mut words {
                                *words = s.shr(*words, 16);
                            }
                        }
                    }
                }
            }
            for (index, sums) in sums.into_iter().enumerate() {
                let group = first + index;
                for ahead in (0..2 * VECTORS * LANES * size).step_by(64) {
                    s.prefetch(data.wrapping_add(group * bytes + 2 * column * size + AHEAD + ahead));
                }
                for vector in 0..VECTORS {
                    let column = column + vector * LANES;
                    // SAFETY: the column is in the block, the group's first 64 elements are its scales and
                    // biases, and totals has `BLOCK` floats a row.
                    unsafe {
                        let scales = data.add(group * bytes + column * size);
                        let scale = load(s, self.scales, scales);
                        let bias = load(s, self.scales, scales.add(BLOCK * size));
                        for (row, sums) in sums.iter().enumerate() {
                            let total = &mut *self.totals.as_mut_ptr().add(row * BLOCK + column).cast();
                            let sum = s.splat(*self.x.sums.get_unchecked(group * ROWS + row));
                            let with_bias = s.fma(bias, sum, s.load(total));
                            s.store(s.fma(scale, sums[vector], with_bias), total);
                        }
                    }
                }
            }
        }
    }
}

/// The numbers of `BITS` bits at `place` in the low halves of words, times the power of two of the place.
#[inline(always)]
pub fn number<S: Lanes, const BITS: u32>(s: S, words: S::W, place: u32) -> S::V {
    if BITS == 4 && place == 0 {
        return s.low_nibble(words);
    }
    s.to_float(s.and(words, s.splat_word(((1 << BITS) - 1) << (BITS * place))))
}

/// A dense block times `ROWS` rows.
pub struct FewDense<'a, const ROWS: usize> {
    pub layout: Layout,
    pub float: Float,
    pub data: &'a [u8],
    pub x: Chunk<'a>,
    /// `[ROWS][32]`, to which the products are added.
    pub totals: &'a mut [f32],
}

impl<const ROWS: usize> Task for FewDense<'_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        match (S::WIDE, ROWS) {
            (true, _) | (false, 1 | 2) => self.all_columns::<S, 2>(s),
            (false, _) => self.all_columns::<S, 1>(s),
        }
    }
}

impl<const ROWS: usize> FewDense<'_, ROWS> {
    #[inline(always)]
    fn all_columns<S: Lanes, const VECTORS: usize>(self, s: S) {
        assert!(self.data.len() == self.layout.block_bytes() && self.totals.len() == ROWS * BLOCK);
        let padded = self.layout.inputs().next_multiple_of(PIECE);
        assert!(self.x.rows == ROWS && self.x.values.len() == padded * ROWS);
        match self.float {
            Float::F32 => self.columns::<S, VECTORS>(s, Float::F32),
            Float::F16 => self.columns::<S, VECTORS>(s, Float::F16),
            Float::Bf16 => self.columns::<S, VECTORS>(s, Float::Bf16),
        }
    }

    #[inline(always)]
    fn columns<S: Lanes, const VECTORS: usize>(self, s: S, float: Float) {
        let (inputs, step) = (self.layout.inputs(), self.layout.step());
        let line = BLOCK * float.size();
        for first in (0..inputs).step_by(step) {
            for column in (0..BLOCK).step_by(VECTORS * LANES) {
                let totals = self.totals.as_mut_ptr();
                let place = |row: usize, vector: usize| row * BLOCK + column + vector * LANES;
                let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (vector, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: `totals` has `ROWS` rows of `BLOCK` floats.
                        *sum = s.load(unsafe { &*totals.add(place(row, vector)).cast() });
                    }
                }
                for input in first..inputs.min(first + step) {
                    let at = self.data.as_ptr().wrapping_add(input * line + column * float.size());
                    let x = self.x.values.as_ptr().wrapping_add(input / PIECE * ROWS * PIECE + input % PIECE);
                    for ahead in (0..VECTORS * LANES * float.size()).step_by(64) {
                        s.prefetch(at.wrapping_add(AHEAD + ahead));
                    }
                    // A loop and not `from_fn`, which is compiled apart and so without the instructions.
                    let mut weights = [s.splat(0.0); VECTORS];
                    for (vector, weights) in weights.iter_mut().enumerate() {
                        // SAFETY: the input is below `inputs` and the column is in the block.
                        *weights = unsafe { load(s, float, at.add(vector * LANES * float.size())) };
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: the input's piece has values of each row.
                        let value = s.splat(unsafe { *x.add(row * PIECE) });
                        for (sum, weight) in sums.iter_mut().zip(weights) {
                            *sum = s.fma(weight, value, *sum);
                        }
                    }
                }
                for (row, sums) in sums.iter().enumerate() {
                    for (vector, sum) in sums.iter().enumerate() {
                        // SAFETY: as where they were loaded.
                        s.store(*sum, unsafe { &mut *totals.add(place(row, vector)).cast() });
                    }
                }
            }
        }
    }
}

/// A vector of elements.
///
/// # Safety
/// There are as many elements at `from` as the vector has lanes.
#[inline(always)]
pub unsafe fn load<S: Lanes>(s: S, float: Float, from: *const u8) -> S::V {
    // SAFETY: the caller's promise.
    unsafe {
        match float {
            Float::F32 => s.load_f32(&*from.cast()),
            Float::F16 => s.load_f16(&*from.cast()),
            Float::Bf16 => s.load_bf16(&*from.cast()),
        }
    }
}
