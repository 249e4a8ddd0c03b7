//! The work of one thread at a time: a chunk of rows times a block.

use std::ops::Range;

use super::arrange::Chunk;
use super::few::{FewAffine, FewDense};
use super::few_stream::FewStream;
use super::layout::{BLOCK, Format};
use super::many::Many;
use super::product::Matrix;
use crate::mlx::kernels::activation::Activation;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::sixteen::{self, LANES, Lanes, Task};

/// Up to this many rows a unit is so short that the threads share the units evenly.
pub const FEW: usize = 16;
/// The most rows whose totals, with the weights of a group, stay in the first-level cache.
pub const CHUNK: usize = 96;

/// What makes some neighbouring columns of the output.
pub struct Piece<'a> {
    pub first: Matrix<'a>,
    pub second: Option<(Matrix<'a>, Activation)>,
    /// Of the output, its first.
    pub column: usize,
}

impl<'a> Piece<'a> {
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix<'a>> {
        std::iter::once(&self.first).chain(self.second.as_ref().map(|(matrix, _)| matrix))
    }
}

/// A place that several threads write to, each in elements of its own.
pub struct Output(pub *mut f32);
// SAFETY: the threads write to different elements, see where it is used.
unsafe impl Sync for Output {}

/// A chunk of rows times a block; or one row times two neighbouring blocks of dense matrices.
pub struct Unit<'a> {
    pub path: Path,
    pub piece: &'a Piece<'a>,
    /// The first, and how many there are.
    pub block: usize,
    pub blocks: usize,
    pub rows: Range<usize>,
    /// The output's row for each of all rows, which are in another order, if given.
    pub order: Option<&'a [usize]>,
    /// `[rows][width]`, in which no other unit has these rows and these blocks' columns.
    pub out: &'a Output,
    pub width: usize,
    pub residual: Option<&'a [f32]>,
}

impl Unit<'_> {
    /// Computes and writes the unit; `x` gives the activations in the arrangement of a matrix.
    pub fn run<'x>(&self, x: impl Fn(&Matrix) -> Chunk<'x>) {
        if self.rows.len() <= FEW {
            self.compute::<{ FEW * BLOCK }>(x);
        } else {
            self.compute::<{ CHUNK * BLOCK }>(x);
        }
    }

    fn compute<'x, const FLOATS: usize>(&self, x: impl Fn(&Matrix) -> Chunk<'x>) {
        let first = &self.piece.first;
        let mut totals = [0.0; FLOATS];
        let totals = &mut totals[..self.blocks * self.rows.len() * BLOCK];
        self.add_products(first, x(first), totals);
        if let Some((second, activation)) = &self.piece.second {
            let mut others = [0.0; FLOATS];
            let others = &mut others[..self.blocks * self.rows.len() * BLOCK];
            self.add_products(second, x(second), others);
            sixteen::run(self.path, Gate { activation: *activation, totals, others });
        }
        self.write(totals);
    }

    /// The output's elements of a row and of the columns of a block.
    fn place(&self, row: usize, block: usize) -> usize {
        self.order.map_or(row, |order| order[row]) * self.width + self.piece.column + block * BLOCK
    }

    /// Adds the products of the rows with the blocks, and their bias, to `totals` `[blocks][rows][32]`, which is zero.
    fn add_products(&self, matrix: &Matrix, x: Chunk, totals: &mut [f32]) {
        let layout = *matrix.layout;
        let data = &matrix.data[self.block * layout.block_bytes()..][..self.blocks * layout.block_bytes()];
        let path = self.path;
        let out = self.order.is_none().then(|| {
            let place = self.place(self.rows.start, self.block);
            (self.out.0.wrapping_add(place).cast_const(), self.width)
        });
        macro_rules! few {
            ($($rows:literal)*) => {
                match (layout.format(), x.rows) {
                    $(
                        (Format::Affine { bits: 2, scales, .. }, $rows) => {
                            sixteen::run(path, FewAffine::<'_, 2, $rows> { layout, scales, data, x, totals })
                        }
                        (Format::Affine { bits: 4, scales, .. }, $rows) => {
                            sixteen::run(path, FewAffine::<'_, 4, $rows> { layout, scales, data, x, totals })
                        }
                        (Format::Affine { bits: 8, scales, .. }, $rows) => {
                            sixteen::run(path, FewAffine::<'_, 8, $rows> { layout, scales, data, x, totals })
                        }
                        (Format::Affine { bits: 3, scales, .. }, $rows) => {
                            sixteen::run(path, FewStream::<'_, 3, $rows> { layout, scales, data, x, totals })
                        }
                        (Format::Affine { bits: 5, scales, .. }, $rows) => {
                            sixteen::run(path, FewStream::<'_, 5, $rows> { layout, scales, data, x, totals })
                        }
                        (Format::Affine { bits: 6, scales, .. }, $rows) => {
                            sixteen::run(path, FewStream::<'_, 6, $rows> { layout, scales, data, x, totals })
                        }
                        (Format::Dense(float), $rows) => {
                            sixteen::run(path, FewDense::<'_, $rows, 1> { layout, float, data, x, totals })
                        }
                    )*
                    _ => sixteen::run(path, Many { layout, data, x, totals, out }),
                }
            };
        }
        if self.blocks == 2 {
            let Format::Dense(float) = layout.format() else { unreachable!("only dense blocks are paired") };
            sixteen::run(path, FewDense::<'_, 1, 2> { layout, float, data, x, totals });
        } else if x.rows > 6 && path.registers() < 32 {
            // More rows take more registers.
            sixteen::run(path, Many { layout, data, x, totals, out });
        } else {
            few!(1 2 3 4 5 6 7 8);
        }
        if let Some(bias) = matrix.bias {
            let blocks =
                totals.chunks_exact_mut(x.rows * BLOCK).zip(bias[self.block * BLOCK..].chunks(BLOCK));
            for (totals, bias) in blocks {
                for totals in totals.chunks_exact_mut(BLOCK) {
                    totals.iter_mut().zip(bias).for_each(|(total, bias)| *total += bias);
                }
            }
        }
    }

    /// Writes the blocks' columns, with the residual added.
    fn write(&self, totals: &[f32]) {
        for (block, totals) in (self.block..).zip(totals.chunks_exact(self.rows.len() * BLOCK)) {
            self.write_block(block, totals);
        }
    }

    fn write_block(&self, block: usize, totals: &[f32]) {
        let outputs = self.piece.first.layout.outputs();
        let columns = BLOCK.min(outputs - block * BLOCK);
        for (row, totals) in self.rows.clone().zip(totals.chunks_exact(BLOCK)) {
            let start = self.place(row, block);
            // SAFETY: the output has this row and these columns, and no other unit has both.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.0.add(start), columns) };
            let residual = self.residual.map(|residual| &residual[start..][..columns]);
            // A whole block has a known length: that is several times as fast.
            match out.as_chunks_mut::<BLOCK>() {
                ([out], []) => write_row(totals, residual, out),
                _ => write_row(totals, residual, out),
            }
        }
    }
}

#[inline(always)]
fn write_row(totals: &[f32], residual: Option<&[f32]>, out: &mut [f32]) {
    match residual {
        None => out.copy_from_slice(&totals[..out.len()]),
        Some(residual) => {
            let added = totals.iter().zip(residual);
            out.iter_mut().zip(added).for_each(|(out, (total, residual))| *out = total + residual);
        }
    }
}

/// `totals` becomes its activation times `others`; both have whole rows of 32.
struct Gate<'a> {
    activation: Activation,
    totals: &'a mut [f32],
    others: &'a [f32],
}

impl Task for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let totals = self.totals.as_chunks_mut::<LANES>().0;
        for (total, other) in totals.iter_mut().zip(self.others.as_chunks::<LANES>().0) {
            let activated = self.activation.apply(s, s.load(total));
            s.store(s.mul(activated, s.load(other)), total);
        }
    }
}
