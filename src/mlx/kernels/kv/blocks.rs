//! Blocks of memory of one size, for the segments of the caches of one set and its forks.
//!
//! Blocks are cut from larger pieces, so that large pages can back them and a cache that grows asks the system rarely.
//! A piece goes back to the system with its last block. What of a piece was never in use is only a promise of the
//! system's, so the account counts blocks.

use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::base::{Error, Result};
use crate::mlx::kernels::mapping::{self, Mapping};

/// The pools of a cache set and its forks, one for each size of block.
pub struct Pools {
    /// Blocks to a piece: layers grow at the same time.
    per_piece: usize,
    /// Most blocks in use at once, of all sizes together.
    limit: Option<usize>,
    pools: Mutex<HashMap<usize, Arc<Pool>>>,
    used: Arc<Mutex<usize>>,
    /// Bytes of the blocks in use are a part of this number.
    counter: Arc<AtomicU64>,
}

impl Pools {
    pub fn new(per_piece: usize, limit: Option<usize>) -> Arc<Self> {
        Self::counted_in(per_piece, limit, Arc::default())
    }

    /// As `new`; `counter` goes up and down by the bytes of blocks as they are taken and given back.
    pub fn counted_in(per_piece: usize, limit: Option<usize>, counter: Arc<AtomicU64>) -> Arc<Self> {
        let (pools, used) = (Mutex::default(), Arc::default());
        Arc::new(Pools { per_piece: per_piece.max(1), limit, pools, used, counter })
    }

    /// Blocks in use.
    pub fn used(&self) -> usize {
        *self.used.lock()
    }

    /// A block of `bytes` bytes that hold anything. OUT_OF_MEMORY beyond the limit.
    pub(super) fn take(&self, bytes: usize) -> Result<Block> {
        let pool = {
            let mut pools = self.pools.lock();
            let pool = pools.entry(bytes).or_insert_with(|| Arc::new(Pool::new(bytes, self.per_piece)));
            Arc::clone(pool)
        };
        let mut used = self.used.lock();
        if let Some(limit) = self.limit
            && *used >= limit
        {
            return Err(Error::out_of_memory(format!(
                "all {limit} pages of this cache set and its forks are in use"
            ))
            .field("page_capacity"));
        }
        let block = pool.take(Arc::clone(&self.used), Arc::clone(&self.counter))?;
        *used += 1;
        Ok(block)
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks in use", self.used())
    }
}

struct Pool {
    block_bytes: usize,
    per_piece: usize,
    pieces: Mutex<Vec<Option<Piece>>>,
}

struct Piece {
    mapping: Mapping,
    /// Indices of blocks that are not in use; the last is taken first.
    free: Vec<u32>,
}

impl Pool {
    fn new(block_bytes: usize, per_piece: usize) -> Self {
        Pool { block_bytes, per_piece, pieces: Mutex::default() }
    }

    fn take(self: Arc<Self>, used: Arc<Mutex<usize>>, counter: Arc<AtomicU64>) -> Result<Block> {
        let mut pieces = self.pieces.lock();
        let with_room = |piece: &Option<Piece>| piece.as_ref().is_some_and(|piece| !piece.free.is_empty());
        let number = match pieces.iter().position(with_room) {
            Some(number) => number,
            None => {
                let bytes = self.block_bytes.saturating_mul(self.per_piece).max(1);
                let mapping = Mapping::with_large_pages(bytes)?;
                let piece = Piece { mapping, free: (0..self.per_piece as u32).rev().collect() };
                match pieces.iter().position(Option::is_none) {
                    Some(number) => {
                        pieces[number] = Some(piece);
                        number
                    }
                    None => {
                        pieces.push(Some(piece));
                        pieces.len() - 1
                    }
                }
            }
        };
        let missing = || Error::internal("a piece of a cache's memory is missing");
        let piece = pieces.get_mut(number).and_then(Option::as_mut).ok_or_else(missing)?;
        let index = piece.free.pop().ok_or_else(missing)?;
        // SAFETY: the piece has `per_piece` blocks, and `index` is below that.
        let start = unsafe { piece.mapping.start().add(index as usize * self.block_bytes) };
        let start = NonNull::new(start).ok_or_else(missing)?;
        drop(pieces);
        mapping::count(self.block_bytes);
        counter.fetch_add(self.block_bytes as u64, Ordering::Relaxed);
        Ok(Block { pool: self, used, counter, piece: number, index, start })
    }

    fn give_back(&self, number: usize, index: u32) {
        let mut pieces = self.pieces.lock();
        let Some(slot) = pieces.get_mut(number) else { return };
        let Some(piece) = slot else { return };
        piece.free.push(index);
        if piece.free.len() == self.per_piece {
            *slot = None;
        }
    }
}

/// Memory of one segment, until it is dropped.
pub(super) struct Block {
    pool: Arc<Pool>,
    used: Arc<Mutex<usize>>,
    counter: Arc<AtomicU64>,
    piece: usize,
    index: u32,
    start: NonNull<u8>,
}

// SAFETY: it is plain memory that this value alone refers to; who reads and writes it when is up to those who ask for
// its bytes.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(super) fn len(&self) -> usize {
        self.pool.block_bytes
    }

    /// # Safety
    /// While the result lives nobody writes the memory.
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the piece was mapped as zeros, lives as long as its blocks, and this one has that many bytes; the
        // rest is the caller's promise.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// # Safety
    /// While the result lives nobody else reads or writes the memory.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.give_back(self.piece, self.index);
        mapping::discount(self.len());
        self.counter.fetch_sub(self.len() as u64, Ordering::Relaxed);
        let mut used = self.used.lock();
        *used = used.saturating_sub(1);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
