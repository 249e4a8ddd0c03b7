//! The segments of one layer as an operation knows them: where it writes its tokens, and what it reads.

use super::segments::{Segments, Table};
use crate::base::{Error, Result};
use crate::mlx::kernels::attention::{self, KvShape, NewTokens, Span};
use crate::mlx::kernels::threads;

pub(super) struct Tokens {
    pub shape: KvShape,
    /// Tokens before those of the operation.
    pub offset: usize,
    /// Tokens of a segment.
    segment: usize,
    table: Table,
}

impl Tokens {
    /// Makes room for `tokens` tokens behind the first `offset`. Errors as of `Segments::make_room`.
    pub fn with_room(segments: &mut Segments, offset: usize, tokens: usize) -> Result<Self> {
        segments.make_room(offset, offset + tokens)?;
        let (shape, segment, table) = (*segments.shape(), segments.segment_tokens(), segments.table());
        Ok(Tokens { shape, offset, segment, table })
    }

    /// Writes the new tokens to the segments that they fall into.
    pub fn store(&self, new: &NewTokens<'_>) -> Result<()> {
        let mut done = 0;
        while done < new.tokens {
            let position = self.offset + done;
            let (index, at) = (position / self.segment, position % self.segment);
            let tokens = (self.segment - at).min(new.tokens - done);
            let Some(Some(block)) = self.table.get(index) else {
                return Err(Error::internal("there is no room for a token"));
            };
            // SAFETY: `Segments::make_room` saw that no other value held this segment when this operation was built,
            // and a value that came to hold it since waits for this operation before it reads it by itself; its
            // operations come behind this one, as those of this value do, by `written`. All operations run on one
            // thread after the other.
            let memory = unsafe { block.bytes_mut() };
            let (keys, values) = memory.split_at_mut(self.shape.key_bytes(self.segment));
            let part = NewTokens {
                keys: &new.keys[done * new.key_stride..],
                values: &new.values[done * new.value_stride..],
                tokens,
                ..*new
            };
            attention::store_on(&*threads::pool()?, &self.shape, keys, values, self.segment, at, &part)?;
            done += tokens;
        }
        Ok(())
    }

    /// The first `end` tokens.
    pub fn spans(&self, end: usize) -> Vec<Span<'_>> {
        let mut spans = Vec::with_capacity(end.div_ceil(self.segment));
        for (index, block) in self.table.iter().enumerate() {
            let len = self.segment.min(end.saturating_sub(index * self.segment));
            if len == 0 {
                break;
            }
            let Some(block) = block else {
                spans.push(Span::absent(len));
                continue;
            };
            // SAFETY: operations run on one thread after the other, and what is not an operation writes only to
            // segments that no operation knows.
            let memory = unsafe { block.bytes() };
            let (keys, values) = memory.split_at(self.shape.key_bytes(self.segment));
            spans.push(Span { keys, values, capacity: self.segment, first: 0, len });
        }
        spans
    }
}
