//! Brings rows of a weight matrix into the order of the kernels.

use super::interleave::interleave;
use super::layout::{BLOCK, Format, Layout, WORDS};

impl Layout {
    /// Packs one block of an affine matrix: the given `rows` (at most 32) of MLX's row-major `words`
    /// `[rows][inputs * bits / 32]` and of `scales` and `biases` `[rows][inputs / group]`, all as
    /// little-endian bytes. `dest` has the block's bytes.
    ///
    /// # Panics
    /// When a size is wrong, or the format is dense.
    pub fn pack_affine_block(
        &self,
        dest: &mut [u8],
        rows: usize,
        words: &[u8],
        scales: &[u8],
        biases: &[u8],
    ) {
        let Format::Affine { scales: float, .. } = self.format() else { panic!("the matrix is dense") };
        let (groups, group_words, group_bytes) = (self.groups(), self.group_words(), self.group_bytes());
        assert!(rows <= BLOCK && dest.len() == self.block_bytes());
        assert!(words.len() == rows * groups * group_words * 4);
        assert!(scales.len() == rows * groups * float.size() && biases.len() == scales.len());
        if rows < BLOCK {
            dest.fill(0);
        }
        let parameters = BLOCK * float.size();
        interleave(4, dest, words, rows, |word| {
            word / group_words * group_bytes + 2 * parameters + word % group_words * WORDS
        });
        interleave(float.size(), dest, scales, rows, |group| group * group_bytes);
        interleave(float.size(), dest, biases, rows, |group| group * group_bytes + parameters);
    }

    /// Packs one block of a dense matrix: the given `rows` (at most 32) of row-major `elements`
    /// `[rows][inputs]`. `dest` has the block's bytes.
    ///
    /// # Panics
    /// When a size is wrong, or the format is affine.
    pub fn pack_dense_block(&self, dest: &mut [u8], rows: usize, elements: &[u8]) {
        let Format::Dense(float) = self.format() else { panic!("the matrix is not dense") };
        let size = float.size();
        assert!(rows <= BLOCK && dest.len() == self.block_bytes());
        assert!(elements.len() == rows * self.inputs() * size);
        if rows < BLOCK {
            dest.fill(0);
        }
        interleave(size, dest, elements, rows, |input| input * BLOCK * size);
    }
}
