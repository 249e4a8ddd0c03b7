//! The keys and values of one layer and sequence: a list of segments that forks share.
//!
//! A segment that more than one value holds is never written. So one that is full is immutable, and after a fork the
//! first to write behind a common end copies what is live of the last segment.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::{Block, Pools};
use crate::base::{Error, Result};
use crate::mlx::Array;
use crate::mlx::kernels::attention::{GROUP, KvShape, Source, Target, convert};
use crate::mlx::kernels::threads;

/// Keys and values of consecutive tokens. Only the kernels know their order.
///
/// Operations change the memory in place. All that concern one value run in the order in which they were built, because
/// each has the last one's `written` as an input.
#[derive(Clone, Debug)]
pub struct Segments {
    shape: KvShape,
    /// Tokens of a segment: a multiple of 16.
    tokens: usize,
    pools: Arc<Pools>,
    /// By the position of their first token over `tokens`; absent ones were given up.
    held: Vec<Option<Held>>,
    /// The same for operations.
    table: Table,
    /// Computed when everything is written that was appended so far; absent before the first time.
    written: Option<Array>,
}

/// The memory of segments, as operations know it.
pub(super) type Table = Arc<[Option<Arc<Block>>]>;

#[derive(Clone, Debug)]
struct Held {
    block: Arc<Block>,
    /// One reference for each value that holds the segment: operations hold the block alone.
    holders: Arc<()>,
}

impl Held {
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.holders) > 1
    }
}

impl Segments {
    /// Without tokens. `tokens` to a segment is a multiple of 16.
    pub fn new(shape: KvShape, tokens: usize, pools: Arc<Pools>) -> Self {
        let tokens = tokens.next_multiple_of(GROUP).max(GROUP);
        Segments { shape, tokens, pools, held: Vec::new(), table: Arc::new([]), written: None }
    }

    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Tokens of a segment.
    pub fn segment_tokens(&self) -> usize {
        self.tokens
    }

    pub(super) fn table(&self) -> Table {
        Arc::clone(&self.table)
    }

    /// What has to be computed for everything to be written.
    pub fn written(&self) -> Option<&Array> {
        self.written.as_ref()
    }

    pub(super) fn set_written(&mut self, written: Array) {
        self.written = Some(written);
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> usize {
        self.shape.key_bytes(self.tokens) + self.shape.value_bytes(self.tokens)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.held.iter().flatten().count() * self.segment_bytes()
    }

    /// Bytes among them that other values hold too.
    pub fn shared_bytes(&self) -> usize {
        self.held.iter().flatten().filter(|held| held.is_shared()).count() * self.segment_bytes()
    }

    /// Bytes that the next write behind the first `tokens` tokens copies: the last segment, if others hold it too.
    pub fn copied_bytes(&self, tokens: usize) -> usize {
        match self.held.get(tokens / self.tokens) {
            Some(Some(held)) if held.is_shared() && !tokens.is_multiple_of(self.tokens) => {
                self.segment_bytes()
            }
            _ => 0,
        }
    }

    /// Makes room for the tokens `from..end` that nobody else writes; what stands before `from` stays. Waits for what
    /// is being written if it has to copy.
    pub fn make_room(&mut self, from: usize, end: usize) -> Result<()> {
        if from >= end {
            return Ok(());
        }
        let (first, last) = (from / self.tokens, (end - 1) / self.tokens);
        let needs_one = |held: Option<&Option<Held>>| match held {
            Some(Some(held)) => held.is_shared(),
            Some(None) | None => true,
        };
        if (first..=last).all(|index| !needs_one(self.held.get(index))) {
            return Ok(());
        }
        // Taken before anything changes: there may be none left.
        let mut fresh = Vec::with_capacity(last + 1 - first);
        for index in first..=last {
            let block = match needs_one(self.held.get(index)) {
                true => Some(Arc::new(self.pools.take(self.segment_bytes())?)),
                false => None,
            };
            fresh.push((index, block));
        }
        let live = from - first * self.tokens;
        if live > 0 {
            let Some(Some(old)) = self.held.get(first) else {
                return Err(Error::internal("tokens were given up that others follow"));
            };
            if let Some((_, Some(block))) = fresh.first() {
                if let Some(written) = &self.written {
                    written.eval()?;
                }
                self.copy(&old.block, block, live);
            }
        }
        if self.held.len() <= last {
            self.held.resize(last + 1, None);
        }
        for (index, block) in fresh {
            if let Some(block) = block {
                self.held[index] = Some(Held { block, holders: Arc::new(()) });
            }
        }
        self.renew();
        Ok(())
    }

    /// Copies the first `live` tokens of a segment to a new one.
    fn copy(&self, from: &Block, to: &Block, live: usize) {
        // SAFETY: the old block is shared, so nothing is written to it any more: operations that did are finished, for
        // this value has waited for all up to the fork. The new one is known to nobody yet.
        let (from, to) = unsafe { (from.bytes(), to.bytes_mut()) };
        let keys = self.shape.key_bytes(self.tokens);
        for part in [0..keys, keys..from.len()].into_iter().filter(|part| !part.is_empty()) {
            // Sixteen tokens of a head lie together.
            let head = part.len() / self.shape.kv_heads;
            let bytes = head / (self.tokens / GROUP) * live.div_ceil(GROUP);
            let heads = from[part.clone()].chunks_exact(head).zip(to[part].chunks_exact_mut(head));
            for (from, to) in heads {
                to[..bytes].copy_from_slice(&from[..bytes]);
            }
        }
    }

    /// The first `tokens` tokens in another shape. Waits for what is being written.
    pub fn converted(&self, shape: KvShape, tokens: usize) -> Result<Self> {
        let mut converted = Self::new(shape, self.tokens, Arc::clone(&self.pools));
        if let Some(written) = &self.written {
            written.eval()?;
        }
        let segments = tokens.div_ceil(self.tokens);
        for (index, held) in self.held.iter().take(segments).enumerate() {
            let live = self.tokens.min(tokens - index * self.tokens);
            let block = match held {
                Some(held) => Some(self.converted_block(&held.block, &shape, live)?),
                None => None,
            };
            let held = block.map(|block| Held { block: Arc::new(block), holders: Arc::new(()) });
            converted.held.push(held);
        }
        converted.renew();
        Ok(converted)
    }

    fn converted_block(&self, from: &Block, shape: &KvShape, live: usize) -> Result<Block> {
        let bytes = shape.key_bytes(self.tokens) + shape.value_bytes(self.tokens);
        let to = self.pools.take(bytes)?;
        // SAFETY: nothing that has been dispatched writes the old block, for this value has waited; the next operation
        // on it comes after this call. The new one is known to nobody yet.
        let (from, memory) = unsafe { (from.bytes(), to.bytes_mut()) };
        let (old_keys, old_values) = from.split_at(self.shape.key_bytes(self.tokens));
        let (keys, values) = memory.split_at_mut(shape.key_bytes(self.tokens));
        let capacity = self.tokens;
        let source = Source { shape: self.shape, keys: old_keys, values: old_values, capacity };
        let target = Target { shape: *shape, keys, values, capacity };
        convert(&*threads::pool()?, &source, target, live)?;
        Ok(to)
    }

    /// Gives up the segments that hold nothing of the first `keep` tokens.
    pub fn cut(&mut self, keep: usize) {
        let segments = keep.div_ceil(self.tokens);
        if segments < self.held.len() {
            self.held.truncate(segments);
            self.renew();
        }
    }

    /// Gives up the segments that hold tokens `from..before` only.
    pub fn give_up(&mut self, from: usize, before: usize) {
        let (first, end) = (from.div_ceil(self.tokens), (before / self.tokens).min(self.held.len()));
        let mut changed = false;
        for held in self.held.iter_mut().take(end).skip(first) {
            changed |= held.take().is_some();
        }
        if changed {
            self.renew();
        }
    }

    /// The first position from which on everything is held, given that the first `keep` tokens are looked at apart.
    pub fn held_from(&self, keep: usize) -> usize {
        let first = keep.div_ceil(self.tokens);
        let absent = self.held.iter().enumerate().skip(first).rev().find(|(_, held)| held.is_none());
        absent.map_or(0, |(index, _)| (index + 1) * self.tokens)
    }

    /// The tokens of the segments that were given up.
    pub fn absent(&self) -> Range<usize> {
        let first = self.held.iter().position(Option::is_none);
        let last = self.held.iter().rposition(Option::is_none);
        match (first, last) {
            (Some(first), Some(last)) => first * self.tokens..(last + 1) * self.tokens,
            _ => 0..0,
        }
    }

    /// The memory of a segment that is held.
    pub(super) fn block(&self, index: usize) -> Option<&Block> {
        self.held.get(index)?.as_ref().map(|held| &*held.block)
    }

    /// Takes memory for a segment that stands behind all others. What the two have between them is given up.
    pub(super) fn add_block(&mut self, index: usize) -> Result<&Block> {
        let block = Arc::new(self.pools.take(self.segment_bytes())?);
        self.held.resize(index, None);
        self.held.push(Some(Held { block, holders: Arc::new(()) }));
        self.block(index).ok_or_else(|| Error::internal("a segment is missing"))
    }

    /// Gives up what stands behind the first `segments` segments, and lacks those that are not there.
    pub(super) fn resize(&mut self, segments: usize) {
        self.held.resize(segments, None);
        self.renew();
    }

    fn renew(&mut self) {
        self.table = self.held.iter().map(|held| held.as_ref().map(|held| Arc::clone(&held.block))).collect();
    }
}
