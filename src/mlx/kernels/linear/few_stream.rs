//! An affine block whose numbers do not fill their words, times a few rows.
//!
//! Numbers of 3, 5 and 6 bits may begin in one word and end in the next. After some of them, which make whole words, all
//! begins again: these are taken apart with shifts that the compiler knows.

use super::arrange::{Chunk, PIECE};
use super::few::{AHEAD, add_group};
use super::layout::{BLOCK, Layout, WORDS};
use crate::mlx::kernels::float::Float;
use crate::mlx::kernels::sixteen::{LANES, Lanes, Task};

/// Inputs that are taken apart together: a piece. Numbers of 6 bits then fill whole words, others after two runs.
const RUN: usize = PIECE;

/// An affine block of `BITS` bits (3, 5 or 6) times `ROWS` rows.
pub struct FewStream<'a, const BITS: usize, const ROWS: usize> {
    pub layout: Layout,
    pub scales: Float,
    pub data: &'a [u8],
    pub x: Chunk<'a>,
    /// `[ROWS][32]`, to which the products are added.
    pub totals: &'a mut [f32],
}

impl<const BITS: usize, const ROWS: usize> Task for FewStream<'_, BITS, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        // As in the kernel for other numbers: vectors and groups such that sums stay in registers.
        match (S::WIDE, ROWS) {
            (true, 1) => self.all_groups::<S, 2, 2>(s),
            (true, _) | (false, 1 | 2) => self.all_groups::<S, 2, 1>(s),
            (false, _) => self.all_groups::<S, 1, 1>(s),
        }
    }
}

impl<const BITS: usize, const ROWS: usize> FewStream<'_, BITS, ROWS> {
    #[inline(always)]
    fn all_groups<S: Lanes, const VECTORS: usize, const GROUPS: usize>(mut self, s: S) {
        let groups = self.layout.groups();
        assert!(self.data.len() == self.layout.block_bytes() && self.totals.len() == ROWS * BLOCK);
        assert!(self.x.rows == ROWS && self.x.values.len() == self.layout.inputs() * ROWS);
        assert!(self.x.sums.len() == groups * ROWS);
        assert!(self.layout.group_words() * 32 == self.layout.step() * BITS);
        let mut group = 0;
        while group + GROUPS <= groups {
            // SAFETY: the sizes were checked above.
            unsafe { self.groups::<S, VECTORS, GROUPS>(s, group) };
            group += GROUPS;
        }
        while group < groups {
            // SAFETY: as above.
            unsafe { self.groups::<S, VECTORS, 1>(s, group) };
            group += 1;
        }
    }

    /// The products of `GROUPS` groups from `first`.
    ///
    /// # Safety
    /// The sizes are those that `all_groups` checks, and the groups exist.
    #[inline(always)]
    unsafe fn groups<S: Lanes, const VECTORS: usize, const GROUPS: usize>(&mut self, s: S, first: usize) {
        let (bytes, size, step) = (self.layout.group_bytes(), self.scales.size(), self.layout.step());
        let data = self.data.as_ptr();
        for column in (0..BLOCK).step_by(VECTORS * LANES) {
            let mut sums = [[[s.splat(0.0); VECTORS]; ROWS]; GROUPS];
            for run in 0..step / RUN {
                for (index, sums) in sums.iter_mut().enumerate() {
                    let group = first + index;
                    let lines = data.wrapping_add(group * bytes + 2 * BLOCK * size + column * 4);
                    let x = self.x.values[(group * step + run * RUN) * ROWS..].as_ptr();
                    // SAFETY: the run is one of the group's, whose lines begin there; a run of inputs is a piece, which
                    // has values of each row.
                    unsafe {
                        if BITS.is_multiple_of(2) || run.is_multiple_of(2) {
                            let lines = lines.wrapping_add(run * RUN * BITS / 32 * WORDS);
                            Self::run_of::<S, VECTORS, 0>(s, lines, x, sums);
                        } else {
                            // The second of two runs begins in the middle of a word.
                            let lines = lines.wrapping_add((run - 1) * RUN * BITS / 32 * WORDS);
                            Self::run_of::<S, VECTORS, RUN>(s, lines, x, sums);
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

    /// Adds the products of a run of inputs, of which the first is number `FROM` of those whose words begin at `lines`.
    ///
    /// # Safety
    /// There are words for the run's numbers, and `[ROWS][RUN]` activations at `x`.
    #[inline(always)]
    unsafe fn run_of<S: Lanes, const VECTORS: usize, const FROM: usize>(
        s: S,
        lines: *const u8,
        x: *const f32,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        let mask = s.splat_word((1 << BITS) - 1);
        let mut words = [s.splat_word(0); VECTORS];
        for input in 0..RUN {
            let bit = (FROM + input) * BITS;
            let (word, shift) = (bit / 32, bit % 32);
            let splits = shift + BITS > 32;
            if input == 0 || shift == 0 {
                // SAFETY: the caller's promise.
                words = unsafe { Self::load::<S, VECTORS>(s, lines, word) };
            }
            let low = words;
            if splits {
                // SAFETY: a number that does not end in its word ends in the next.
                words = unsafe { Self::load::<S, VECTORS>(s, lines, word + 1) };
            }
            let mut weights = [s.splat(0.0); VECTORS];
            for (vector, weight) in weights.iter_mut().enumerate() {
                let mut number = s.shr(low[vector], shift as u32);
                if splits {
                    number = s.or(number, s.shl(words[vector], 32 - shift as u32));
                }
                *weight = s.to_float(s.and(number, mask));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                let value = s.splat(unsafe { *x.add(row * PIECE + input) });
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = s.fma(weight, value, *sum);
                }
            }
        }
    }

    /// Vectors of the line of words number `word`.
    ///
    /// # Safety
    /// There is such a line.
    #[inline(always)]
    unsafe fn load<S: Lanes, const VECTORS: usize>(s: S, lines: *const u8, word: usize) -> [S::W; VECTORS] {
        let mut words = [s.splat_word(0); VECTORS];
        for (vector, words) in words.iter_mut().enumerate() {
            let at = lines.wrapping_add(word * WORDS + vector * LANES * 4);
            s.prefetch(at.wrapping_add(AHEAD));
            // SAFETY: the caller's promise.
            *words = s.load_words(unsafe { &*at.cast() });
        }
        words
    }
}
