//! One block of a tile: scores, softmax and weighted values of all rows.

use std::marker::PhantomData;

use super::forms::for_form;
use super::micro::{SCORES_STRIDE, ScoreStrip, ValueStrip};
use super::shape::{BLOCK, GROUP, KvShape};
use super::softmax::{RowMask, Total, weigh};
use super::stored::{F32, InPlace, Keys, ReadKeys, ReadValues, Values};
use super::tile::{Scratch, Work};
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::sixteen::{self, Lanes};

/// How far ahead of their use values are fetched, in bytes.
const VALUES_AHEAD: usize = 4096;

/// Positions whose values are converted to float32 at a time.
const VALUE_CHUNK: usize = 64;

/// Keys converted to float32 at a time, in bytes: they stay in the first-level cache.
const KEY_CHUNK: usize = 16 << 10;

/// A run of positions of a block that lie together in a slab.
struct Piece<'a> {
    keys: &'a [u8],
    values: &'a [u8],
    /// Block position of the first one, a multiple of 16, and one past the last.
    start: usize,
    end: usize,
}

impl Work<'_> {
    /// Computes each row's softmax and weighted values in a part of one block, relative to the largest score there.
    #[inline(always)]
    pub fn block<S: Lanes>(&self, s: S, (part, block): (usize, usize), scratch: &mut Scratch) {
        let base = block * BLOCK;
        let (mut lowest, mut highest) = (BLOCK, 0);
        scratch.in_block.clear();
        for visible in &scratch.visible {
            let (low, high) = (visible[part].0.max(base), visible[part].1.min(base + BLOCK));
            if low < high {
                lowest = lowest.min(low - base);
                highest = highest.max(high - base);
                scratch.in_block.push((low - base, high - base));
            } else {
                scratch.in_block.push((0, 0));
            }
        }
        scratch.block_totals.fill(Total::EMPTY);
        if lowest >= highest {
            return;
        }
        let lowest = lowest / GROUP * GROUP;
        let mut next = self.first_span(base + lowest);
        while let Some(piece) = self.piece(&mut next, base, lowest, highest) {
            for_form!(keys self.attention.shape.form, self.scores(piece, scratch));
        }
        let stride = self.value_stride();
        let scores = scratch.scores.floats(self.rows() * SCORES_STRIDE);
        let sums = scratch.block_values.floats(self.rows() * stride);
        let keys = self.end - self.sequence.first_position;
        for (row, &(low, high)) in scratch.in_block.iter().enumerate() {
            if low < high {
                let query = self.tile.query + row / self.group();
                let start = (query * keys) as isize + base as isize - self.sequence.first_position as isize;
                let mask = RowMask { mask: self.sequence.mask, offset: start };
                let scores = &mut scores[row * SCORES_STRIDE..][..SCORES_STRIDE];
                let (largest, sum) = weigh(s, scores, low, high, self.attention.soft_cap, &mask);
                scratch.block_totals[row] = Total { largest, sum };
                sums[row * stride..][..stride].fill(0.0);
            }
        }
        let mut next = self.first_span(base + lowest);
        while let Some(piece) = self.piece(&mut next, base, lowest, highest) {
            for_form!(values self.attention.shape.form, self.values(piece, scratch));
        }
    }

    /// Index of the span that holds an absolute position.
    #[inline(always)]
    fn first_span(&self, position: usize) -> usize {
        self.starts.partition_point(|&start| start <= position).saturating_sub(1)
    }

    /// The part of the block's positions `low..high` that lies in span `next` or, if that has none, in the first
    /// one after it that has some. `low` is a multiple of 16. Then `next` is the span after that.
    #[inline(always)]
    fn piece(&self, next: &mut usize, base: usize, low: usize, high: usize) -> Option<Piece<'_>> {
        let shape = &self.attention.shape;
        while *next < self.sequence.spans.len() && self.starts[*next] < base + high {
            let span = &self.sequence.spans[*next];
            let span_start = self.starts[*next];
            let start = (base + low).max(span_start);
            let end = (base + high).min(span_start + span.len);
            *next += 1;
            if start < end {
                let at = (self.tile.kv_head * span.capacity + span.first + (start - span_start)) / GROUP;
                let keys = &span.keys[at * shape.key_group_bytes()..];
                return Some(Piece {
                    keys,
                    values: match shape.is_joint() {
                        true => keys,
                        false => &span.values[at * shape.value_group_bytes()..],
                    },
                    start: start - base,
                    end: end - base,
                });
            }
        }
        None
    }

    /// The scores of all rows against the keys of a piece.
    fn scores<E: Keys>(&self, piece: Piece<'_>, scratch: &mut Scratch) {
        let dims = self.attention.shape.key_dims;
        let queries = scratch.queries.floats(self.rows() * dims).as_ptr();
        let scores = scratch.scores.floats(self.rows() * SCORES_STRIDE).as_mut_ptr();
        let group_bytes = self.attention.shape.key_group_bytes();
        let (first, end) = (piece.start / GROUP, piece.end.div_ceil(GROUP));
        // Reading the slab makes sure that all groups of the piece are there.
        let keys = &piece.keys[..(end - first) * group_bytes];
        let direct = in_place(E::IN_PLACE, scratch);
        let step = if direct { end - first } else { (KEY_CHUNK / (dims * GROUP * 4)).max(2) };
        let mut at = first;
        while at < end {
            let groups = step.min(end - at);
            let chunk = &keys[(at - first) * group_bytes..][..groups * group_bytes];
            let mut source = chunk.as_ptr();
            if !direct {
                let converted = scratch.keys.floats(groups * dims * GROUP);
                let shape = &self.attention.shape;
                let read = ReadKeys { form: PhantomData::<E>, shape, from: chunk, to: converted };
                sixteen::run(self.path, read);
                source = converted.as_ptr().cast();
            }
            for strip in &scratch.strips {
                let (low, high) = reach(&scratch.in_block[strip.first..][..strip.rows]);
                let (low, high) = ((low / GROUP).max(at), high.div_ceil(GROUP).min(at + groups));
                if low >= high {
                    continue;
                }
                let bytes = if direct { group_bytes } else { dims * GROUP * 4 };
                // SAFETY: queries and scores are as large as asked for above, with the strip's rows inside;
                // `low..high` lies in the chunk of `groups` groups that `source` points to.
                unsafe {
                    let work = ScoreStrip {
                        queries: queries.add(strip.first * dims),
                        rows: strip.rows,
                        dims,
                        keys: source.add((low - at) * bytes),
                        groups: high - low,
                        out: scores.add(strip.first * SCORES_STRIDE + low * GROUP),
                        prefetch: direct && scratch.strips.len() == 1,
                    };
                    if direct {
                        E::score(&work, &self.attention.shape, self.path);
                    } else {
                        work.run::<F32>(self.path);
                    }
                }
            }
            at += groups;
        }
    }

    /// Adds the weighted values of a piece to the rows' sums.
    fn values<E: Values>(&self, piece: Piece<'_>, scratch: &mut Scratch) {
        let stride = self.value_stride();
        let weights = scratch.scores.floats(self.rows() * SCORES_STRIDE).as_ptr();
        let sums = scratch.block_values.floats(self.rows() * stride).as_mut_ptr();
        let group_bytes = self.attention.shape.value_source_bytes();
        // Reading the slab makes sure that all positions of the piece are there.
        let values = &piece.values[..(piece.end - piece.start).div_ceil(GROUP) * group_bytes];
        let direct = in_place(E::IN_PLACE, scratch) && E::fit(&self.attention.shape);
        let step = if direct { piece.end - piece.start } else { VALUE_CHUNK };
        let ahead = if direct && scratch.strips.len() == 1 { VALUES_AHEAD } else { 0 };
        let mut at = piece.start;
        while at < piece.end {
            let positions = step.min(piece.end - at);
            let groups = positions.div_ceil(GROUP);
            let chunk = &values[(at - piece.start) / GROUP * group_bytes..][..groups * group_bytes];
            let mut source = chunk.as_ptr();
            if !direct {
                let converted = scratch.values.floats(groups * GROUP * stride);
                let (form, shape) = (PhantomData::<E>, &self.attention.shape);
                let read = ReadValues { form, shape, from: chunk, positions, to: converted, stride };
                sixteen::run(self.path, read);
                source = converted.as_ptr().cast();
            }
            let chunk = ValueChunk {
                source,
                weights,
                sums,
                stride,
                shape: direct.then_some(&self.attention.shape),
                at,
                end: at + positions,
                ahead,
                path: self.path,
            };
            for strip in &scratch.strips {
                let visible = &scratch.in_block[strip.first..][..strip.rows];
                let (low, high) = common(visible);
                if low >= high {
                    for (row, &(low, high)) in visible.iter().enumerate() {
                        chunk.add::<E>(strip.first + row, 1, low, high);
                    }
                    continue;
                }
                // What only some rows see is added to those alone: a value that a row does not see must not
                // touch it, not even times zero.
                for (row, seen) in visible.iter().enumerate() {
                    chunk.add::<E>(strip.first + row, 1, seen.0, low);
                }
                chunk.add::<E>(strip.first, strip.rows, low, high);
                for (row, seen) in visible.iter().enumerate() {
                    chunk.add::<E>(strip.first + row, 1, high, seen.1);
                }
            }
            at += positions;
        }
    }
}

/// Some positions of a piece with their values, either as they are stored or converted to float32.
struct ValueChunk<'a> {
    source: *const u8,
    weights: *const f32,
    sums: *mut f32,
    /// Floats of a row of sums.
    stride: usize,
    /// The shape of values that are as stored.
    shape: Option<&'a KvShape>,
    /// Block position of the first one, and one past the last.
    at: usize,
    end: usize,
    ahead: usize,
    path: Path,
}

impl ValueChunk<'_> {
    /// Adds the values of positions `low..high`, as far as they are in the chunk, to rows from `first` on. The
    /// pointers are good for these rows and for the positions of the chunk.
    #[inline(always)]
    fn add<E: Values>(&self, first: usize, rows: usize, low: usize, high: usize) {
        let (low, high) = (low.max(self.at), high.min(self.end));
        if low >= high {
            return;
        }
        // SAFETY: `Work::values`, which alone makes and uses a chunk, took the pointers from slices as large as
        // the rows and positions ask for, and `low..high` lies in the chunk.
        unsafe {
            let work = ValueStrip {
                weights: self.weights.add(first * SCORES_STRIDE + low),
                rows,
                values: self.source,
                first: low - self.at,
                positions: high - low,
                dims: self.stride,
                out: self.sums.add(first * self.stride),
                ahead: self.ahead,
            };
            match self.shape {
                Some(shape) => E::weigh(&work, shape, self.path),
                None => work.run::<F32>(self.path),
            }
        }
    }
}

/// Whether a form that is read in place at such times is read so now.
fn in_place(when: InPlace, scratch: &Scratch) -> bool {
    when == InPlace::Always || when == InPlace::Once && scratch.strips.len() == 1
}

/// The positions that any of the rows sees: from, up to. Empty rows are (0, 0).
#[inline(always)]
fn reach(visible: &[(usize, usize)]) -> (usize, usize) {
    let (mut from, mut to) = (BLOCK, 0);
    for &(low, high) in visible {
        if low < high {
            from = from.min(low);
            to = to.max(high);
        }
    }
    (from, to)
}

/// The positions that all of the rows see: from, up to.
#[inline(always)]
fn common(visible: &[(usize, usize)]) -> (usize, usize) {
    let (mut from, mut to) = (0, BLOCK);
    for &(low, high) in visible {
        from = from.max(low);
        to = to.min(high);
    }
    (from, to)
}
