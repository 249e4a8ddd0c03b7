//! Products of rows with matrices, and how their work is cut up for the threads.

use std::cell::Cell;
use std::ops::Range;

use super::arrange::Arrangement;
use super::layout::{Format, Layout};
use super::unit::{CHUNK, FEW, Output, Piece, Unit};
use crate::mlx::kernels::activation::Activation;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::float::Float;
use crate::mlx::kernels::pool::{Panicked, Pool};
use crate::mlx::kernels::routine::Beginning;

/// One matrix of a product.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub layout: &'a Layout,
    /// Packed as `layout` says; best at a multiple of 64 bytes.
    pub data: &'a [u8],
    /// Added to each row of the product.
    pub bias: Option<&'a [f32]>,
}

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
    let mut pieces = Vec::with_capacity(matrices.len());
    let mut width = 0;
    for &matrix in matrices {
        pieces.push(Piece { first: matrix, second: None, column: width });
        width += matrix.layout.outputs();
    }
    Product::of_all(path, rows, pieces, width, residual).run(pool, x, out)
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
    let pieces = vec![Piece { first: *gate, second: Some((*up, activation)), column: 0 }];
    Product::of_all(path, rows, pieces, width, None).run(pool, x, out)
}

/// Products in which each row has its own choice of matrices, for mixtures of experts. Each row of `x`
/// is multiplied with as many experts as `chosen` has numbers for it: all rows equally many.
///
/// Writes to `out` `[chosen][outputs]` the product of row `i / (chosen.len() / rows)` of `x`
/// `[rows][inputs]` with expert `chosen[i]`. All experts have the same number of outputs.
///
/// # Panics
/// When sizes do not agree or there is no such expert. A panic of a thread at work is an error instead.
#[cfg_attr(feature = "mlx", expect(dead_code, reason = "for families with experts"))]
pub fn multiply_chosen(
    pool: &Pool,
    x: &[f32],
    rows: usize,
    experts: &[Matrix],
    chosen: &[u32],
    out: &mut [f32],
) -> Result<(), Panicked> {
    let pieces = experts.iter().map(|&first| Piece { first, second: None, column: 0 });
    Product::of_chosen(Path::best(), rows, pieces.collect(), chosen).run(pool, x, out)
}

/// As [`multiply_chosen`], with the activation of the product with `gates[chosen[i]]` times the product
/// with `ups[chosen[i]]`.
///
/// # Panics
/// As [`multiply_chosen`].
#[cfg_attr(feature = "mlx", expect(dead_code, reason = "for families with experts"))]
#[allow(clippy::too_many_arguments)]
pub fn multiply_gated_chosen(
    pool: &Pool,
    x: &[f32],
    rows: usize,
    gates: &[Matrix],
    ups: &[Matrix],
    activation: Activation,
    chosen: &[u32],
    out: &mut [f32],
) -> Result<(), Panicked> {
    assert!(gates.len() == ups.len());
    let pieces = gates.iter().zip(ups);
    let pieces = pieces.map(|(&gate, &up)| Piece { first: gate, second: Some((up, activation)), column: 0 });
    Product::of_chosen(Path::best(), rows, pieces.collect(), chosen).run(pool, x, out)
}

/// Some rows of the output and the pieces that they are made of.
struct Task {
    /// In the order of the product's rows.
    rows: Range<usize>,
    pieces: Range<usize>,
    /// The units of the tasks before.
    before: usize,
}

struct Product<'a> {
    path: Path,
    /// Rows of the activations.
    sources: usize,
    /// Rows of the output.
    rows: usize,
    /// Columns of the output.
    width: usize,
    pieces: Vec<Piece<'a>>,
    /// The output's rows in the order in which they are computed; their own if None.
    order: Option<Vec<usize>>,
    tasks: Vec<Task>,
    units: usize,
    residual: Option<&'a [f32]>,
}

/// Activations in one arrangement, all chunks of rows behind each other.
struct Arranged {
    arrangement: Arrangement,
    /// In the scratch, its first float.
    start: usize,
}

impl<'a> Product<'a> {
    /// The product of every row with every piece.
    fn of_all(
        path: Path,
        rows: usize,
        pieces: Vec<Piece<'a>>,
        width: usize,
        residual: Option<&'a [f32]>,
    ) -> Product<'a> {
        let (order, tasks, count) = (None, Vec::new(), pieces.len());
        let mut product =
            Product { path, sources: rows, rows, width, pieces, order, tasks, units: 0, residual };
        product.add_tasks(0..rows, 0..count);
        product
    }

    /// The product of every row with its chosen pieces. The rows of a piece are brought together.
    fn of_chosen(path: Path, sources: usize, pieces: Vec<Piece<'a>>, chosen: &[u32]) -> Product<'a> {
        let rows = chosen.len();
        assert!(if sources == 0 { rows == 0 } else { rows.is_multiple_of(sources) });
        let width = pieces.first().map_or(0, |piece| piece.first.layout.outputs());
        assert!(pieces.iter().all(|piece| piece.first.layout.outputs() == width));
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|&row| chosen[row]);
        let tasks = Vec::new();
        let mut product =
            Product { path, sources, rows, width, pieces, order: None, tasks, units: 0, residual: None };
        let mut first = 0;
        for same in order.chunk_by(|&a, &b| chosen[a] == chosen[b]) {
            let piece = chosen[same[0]] as usize;
            assert!(piece < product.pieces.len());
            product.add_tasks(first..first + same.len(), piece..piece + 1);
            first += same.len();
        }
        product.order = Some(order);
        product
    }

    /// Cuts rows that have the same pieces into chunks of about equal size.
    fn add_tasks(&mut self, rows: Range<usize>, pieces: Range<usize>) {
        let blocks: usize = self.pieces[pieces.clone()].iter().map(|piece| piece.first.layout.blocks()).sum();
        let chunks = rows.len().div_ceil(CHUNK);
        for chunk in 0..chunks {
            let start = rows.start + rows.len() * chunk / chunks;
            let end = rows.start + rows.len() * (chunk + 1) / chunks;
            self.tasks.push(Task { rows: start..end, pieces: pieces.clone(), before: self.units });
            self.units += blocks;
        }
    }

    /// The blocks in ones and twos, evenly for so many threads, where the only row is better computed for two blocks at
    /// a time: the first block, and how many. Each element is small, and more chains of products go on meanwhile.
    fn pairs(&self, threads: usize) -> Option<Vec<(usize, usize)>> {
        let small =
            |matrix: &Matrix| matches!(matrix.layout.format(), Format::Dense(Float::F16 | Float::Bf16));
        let [task] = self.tasks.as_slice() else { return None };
        let pieces = &self.pieces[task.pieces.clone()];
        if task.rows.len() > 1 || !pieces.iter().flat_map(Piece::matrices).all(small) {
            return None;
        }
        let mut pairs = Vec::with_capacity(self.units / 2 + threads + pieces.len());
        let mut at = 0;
        let mut piece_end = 0;
        for piece in pieces {
            piece_end += piece.first.layout.blocks();
            while at < piece_end {
                // Neither beyond the piece nor beyond the part of the thread.
                let part_end = (1..=threads).map(|t| self.units * t / threads).find(|end| *end > at);
                let count = 2.min(piece_end - at).min(part_end.unwrap_or(piece_end) - at);
                pairs.push((at, count));
                at += count;
            }
        }
        Some(pairs)
    }

    /// What one of the threads reads first, see [`Pool::run`]: its first block, and what follows in the same matrices.
    fn beginning(&self, thread: usize, threads: usize) -> Beginning {
        let first = self.units * thread / threads;
        let units = self.units * (thread + 1) / threads - first;
        let Some(task) = self.tasks.iter().rev().find(|task| task.before <= first) else {
            return Beginning::default();
        };
        let mut block = first - task.before;
        for piece in &self.pieces[task.pieces.clone()] {
            let blocks = piece.first.layout.blocks();
            if let Some(rest) = block.checked_sub(blocks) {
                block = rest;
                continue;
            }
            let mut matrices = [0; 2];
            for (address, matrix) in matrices.iter_mut().zip(piece.matrices()) {
                *address = matrix.data.as_ptr().addr() + block * matrix.layout.block_bytes();
            }
            return Beginning {
                matrices,
                bytes: units.min(blocks - block) * piece.first.layout.block_bytes(),
            };
        }
        Beginning::default()
    }

    fn run(&self, pool: &Pool, x: &[f32], out: &mut [f32]) -> Result<(), Panicked> {
        assert!(out.len() == self.rows * self.width);
        assert!(self.residual.is_none_or(|residual| residual.len() == out.len()));
        let Some(first) = self.pieces.first() else { return Ok(()) };
        let inputs = first.first.layout.inputs();
        assert!(x.len() == self.sources * inputs);
        let mut arranged: Vec<Arranged> = Vec::with_capacity(2);
        let mut floats = 0;
        for piece in &self.pieces {
            for matrix in piece.matrices() {
                let layout = matrix.layout;
                assert!(layout.inputs() == inputs && layout.outputs() == piece.first.layout.outputs());
                assert!(matrix.data.len() == layout.bytes());
                assert!(matrix.bias.is_none_or(|bias| bias.len() == layout.outputs()));
                let arrangement = Arrangement::of(layout);
                if arranged.iter().all(|known| known.arrangement != arrangement) {
                    arranged.push(Arranged { arrangement, start: floats });
                    floats += arrangement.len(self.rows);
                }
            }
        }
        let mut scratch = SCRATCH.take();
        if scratch.len() < floats {
            scratch.resize(floats, 0.0);
        }
        let outcome = self
            .arrange(pool, x, inputs, &arranged, &mut scratch[..floats])
            .and_then(|()| self.products(pool, &arranged, &scratch[..floats], out));
        if scratch.len() <= KEPT {
            SCRATCH.set(scratch);
        }
        outcome
    }

    /// The output's row that is computed as number `row`.
    fn target(&self, row: usize) -> usize {
        self.order.as_ref().map_or(row, |order| order[row])
    }

    fn arrange(
        &self,
        pool: &Pool,
        x: &[f32],
        inputs: usize,
        arranged: &[Arranged],
        scratch: &mut [f32],
    ) -> Result<(), Panicked> {
        let per_source = self.rows.checked_div(self.sources).unwrap_or(1);
        let to = Output(scratch.as_mut_ptr());
        let work = |task: usize| {
            let to = &to;
            let rows = &self.tasks[task].rows;
            for Arranged { arrangement, start } in arranged {
                let place = start + arrangement.len(rows.start);
                // SAFETY: the scratch has a place for each arrangement and, in it, for each task's rows.
                // No other part has this task.
                let to =
                    unsafe { std::slice::from_raw_parts_mut(to.0.add(place), arrangement.len(rows.len())) };
                let source = |row: usize| {
                    let row = self.target(rows.start + row) / per_source;
                    &x[row * inputs..][..inputs]
                };
                arrangement.arrange(self.path, rows.len(), source, to);
            }
        };
        pool.run(self.tasks.len(), &work)
    }

    fn products(
        &self,
        pool: &Pool,
        arranged: &[Arranged],
        scratch: &[f32],
        out: &mut [f32],
    ) -> Result<(), Panicked> {
        let out = Output(out.as_mut_ptr());
        let pairs = self.pairs(pool.threads());
        let work = |unit: usize| {
            let (unit, blocks) = pairs.as_ref().map_or((unit, 1), |pairs| pairs[unit]);
            let task = &self.tasks[self.tasks.partition_point(|task| task.before <= unit) - 1];
            let mut block = unit - task.before;
            let mut pieces = self.pieces[task.pieces.clone()].iter();
            let piece = loop {
                let Some(piece) = pieces.next() else { return };
                match block.checked_sub(piece.first.layout.blocks()) {
                    Some(rest) => block = rest,
                    None => break piece,
                }
            };
            let rows = task.rows.clone();
            let x = |matrix: &Matrix| {
                let arrangement = Arrangement::of(matrix.layout);
                let known = arranged.iter().find(|known| known.arrangement == arrangement);
                let start = known.map_or(0, |known| known.start) + arrangement.len(rows.start);
                arrangement.chunk(&scratch[start..][..arrangement.len(rows.len())], rows.len())
            };
            Unit {
                path: self.path,
                piece,
                block,
                blocks,
                rows: rows.clone(),
                order: self.order.as_deref(),
                out: &out,
                width: self.width,
                residual: self.residual,
            }
            .run(x);
        };
        // The weights of a few rows stream evenly from memory; otherwise units may differ in cost.
        let rows = self.tasks.first().map_or(0, |task| task.rows.len());
        if rows <= FEW && self.tasks.iter().all(|task| task.rows.len() == rows) {
            if let Some(piece) = self.pieces.first() {
                let address = piece.first.data.as_ptr().addr();
                pool.routine().begins(address, |thread| self.beginning(thread, pool.threads()));
            }
            pool.run(pairs.as_ref().map_or(self.units, Vec::len), &work)
        } else {
            pool.run_claiming(self.units, &work)
        }
    }
}

/// Scratch of more floats than this is given back after its product.
const KEPT: usize = 16 << 20;

thread_local! {
    /// Room for arranged activations, kept from product to product.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}
