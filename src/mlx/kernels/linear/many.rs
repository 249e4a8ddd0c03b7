//! A block times many rows: each group of weights is unpacked once and meets all rows, in tiles
//! whose sums stay in registers.

use std::mem::MaybeUninit;

use super::arrange::{Chunk, PIECE};
use super::few::AHEAD;
use super::layout::{BLOCK, Format, Layout};
use super::panel::{unpack, widen};
use crate::mlx::kernels::sixteen::{LANES, Lanes, Task};

/// The longest step of a layout.
const LONGEST: usize = 128;

/// A block times the rows of a chunk.
pub struct Many<'a> {
    pub layout: Layout,
    pub data: &'a [u8],
    pub x: Chunk<'a>,
    /// `[rows][32]`, to which the products are added.
    pub totals: &'a mut [f32],
    /// Where the rows of the products will go, and the floats from one to the next: a place to ask for
    /// in time. None when the rows do not lie together.
    pub out: Option<(*const f32, usize)>,
}

impl Task for Many<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let Many { layout, data, x, totals, out } = self;
        let padded = layout.inputs().next_multiple_of(PIECE);
        assert!(data.len() == layout.block_bytes() && totals.len() == x.rows * BLOCK);
        assert!(x.values.len() == padded * x.rows && layout.step() <= LONGEST);
        let mut panel = MaybeUninit::<[f32; LONGEST * BLOCK]>::uninit();
        let panel: *mut f32 = panel.as_mut_ptr().cast();
        let (step, bytes) = (layout.step(), layout.group_bytes());
        for group in 0..layout.groups() {
            let first = group * step;
            let inputs = step.min(layout.inputs() - first);
            let from = data[group * bytes..].as_ptr();
            for line in (0..bytes).step_by(64) {
                s.prefetch(from.wrapping_add(AHEAD + line));
            }
            let mut tiles = Tiles {
                panel,
                inputs,
                x: x.values[first * x.rows..].as_ptr(),
                rows: x.rows,
                totals: totals.as_mut_ptr(),
                out: out.filter(|_| group + 1 == layout.groups()),
            };
            // SAFETY: the group's bytes are in `data`, and the panel takes the longest step. The
            // tiles' pointers are as their members say.
            unsafe {
                match layout.format() {
                    Format::Dense(float) => {
                        widen(s, float, from, inputs * BLOCK, panel);
                        tiles.all(s, Dense);
                    }
                    Format::Affine { bits, scales, .. } => {
                        let lines = from.add(2 * BLOCK * scales.size());
                        unpack(s, bits, lines, inputs, panel);
                        let mut factors = [0.0; 2 * BLOCK];
                        widen(s, scales, from, 2 * BLOCK, factors.as_mut_ptr());
                        let sums = &x.sums[group * x.rows..][..x.rows];
                        tiles.all(s, Affine { factors: &factors, sums });
                    }
                }
            }
        }
    }
}

/// What becomes of a step's sums of products.
trait Tail: Copy {
    /// The sums before the step.
    ///
    /// # Safety
    /// `total` is in the totals.
    unsafe fn start<S: Lanes>(self, s: S, total: *const f32) -> S::V;
    /// Brings the sums of a step for the outputs from `column` of row `row` into the totals.
    ///
    /// # Safety
    /// `total` is that place of the totals; row and columns exist.
    unsafe fn finish<S: Lanes>(self, s: S, row: usize, column: usize, sums: S::V, total: *mut f32);
}

/// The chain goes on from the totals.
#[derive(Clone, Copy)]
struct Dense;

impl Tail for Dense {
    #[inline(always)]
    unsafe fn start<S: Lanes>(self, s: S, total: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        s.load(unsafe { &*total.cast() })
    }
    #[inline(always)]
    unsafe fn finish<S: Lanes>(self, s: S, _row: usize, _column: usize, sums: S::V, total: *mut f32) {
        // SAFETY: the caller's promise.
        s.store(sums, unsafe { &mut *total.cast() });
    }
}

/// The group's sum of activations is multiplied by the bias, that of the products by the scale.
#[derive(Clone, Copy)]
struct Affine<'a> {
    /// Scales, then biases.
    factors: &'a [f32; 2 * BLOCK],
    /// Of the activations, for each row.
    sums: &'a [f32],
}

impl Tail for Affine<'_> {
    #[inline(always)]
    unsafe fn start<S: Lanes>(self, s: S, _total: *const f32) -> S::V {
        s.splat(0.0)
    }
    #[inline(always)]
    unsafe fn finish<S: Lanes>(self, s: S, row: usize, column: usize, sums: S::V, total: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = s.load(&*self.factors.as_ptr().add(column).cast());
            let bias = s.load(&*self.factors.as_ptr().add(BLOCK + column).cast());
            let total = &mut *total.cast();
            let with_bias = s.fma(bias, s.splat(*self.sums.get_unchecked(row)), s.load(total));
            s.store(s.fma(scale, sums, with_bias), total);
        }
    }
}

/// One step of a block and all rows of a chunk.
struct Tiles {
    /// `[inputs][BLOCK]`
    panel: *const f32,
    inputs: usize,
    /// `[inputs / PIECE][rows][PIECE]`
    x: *const f32,
    rows: usize,
    /// `[rows][BLOCK]`
    totals: *mut f32,
    out: Option<(*const f32, usize)>,
}

impl Tiles {
    /// # Safety
    /// The members point to what they say, and the tail fits.
    #[inline(always)]
    unsafe fn all<S: Lanes, T: Tail>(&mut self, s: S, tail: T) {
        // SAFETY: the caller's promise.
        unsafe {
            if S::WIDE {
                self.sized::<S, T, 2>(s, tail, 12);
            } else {
                self.sized::<S, T, 1>(s, tail, 6);
            }
        }
    }

    /// Cuts the rows into tiles of about equal height, at most `highest`.
    ///
    /// # Safety
    /// As `all`.
    #[inline(always)]
    unsafe fn sized<S: Lanes, T: Tail, const VECTORS: usize>(&mut self, s: S, tail: T, highest: usize) {
        let tiles = self.rows.div_ceil(highest);
        for column in (0..BLOCK).step_by(VECTORS * LANES) {
            for tile in 0..tiles {
                let row = self.rows * tile / tiles;
                let height = self.rows * (tile + 1) / tiles - row;
                if let Some((out, width)) = self.out {
                    for row in row..row + height {
                        let at = out.wrapping_add(row * width + column);
                        s.prefetch_to_write(at.cast());
                        s.prefetch_to_write(at.wrapping_add(VECTORS * LANES - 1).cast());
                    }
                }
                macro_rules! choose {
                    ($($height:literal)*) => {
                        match height {
                            // SAFETY: the rows and columns exist.
                            $($height if $height <= highest => unsafe {
                                self.tile::<S, T, VECTORS, $height>(s, tail, row, column)
                            },)*
                            _ => unreachable!("tiles are at most twelve rows high"),
                        }
                    };
                }
                choose!(1 2 3 4 5 6 7 8 9 10 11 12);
            }
        }
    }

    /// # Safety
    /// As `all`; the rows from `row` and the columns from `column` exist.
    #[inline(always)]
    unsafe fn tile<S: Lanes, T: Tail, const VECTORS: usize, const ROWS: usize>(
        &mut self,
        s: S,
        tail: T,
        row: usize,
        column: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let first = self.totals.wrapping_add(row * BLOCK + column);
            let total = |r: usize, vector: usize| first.wrapping_add(r * BLOCK + vector * LANES);
            let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
            for (r, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = tail.start(s, total(r, vector));
                }
            }
            let mut weights = self.panel.add(column);
            let mut x = self.x.add(row * PIECE);
            for _ in 0..self.inputs / PIECE {
                for input in (0..PIECE).step_by(4) {
                    self.inputs::<S, VECTORS, ROWS, 4>(s, weights, x.add(input), &mut sums);
                    weights = weights.add(4 * BLOCK);
                }
                x = x.wrapping_add(self.rows * PIECE);
            }
            for input in 0..self.inputs % PIECE {
                self.inputs::<S, VECTORS, ROWS, 1>(s, weights, x.add(input), &mut sums);
                weights = weights.add(BLOCK);
            }
            for (r, sums) in sums.iter().enumerate() {
                for (vector, sum) in sums.iter().enumerate() {
                    tail.finish(s, row + r, column + vector * LANES, *sum, total(r, vector));
                }
            }
        }
    }

    /// Adds the products of `INPUTS` neighbouring inputs to a tile's sums.
    ///
    /// # Safety
    /// The inputs are in the panel from `weights` on, and from `x` on in each of the tile's rows.
    #[inline(always)]
    unsafe fn inputs<S: Lanes, const VECTORS: usize, const ROWS: usize, const INPUTS: usize>(
        &self,
        s: S,
        weights: *const f32,
        x: *const f32,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        for input in 0..INPUTS {
            let mut loaded = [s.splat(0.0); VECTORS];
            for (vector, loaded) in loaded.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *loaded = s.load(unsafe { &*weights.add(input * BLOCK + vector * LANES).cast() });
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                let value = s.splat(unsafe { *x.add(row * PIECE + input) });
                for (sum, loaded) in sums.iter_mut().zip(loaded) {
                    *sum = s.fma(loaded, value, *sum);
                }
            }
        }
    }
}
