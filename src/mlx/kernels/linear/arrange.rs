//! Activations as the kernels read them.
//!
//! Rows are cut into chunks. A chunk is `[inputs / 16][rows][16]`, filled up with zeros: what some
//! inputs of a block need lies together for all rows, with a fixed distance from row to row. Behind it
//! are the sums of the activations over each group of inputs, `[groups][rows]`.
//!
//! For 2, 4 and 8 bits the kernels leave a number where it lies in the low half of its word, so they
//! see it times a power of two. The activation it meets is divided by the same power here, once.

use super::layout::{Format, Layout};
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::sixteen::{self, LANES, Lanes, Task, sum_of_lanes};

/// Neighbouring inputs of a row that lie together.
pub const PIECE: usize = LANES;

/// What matrices that read the same arranged activations have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrangement {
    inputs: usize,
    /// Pieces of a group whose sum is wanted; 0 for none.
    group_pieces: usize,
    /// Bits by which neighbouring numbers are shifted in a half word; 0 where nothing is scaled.
    shift: u32,
}

/// The activations of one chunk of rows.
#[derive(Clone, Copy)]
pub struct Chunk<'a> {
    pub rows: usize,
    /// `[inputs / PIECE][rows][PIECE]`, scaled.
    pub values: &'a [f32],
    /// `[groups][rows]`, of the values before scaling.
    pub sums: &'a [f32],
}

impl Arrangement {
    pub fn of(layout: &Layout) -> Arrangement {
        let inputs = layout.inputs();
        match layout.format() {
            Format::Affine { bits, group, .. } => {
                let shift = if matches!(bits, 2 | 4 | 8) { bits } else { 0 };
                Arrangement { inputs, group_pieces: group as usize / PIECE, shift }
            }
            Format::Dense(_) => Arrangement { inputs, group_pieces: 0, shift: 0 },
        }
    }

    fn pieces(&self) -> usize {
        self.inputs.div_ceil(PIECE)
    }

    fn groups(&self) -> usize {
        self.pieces().checked_div(self.group_pieces).unwrap_or(0)
    }

    /// Floats that `rows` rows take.
    pub fn len(&self, rows: usize) -> usize {
        rows * (self.pieces() * PIECE + self.groups())
    }

    /// The chunk of `rows` rows in `arranged`, which has exactly its floats.
    pub fn chunk<'a>(&self, arranged: &'a [f32], rows: usize) -> Chunk<'a> {
        assert_eq!(arranged.len(), self.len(rows));
        let (values, sums) = arranged.split_at(rows * self.pieces() * PIECE);
        Chunk { rows, values, sums }
    }

    /// Arranges `rows` rows, which `x` gives, into `to`.
    pub fn arrange<'x>(&self, path: Path, rows: usize, x: impl Fn(usize) -> &'x [f32], to: &mut [f32]) {
        sixteen::run(path, Arrange { arrangement: self, rows, x, to });
    }

    #[inline(always)]
    fn arrange_rows<'x, S: Lanes>(&self, s: S, rows: usize, x: impl Fn(usize) -> &'x [f32], to: &mut [f32]) {
        assert!(to.len() == self.len(rows));
        let scale = s.load(&self.scale());
        let (values, sums) = to.split_at_mut(rows * self.pieces() * PIECE);
        let values = values.as_chunks_mut::<PIECE>().0;
        for row in 0..rows {
            let x = x(row);
            assert!(x.len() == self.inputs);
            let mut partial = s.splat(0.0);
            let mut left = self.group_pieces;
            let mut sum = row;
            let (pieces, rest) = x.as_chunks::<PIECE>();
            for (index, piece) in pieces.iter().enumerate() {
                let value = s.load(piece);
                partial = s.add(partial, value);
                s.store(s.mul(value, scale), &mut values[index * rows + row]);
                left = left.wrapping_sub(1);
                if left == 0 {
                    sums[sum] = sum_of_lanes(s, partial);
                    sum += rows;
                    partial = s.splat(0.0);
                    left = self.group_pieces;
                }
            }
            // Of dense matrices only: nothing is scaled or summed there.
            if !rest.is_empty() {
                let to = &mut values[(self.pieces() - 1) * rows + row];
                to.fill(0.0);
                to[..rest.len()].copy_from_slice(rest);
            }
        }
    }

    /// The factors of the inputs of a piece.
    fn scale(&self) -> [f32; PIECE] {
        let mut scale = [1.0; PIECE];
        if let Some(places) = 16_u32.checked_div(self.shift) {
            for (index, scale) in scale.iter_mut().enumerate() {
                *scale = 1.0 / (1_u32 << (self.shift * (index as u32 % places))) as f32;
            }
        }
        scale
    }
}

/// [`Arrangement::arrange`] to be compiled for an instruction set.
struct Arrange<'a, X> {
    arrangement: &'a Arrangement,
    rows: usize,
    x: X,
    to: &'a mut [f32],
}

impl<'x, X: Fn(usize) -> &'x [f32]> Task for Arrange<'_, X> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        self.arrangement.arrange_rows(s, self.rows, self.x, self.to);
    }
}
