//! Blocks of columns, handed out one by one.

use super::planes;
use crate::base::{Error, Result};
use crate::mlx::{Array, prim};

/// Planes `[blocks, kv heads, block, fields]` and a list of the blocks that no one uses: the one freed last is the next,
/// and of those that were never used the lowest.
///
/// The arrays are immutable, so a clone is a pool of its own that shares their memory until one of the two is written.
#[derive(Clone, Debug)]
pub struct BlockPool {
    planes: Vec<Array>,
    block: usize,
    blocks: usize,
    free: Vec<u32>,
}

impl BlockPool {
    /// A pool without blocks.
    pub fn new(block: usize) -> Self {
        BlockPool { planes: Vec::new(), block, blocks: 0, free: Vec::new() }
    }

    /// A pool of which the blocks in `used` are in use; each number is below the planes' first dimension.
    pub fn restored(planes: Vec<Array>, block: usize, used: &[u32]) -> Self {
        let blocks = planes.first().map_or(0, |plane| plane.dim(0) as usize);
        let mut taken = vec![false; blocks];
        used.iter().for_each(|&block| taken[block as usize] = true);
        let free = (0..blocks as u32).rev().filter(|&block| !taken[block as usize]).collect();
        BlockPool { planes, block, blocks, free }
    }

    pub fn planes(&self) -> &[Array] {
        &self.planes
    }

    /// Tokens of a block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// All blocks, used or free.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    pub fn bytes(&self) -> usize {
        planes::bytes(&self.planes)
    }

    /// The pool with blocks of zeros up to `blocks`, of the kind of `like`.
    pub fn grow(&mut self, blocks: usize, like: &[Array]) -> Result<()> {
        let more = blocks - self.blocks;
        let mut grown = Vec::with_capacity(like.len());
        for (index, like) in like.iter().enumerate() {
            let shape = [more as i32, like.dim(1), self.block as i32, like.dim(3)];
            let fresh = prim::zeros(&shape, like.dtype())?;
            grown.push(match self.planes.get(index) {
                Some(plane) => prim::concatenate(&[plane, &fresh], 0)?,
                None => fresh,
            });
        }
        self.planes = grown;
        // The old free ones are handed out first.
        self.free.splice(0..0, (self.blocks as u32..blocks as u32).rev());
        self.blocks = blocks;
        Ok(())
    }

    pub fn take(&mut self) -> Result<u32> {
        self.free.pop().ok_or_else(|| Error::internal("a pool of blocks has none left"))
    }

    /// Gives a block back that `take` has given.
    pub fn give_back(&mut self, block: u32) {
        self.free.push(block);
    }

    /// Writes columns `from..to` of `new` into a block from `start` on.
    pub fn write(&mut self, block: u32, start: usize, new: &[Array], from: usize, to: usize) -> Result<()> {
        let (block, at) = (block as i32, start as i32);
        let mut written = Vec::with_capacity(new.len());
        for (plane, update) in self.planes.iter().zip(new) {
            let update = planes::columns(update, from, to)?;
            let stop = [block + 1, plane.dim(1), at + update.dim(2), plane.dim(3)];
            written.push(prim::slice_update(plane, &update, &[block, 0, at, 0], &stop)?);
        }
        self.planes = written;
        Ok(())
    }

    /// The first `tokens` columns of these blocks one after another, `[1, kv heads, tokens, fields]` for each plane.
    pub fn gather(&self, table: &[u32], tokens: usize) -> Result<Vec<Array>> {
        let indices = Array::from_slice(table, &[table.len() as i32])?;
        let columns = (table.len() * self.block) as i32;
        let gather = |plane: &Array| {
            let blocks = prim::take(plane, &indices, 0)?;
            let by_head = prim::transpose_axes(&blocks, &[1, 0, 2, 3])?;
            let row = prim::reshape(&by_head, &[1, plane.dim(1), columns, plane.dim(3)])?;
            // Blocks of one token would stay a view with large strides, with which the BLAS rounds in another order.
            planes::columns(&prim::contiguous(&row)?, 0, tokens)
        };
        self.planes.iter().map(gather).collect()
    }
}
