//! Keys and values in blocks of a pool.

use std::any::Any;

use super::encoding::{Affine, Encoding, Exact};
use super::planes;
use super::pool::BlockPool;
use super::{LayerCache, Signature};
use crate::base::{Error, Result};
use crate::mlx::ops::KeysValues;
use crate::mlx::{Array, Mask};

/// How a paged cache divides and bounds its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedForm {
    /// Tokens of a block, at least 1; 256 is usual.
    pub block: usize,
    /// Tokens that are expected: the pool is made for so many, and grows by half if more come.
    pub capacity: usize,
    /// Tokens that there may be at most.
    pub limit: Option<usize>,
    /// Bits and group of MLX's affine groups; without them keys and values stay as they are.
    pub quantised: Option<Affine>,
}

/// `kv:paged`: what attention reads is gathered, and the same bits as in a cache that keeps all tokens in one piece.
///
/// A fork shares the pool's memory until one of the two is written; then each has its own.
#[derive(Clone, Debug)]
pub struct PagedCache {
    form: PagedForm,
    pool: BlockPool,
    /// The block of each `block` tokens.
    table: Vec<u32>,
    offset: usize,
}

impl PagedCache {
    /// INVALID_ARGUMENT for blocks without tokens, or for numbers beyond what arrays can count.
    pub fn new(form: PagedForm) -> Result<Self> {
        let fields = [("block", form.block), ("capacity", form.capacity), ("limit", form.limit.unwrap_or(1))];
        for (field, value) in fields {
            if value > planes::MOST || field != "capacity" && value == 0 {
                return Err(Error::invalid_argument(format!(
                    "{field} of a paged cache is 1 to {}, not {value}",
                    planes::MOST
                ))
                .field(field));
            }
        }
        Ok(PagedCache { form, pool: BlockPool::new(form.block), table: Vec::new(), offset: 0 })
    }

    /// Most tokens that there is room for once `tokens` tokens are covered.
    pub fn capacity_for(tokens: u64, form: &PagedForm) -> u64 {
        let block = form.block as u64;
        let needed = tokens.div_ceil(block);
        if needed == 0 {
            return 0;
        }
        let first = (form.capacity as u64).div_ceil(block).max(1);
        // A pool that has one block less than needed grows by half.
        let grown = needed.saturating_add(needed / 2);
        let most = form.limit.map_or(u64::MAX, |limit| (limit as u64).div_ceil(block));
        let blocks = if needed <= first { first } else { grown.min(most).max(needed) };
        blocks.max(first).saturating_mul(block)
    }

    /// A cache whose pool has these planes, of which `table` names as many different blocks as `offset` needs.
    pub(super) fn restored(form: PagedForm, planes: Vec<Array>, table: Vec<u32>, offset: usize) -> Self {
        PagedCache { form, pool: BlockPool::restored(planes, form.block, &table), table, offset }
    }

    pub fn form(&self) -> PagedForm {
        self.form
    }

    /// Blocks in use, in the order of the tokens.
    pub fn table(&self) -> &[u32] {
        &self.table
    }

    /// The pool: its blocks are those in the table and the free ones.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    fn encode(&self, keys: &Array, values: &Array) -> Result<Vec<Array>> {
        match self.form.quantised {
            Some(affine) => affine.encode(keys, values),
            None => Exact.encode(keys, values),
        }
    }

    fn decode(&self, planes: Vec<Array>) -> Result<KeysValues> {
        match self.form.quantised {
            Some(affine) => affine.decode(planes),
            None => Exact.decode(planes),
        }
    }

    /// The pool with at least `needed` blocks.
    fn grown(&self, needed: usize, like: &[Array]) -> Result<BlockPool> {
        let mut pool = self.pool.clone();
        let blocks = pool.blocks();
        if needed <= blocks {
            return Ok(pool);
        }
        let most = self.form.limit.unwrap_or(planes::MOST).div_ceil(self.form.block);
        let planned = if blocks == 0 {
            self.form.capacity.div_ceil(self.form.block).max(1)
        } else {
            blocks + blocks.div_ceil(2)
        };
        pool.grow(planned.min(most).max(needed), like)?;
        Ok(pool)
    }
}

impl LayerCache for PagedCache {
    fn offset(&self) -> usize {
        self.offset
    }

    /// One row alone. OUT_OF_MEMORY beyond the limit.
    fn append(&mut self, keys: &Array, values: &Array) -> Result<KeysValues> {
        let new = self.encode(keys, values)?;
        let tokens = planes::tokens_of(&new, &[])?;
        if new[0].dim(0) != 1 || !planes::continues(&new, self.pool.planes()) {
            return Err(Error::internal(format!(
                "a paged cache with blocks {:?} cannot continue with {new:?}",
                self.pool.planes()
            )));
        }
        let end = planes::end(self.offset, tokens)?;
        if let Some(limit) = self.form.limit.filter(|limit| end > *limit) {
            return Err(Error::out_of_memory(format!("{end} tokens do not fit into pages for {limit}"))
                .field("page_capacity"));
        }
        let block = self.form.block;
        let needed = end.div_ceil(block);
        let mut pool = self.grown(needed, &new)?;
        let mut table = self.table.clone();
        while table.len() < needed {
            table.push(pool.take()?);
        }
        let mut at = self.offset;
        while at < end {
            let (index, start) = (at / block, at % block);
            let to = end.min((index + 1) * block);
            pool.write(table[index], start, &new, at - self.offset, to - self.offset)?;
            at = to;
        }
        let read = self.decode(pool.gather(&table, end)?)?;
        (self.pool, self.table, self.offset) = (pool, table, end);
        Ok(read)
    }

    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        let end = self.offset + queries;
        Mask::causal(queries as i32, self.offset as i32, window.map(|window| window.min(end) as i32))
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.pool.planes().to_vec())
    }

    fn can_forget(&self, _tokens: usize) -> bool {
        true
    }

    /// Blocks without tokens become free.
    fn forget(&mut self, tokens: usize) -> usize {
        let dropped = tokens.min(self.offset);
        self.offset -= dropped;
        for block in self.table.drain(self.offset.div_ceil(self.form.block)..).rev() {
            self.pool.give_back(block);
        }
        dropped
    }

    fn signature(&self) -> Signature {
        Signature::Paged { quantised: self.form.quantised.map(|affine| (affine.bits(), affine.group())) }
    }

    fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
