//! The work of a product, cut up for the threads.

use std::cell::Cell;

use super::arrange::{Arrangement, Chunk};
use super::few::{FewAffine, FewDense};
use super::layout::{BLOCK, Format, Layout};
use super::many::Many;
use crate::mlx::kernels::activation::Activation;
use crate::mlx::kernels::cpu::{Path, Work};
use crate::mlx::kernels::pool::{Panicked, Pool};
use crate::mlx::kernels::simd::Simd;

/// One matrix of a product.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub layout: &'a Layout,
    /// Packed as `layout` says; best at a multiple of 64 bytes.
    pub data: &'a [u8],
    /// Added to each row of the product.
    pub bias: Option<&'a [f32]>,
}

/// Up to this many rows the weights are read once by all, and the threads share the blocks evenly.
const FEW: usize = 16;
/// The most rows whose totals, with the weights of a group, stay in the first-level cache.
const CHUNK: usize = 96;

/// Writes to `out` `[rows][sum of outputs]`, for each matrix in turn, the products of the rows of `x`
/// `[rows][inputs]` with its rows, plus its bias, plus `residual` (of the shape of `out`).
///
/// # Panics
/// When sizes do not agree. A panic of a thread at work is an error instead.
pub fn multiply(
    pool: &Pool,
    x: &[f32],
    rows: usize,
    matrices: &[Matrix],
    residual: Option<&[f32]>,
    out: &mut [f32],
) -> Result<(), Panicked> {
    multiply_on(Path::best(), pool, x, rows, matrices, residual, out)
}

/// [`multiply`] with the given instructions.
pub fn multiply_on(
    path: Path,
    pool: &Pool,
    x: &[f32],
    rows: usize,
    matrices: &[Matrix],
    residual: Option<&[f32]>,
    out: &mut [f32],
) -> Result<(), Panicked> {
    let width = matrices.iter().map(|matrix| matrix.layout.outputs()).sum();
    assert!(out.len() == rows * width);
    assert!(residual.is_none_or(|residual| residual.len() == out.len()));
    let mut pieces = Vec::with_capacity(matrices.len());
    let mut column = 0;
    for &matrix in matrices {
        pieces.push(Piece { first: matrix, second: None, column });
        column += matrix.layout.outputs();
    }
    Product { path, rows, pieces, residual, width }.run(pool, x, out)
}

/// Writes to `out` `[rows][outputs]` the activation of the product of `x` `[rows][inputs]` with `gate`,
/// times the product with `up`.
///
/// # Panics
/// When sizes do not agree. A panic of a thread at work is an error instead.
pub fn multiply_gated(
    pool: &Pool,
    x: &[f32],
    rows: usize,
    gate: &Matrix,
    up: &Matrix,
    activation: Activation,
    out: &mut [f32],
) -> Result<(), Panicked> {
    multiply_gated_on(Path::best(), pool, x, rows, gate, up, activation, out)
}

/// [`multiply_gated`] with the given instructions.
#[allow(clippy::too_many_arguments)]
pub fn multiply_gated_on(
    path: Path,
    pool: &Pool,
    x: &[f32],
    rows: usize,
    gate: &Matrix,
    up: &Matrix,
    activation: Activation,
    out: &mut [f32],
) -> Result<(), Panicked> {
    let width = gate.layout.outputs();
    assert!(up.layout.outputs() == width && out.len() == rows * width);
    let pieces = vec![Piece { first: *gate, second: Some((*up, activation)), column: 0 }];
    Product { path, rows, pieces, residual: None, width }.run(pool, x, out)
}

/// What makes some neighbouring columns of the output.
struct Piece<'a> {
    first: Matrix<'a>,
    second: Option<(Matrix<'a>, Activation)>,
    /// Of the output, its first.
    column: usize,
}

struct Product<'a> {
    path: Path,
    rows: usize,
    pieces: Vec<Piece<'a>>,
    residual: Option<&'a [f32]>,
    /// Columns of the output.
    width: usize,
}

/// Activations in one arrangement, all chunks of rows behind each other.
struct Arranged {
    arrangement: Arrangement,
    /// In the scratch, its first float.
    start: usize,
}

/// A place that several threads write to, each in columns of its own.
struct Shared(*mut f32);
// SAFETY: the threads write to different elements, see where it is used.
unsafe impl Sync for Shared {}

impl Product<'_> {
    fn run(&self, pool: &Pool, x: &[f32], out: &mut [f32]) -> Result<(), Panicked> {
        let Some(first) = self.pieces.first() else { return Ok(()) };
        let inputs = first.first.layout.inputs();
        assert!(x.len() == self.rows * inputs);
        for matrix in self.matrices() {
            let layout = matrix.layout;
            assert!(layout.inputs() == inputs && matrix.data.len() == layout.bytes());
            assert!(matrix.bias.is_none_or(|bias| bias.len() == layout.outputs()));
        }
        if self.rows == 0 {
            return Ok(());
        }
        let mut arranged: Vec<Arranged> = Vec::with_capacity(2);
        let mut floats = 0;
        for matrix in self.matrices() {
            let arrangement = Arrangement::of(matrix.layout);
            if arranged.iter().all(|known| known.arrangement != arrangement) {
                arranged.push(Arranged { arrangement, start: floats });
                floats += arrangement.len(self.rows);
            }
        }
        let mut scratch = SCRATCH.take();
        if scratch.len() < floats {
            scratch.resize(floats, 0.0);
        }
        let outcome = self
            .arrange(pool, x, &arranged, &mut scratch[..floats])
            .and_then(|()| self.products(pool, &arranged, &scratch[..floats], out));
        if scratch.len() <= KEPT {
            SCRATCH.set(scratch);
        }
        outcome
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix<'_>> {
        self.pieces.iter().flat_map(|piece| {
            std::iter::once(&piece.first).chain(piece.second.as_ref().map(|(matrix, _)| matrix))
        })
    }

    fn chunks(&self) -> usize {
        self.rows.div_ceil(CHUNK)
    }

    /// The rows of chunk `index`: all chunks are of about equal size.
    fn chunk(&self, index: usize) -> std::ops::Range<usize> {
        self.rows * index / self.chunks()..self.rows * (index + 1) / self.chunks()
    }

    fn arrange(
        &self,
        pool: &Pool,
        x: &[f32],
        arranged: &[Arranged],
        scratch: &mut [f32],
    ) -> Result<(), Panicked> {
        let inputs = x.len() / self.rows;
        let to = Shared(scratch.as_mut_ptr());
        let work = |part: usize| {
            let to = &to;
            let rows = self.chunk(part);
            for Arranged { arrangement, start } in arranged {
                let place = start + arrangement.len(rows.start);
                // SAFETY: the scratch has a place for each arrangement and, in it, for each chunk. No
                // other part has this chunk.
                let to =
                    unsafe { std::slice::from_raw_parts_mut(to.0.add(place), arrangement.len(rows.len())) };
                arrangement.arrange(&x[rows.start * inputs..rows.end * inputs], to);
            }
        };
        pool.run(self.chunks(), &work)
    }

    fn products(
        &self,
        pool: &Pool,
        arranged: &[Arranged],
        scratch: &[f32],
        out: &mut [f32],
    ) -> Result<(), Panicked> {
        let blocks: usize = self.pieces.iter().map(|piece| piece.first.layout.blocks()).sum();
        let out = Shared(out.as_mut_ptr());
        let work = |part: usize| {
            let rows = self.chunk(part / blocks);
            let mut block = part % blocks;
            let mut pieces = self.pieces.iter();
            let piece = loop {
                let Some(piece) = pieces.next() else { return };
                match block.checked_sub(piece.first.layout.blocks()) {
                    Some(rest) => block = rest,
                    None => break piece,
                }
            };
            let x = |matrix: &Matrix| {
                let arrangement = Arrangement::of(matrix.layout);
                let known = arranged.iter().find(|known| known.arrangement == arrangement);
                let start = known.map_or(0, |known| known.start) + arrangement.len(rows.start);
                arrangement.chunk(&scratch[start..][..arrangement.len(rows.len())], rows.len())
            };
            let unit = Unit { product: self, piece, block, rows: rows.clone(), out: &out };
            if rows.len() <= FEW {
                unit.run::<{ FEW * BLOCK }>(x);
            } else {
                unit.run::<{ CHUNK * BLOCK }>(x);
            }
        };
        if self.rows <= FEW {
            pool.run(blocks, &work)
        } else {
            pool.run_claiming(self.chunks() * blocks, &work)
        }
    }
}

/// A chunk of rows times a block.
struct Unit<'a> {
    product: &'a Product<'a>,
    piece: &'a Piece<'a>,
    block: usize,
    rows: std::ops::Range<usize>,
    out: &'a Shared,
}

impl Unit<'_> {
    fn run<'a, const FLOATS: usize>(&self, x: impl Fn(&Matrix) -> Chunk<'a>) {
        let count = self.rows.len() * BLOCK;
        let (path, first) = (self.product.path, &self.piece.first);
        let mut totals = [0.0; FLOATS];
        let totals = &mut totals[..count];
        add_products(path, first, self.block, x(first), totals, self.out());
        add_bias(first, self.block, totals);
        if let Some((second, activation)) = &self.piece.second {
            let mut others = [0.0; FLOATS];
            let others = &mut others[..count];
            add_products(path, second, self.block, x(second), others, self.out());
            add_bias(second, self.block, others);
            path.run(Gate { activation: *activation, totals, others });
        }
        self.write(totals);
    }

    /// The place of the unit's first row in the output, and the floats from row to row.
    fn out(&self) -> (*const f32, usize) {
        let column = self.piece.column + self.block * BLOCK;
        (self.out.0.wrapping_add(self.rows.start * self.product.width + column), self.product.width)
    }

    /// Writes the block's columns, with the residual added.
    fn write(&self, totals: &[f32]) {
        let outputs = self.piece.first.layout.outputs();
        let columns = BLOCK.min(outputs - self.block * BLOCK);
        for (row, totals) in self.rows.clone().zip(totals.chunks_exact(BLOCK)) {
            let start = row * self.product.width + self.piece.column + self.block * BLOCK;
            // SAFETY: the output has this row and these columns, and no other unit has both.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.0.add(start), columns) };
            let residual = self.product.residual.map(|residual| &residual[start..][..columns]);
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

/// Adds the products of a chunk with a block to `totals` `[rows][32]`.
fn add_products(
    path: Path,
    matrix: &Matrix,
    block: usize,
    x: Chunk,
    totals: &mut [f32],
    out: (*const f32, usize),
) {
    let layout = *matrix.layout;
    let data = &matrix.data[block * layout.block_bytes()..][..layout.block_bytes()];
    macro_rules! few {
        ($($rows:literal)*) => {
            match (layout.format(), x.rows) {
                $(
                    (Format::Affine { bits: 2, scales, .. }, $rows) => {
                        path.run(FewAffine::<'_, 2, $rows> { layout, scales, data, x, totals })
                    }
                    (Format::Affine { bits: 4, scales, .. }, $rows) => {
                        path.run(FewAffine::<'_, 4, $rows> { layout, scales, data, x, totals })
                    }
                    (Format::Affine { bits: 8, scales, .. }, $rows) => {
                        path.run(FewAffine::<'_, 8, $rows> { layout, scales, data, x, totals })
                    }
                    (Format::Dense(float), $rows) => {
                        path.run(FewDense::<'_, $rows> { layout, float, data, x, totals })
                    }
                )*
                _ => path.run(Many { layout, data, x, totals, out }),
            }
        };
    }
    // Where there are as many registers as that takes.
    if x.rows > 6 && path.registers() < 32 {
        path.run(Many { layout, data, x, totals, out })
    } else {
        few!(1 2 3 4 5 6 7 8)
    }
}

fn add_bias(matrix: &Matrix, block: usize, totals: &mut [f32]) {
    let Some(bias) = matrix.bias else { return };
    let bias = &bias[block * BLOCK..];
    for totals in totals.chunks_exact_mut(BLOCK) {
        totals.iter_mut().zip(bias).for_each(|(total, bias)| *total += bias);
    }
}

/// `totals` becomes its activation times `others`; both have whole rows of 32.
struct Gate<'a> {
    activation: Activation,
    totals: &'a mut [f32],
    others: &'a [f32],
}

impl Work for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let others = self.others.chunks_exact(S::LANES);
        for (total, other) in self.totals.chunks_exact_mut(S::LANES).zip(others) {
            // SAFETY: both have as many floats as a vector.
            unsafe {
                let activated = self.activation.apply(s, s.load(total.as_ptr()));
                s.store(total.as_mut_ptr(), s.mul(activated, s.load(other.as_ptr())));
            }
        }
    }
}

/// Scratch of more floats than this is given back after its product.
const KEPT: usize = 16 << 20;

thread_local! {
    /// Room for arranged activations, kept from product to product.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}
