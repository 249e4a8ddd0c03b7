//! A block times a few rows: weights go from memory through registers into the products.

use std::ops::Range;

use super::arrange::{Chunk, PIECE};
use super::layout::{BLOCK, Layout, WORDS};
use crate::mlx::kernels::float::Float;
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
                // SAFETY: the group and the columns exist; the sizes were checked.
                unsafe {
                    let at = data.add(group * bytes);
                    let x_sums = self.x.sums.as_ptr().add(group * ROWS);
                    add_group(s, self.scales, at, column, sums, x_sums, self.totals.as_mut_ptr());
                }
            }
        }
    }
}

/// Adds what a group gives to the totals of some columns, from `column` on: its sums of numbers times activations, with
/// its scales and biases, which lie at `group`. Asks for those of a later group.
///
/// # Safety
/// A group's 64 scales and biases lie at `group`, `ROWS` sums of activations at `x_sums` and `[ROWS][32]` totals at
/// `totals`, which nothing else refers to; the columns are in the block.
#[inline(always)]
pub unsafe fn add_group<S: Lanes, const VECTORS: usize, const ROWS: usize>(
    s: S,
    float: Float,
    group: *const u8,
    column: usize,
    sums: [[S::V; VECTORS]; ROWS],
    x_sums: *const f32,
    totals: *mut f32,
) {
    let size = float.size();
    for ahead in (0..2 * VECTORS * LANES * size).step_by(64) {
        s.prefetch(group.wrapping_add(2 * column * size + AHEAD + ahead));
    }
    for vector in 0..VECTORS {
        let column = column + vector * LANES;
        // SAFETY: the caller's promise.
        unsafe {
            let scales = group.add(column * size);
            let scale = load(s, float, scales);
            let bias = load(s, float, scales.add(BLOCK * size));
            for (row, sums) in sums.iter().enumerate() {
                let total = &mut *totals.add(row * BLOCK + column).cast();
                let with_bias = s.fma(bias, s.splat(*x_sums.add(row)), s.load(total));
                s.store(s.fma(scale, sums[vector], with_bias), total);
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

/// Lines whose halves are computed one after the other: they stay in the first-level cache.
const LINES: usize = 256;

/// `BLOCKS` neighbouring dense blocks times `ROWS` rows.
///
/// Each output is one chain of products, and a chain waits for itself: of one block there are too few to keep up
/// with memory when elements are small.
pub struct FewDense<'a, const ROWS: usize, const BLOCKS: usize> {
    pub layout: Layout,
    pub float: Float,
    /// The blocks, one after the other.
    pub data: &'a [u8],
    pub x: Chunk<'a>,
    /// `[BLOCKS][ROWS][32]`, to which the products are added.
    pub totals: &'a mut [f32],
}

impl<const ROWS: usize, const BLOCKS: usize> Task for FewDense<'_, ROWS, BLOCKS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let bytes = self.layout.block_bytes();
        assert!(self.data.len() == BLOCKS * bytes && self.totals.len() == BLOCKS * ROWS * BLOCK);
        let padded = self.layout.inputs().next_multiple_of(PIECE);
        assert!(self.x.rows == ROWS && self.x.values.len() == padded * ROWS);
        match self.float {
            Float::F32 => self.elements(s, Float::F32),
            Float::F16 => self.elements(s, Float::F16),
            Float::Bf16 => self.elements(s, Float::Bf16),
        }
    }
}

impl<const ROWS: usize, const BLOCKS: usize> FewDense<'_, ROWS, BLOCKS> {
    /// With a constant `float`. Both halves of a line at once where the sums then stay in registers.
    #[inline(always)]
    fn elements<S: Lanes>(mut self, s: S, float: Float) {
        let inputs = self.layout.inputs();
        if S::WIDE || ROWS <= 2 {
            self.halves::<S, 2>(s, float, 0, 0..inputs);
            return;
        }
        for start in (0..inputs).step_by(LINES) {
            let lines = start..inputs.min(start + LINES);
            self.halves::<S, 1>(s, float, 0, lines.clone());
            self.halves::<S, 1>(s, float, 1, lines);
        }
    }

    /// The halves `first..first + HALVES` of the lines of some inputs.
    #[inline(always)]
    fn halves<S: Lanes, const HALVES: usize>(
        &mut self,
        s: S,
        float: Float,
        first: usize,
        inputs: Range<usize>,
    ) {
        let line = BLOCK * float.size();
        let mut sums = [[[s.splat(0.0); HALVES]; ROWS]; BLOCKS];
        for (sums, totals) in sums.as_flattened_mut().iter_mut().zip(self.totals.as_chunks::<BLOCK>().0) {
            for (half, sum) in sums.iter_mut().enumerate() {
                let mut lanes = [0.0; LANES];
                for (lane, value) in lanes.iter_mut().enumerate() {
                    *value = totals[place(float, first + half, lane)];
                }
                *sum = s.load(&lanes);
            }
        }
        assert!(inputs.end <= self.layout.inputs());
        let bytes = self.layout.block_bytes();
        for input in inputs {
            let mut weights = [[s.splat(0.0); HALVES]; BLOCKS];
            for (block, weights) in weights.iter_mut().enumerate() {
                let at = self.data.as_ptr().wrapping_add(block * bytes + input * line);
                // What comes behind a block's end is its neighbour, which is read meanwhile: the one to ask for
                // comes behind all of these blocks.
                let far = if input * line + AHEAD < bytes { AHEAD } else { AHEAD + (BLOCKS - 1) * bytes };
                for ahead in (0..line).step_by(64) {
                    s.prefetch(at.wrapping_add(far + ahead));
                }
                for (half, weights) in weights.iter_mut().enumerate() {
                    // SAFETY: `run` saw that there are as many blocks, and the input is one of the layout's.
                    *weights = unsafe { half_line(s, float, at, first + half) };
                }
            }
            let x = self.x.values.as_ptr().wrapping_add(input / PIECE * ROWS * PIECE + input % PIECE);
            for row in 0..ROWS {
                // SAFETY: the input's piece has values of each row.
                let value = s.splat(unsafe { *x.add(row * PIECE) });
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    for (sum, weights) in sums[row].iter_mut().zip(weights) {
                        *sum = s.fma(weights, value, *sum);
                    }
                }
            }
        }
        for (sums, totals) in sums.as_flattened().iter().zip(self.totals.as_chunks_mut::<BLOCK>().0) {
            for (half, sum) in sums.iter().enumerate() {
                let mut lanes = [0.0; LANES];
                s.store(*sum, &mut lanes);
                for (lane, value) in lanes.into_iter().enumerate() {
                    totals[place(float, first + half, lane)] = value;
                }
            }
        }
    }
}

/// Half of a line of 32 elements: the first and the last sixteen, or, of bfloat16, those at even and at odd places.
/// Those are one operation away from float32, others two.
///
/// # Safety
/// There is a line at `line`.
#[inline(always)]
unsafe fn half_line<S: Lanes>(s: S, float: Float, line: *const u8, half: usize) -> S::V {
    // SAFETY: the caller's promise.
    unsafe {
        match float {
            Float::F32 | Float::F16 => load(s, float, line.add(half * LANES * float.size())),
            Float::Bf16 => {
                let pairs = s.load_words(&*line.cast());
                s.with_bits(if half == 0 {
                    s.shl(pairs, 16)
                } else {
                    s.and(pairs, s.splat_word(0xffff_0000))
                })
            }
        }
    }
}

/// The output of a lane of half of a line.
#[inline(always)]
fn place(float: Float, half: usize, lane: usize) -> usize {
    match float {
        Float::F32 | Float::F16 => half * LANES + lane,
        Float::Bf16 => 2 * lane + half,
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
