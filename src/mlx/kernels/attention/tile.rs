//! A tile: some consecutive queries of one sequence with all heads that share one key/value head.

use super::aligned::Aligned;
use super::micro::{MAX_STRIP, SCORES_STRIDE, ScoreStrip, ValueStrip, strip_rows};
use super::shape::{Attention, BLOCK, Bf16, Element, F16, F32, GROUP, KvFloat, Sequence};
use super::softmax::{RowMask, Total, weigh};
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::sixteen::{LANES, Lanes};

/// Rows of a tile that is not a single query.
const TILE_ROWS: usize = 48;

/// Keys converted to float32 at a time, in bytes: they stay in the first-level cache.
const KEY_CHUNK: usize = 16 << 10;

/// Positions whose values are converted to float32 at a time.
const VALUE_CHUNK: usize = 64;

/// How far ahead of their use values are fetched, in bytes.
const VALUES_AHEAD: usize = 4096;

/// Some consecutive queries of a sequence and one key/value head.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Index into the call's sequences.
    pub sequence: usize,
    pub kv_head: usize,
    /// First query, counted in the sequence.
    pub query: usize,
    pub queries: usize,
    /// Index of the sequence's first query among all queries of the call.
    pub offset: usize,
}

/// Queries of a tile for so many query heads to a key/value head.
pub fn tile_queries(group: usize) -> usize {
    (TILE_ROWS / group).max(1)
}

/// What a thread needs to compute a tile. Its size depends on the tile and on the sizes of a head, not on the
/// number of positions.
#[derive(Default)]
pub struct Scratch {
    /// Scaled queries, strip by strip as `[key_dims][rows]`.
    queries: Aligned,
    /// Scores, then weights, as `[rows][SCORES_STRIDE]`.
    scores: Aligned,
    /// Converted keys and values.
    keys: Aligned,
    values: Aligned,
    /// Weighted values of a block and of all blocks so far, `[rows][padded value dims]`.
    pub block_values: Aligned,
    pub all_values: Aligned,
    pub block_totals: Vec<Total>,
    pub all_totals: Vec<Total>,
    strips: Vec<Strip>,
    /// Absolute positions that each row sees: from, up to.
    visible: Vec<(usize, usize)>,
    /// The same within the block at hand; empty rows are (0, 0).
    in_block: Vec<(usize, usize)>,
}

#[derive(Clone, Copy)]
struct Strip {
    first: usize,
    rows: usize,
}

/// A run of positions of a block that lie together in a slab.
struct Piece<'a> {
    keys: &'a [u8],
    values: &'a [u8],
    /// Block position of the first one, a multiple of 16, and one past the last.
    start: usize,
    end: usize,
}

/// A tile with its surroundings.
pub struct Work<'a> {
    /// The instructions for the inner loops.
    pub path: Path,
    pub attention: &'a Attention<'a>,
    pub sequence: &'a Sequence<'a>,
    /// Absolute position at which each span of the sequence starts.
    pub starts: &'a [usize],
    pub tile: Tile,
    /// Of the whole call, `[all queries][heads * key_dims]`.
    pub queries: &'a [f32],
}

impl Work<'_> {
    /// Query heads to a key/value head.
    #[inline(always)]
    fn group(&self) -> usize {
        self.attention.heads / self.attention.shape.kv_heads
    }

    /// Rows of the tile: query by query, head by head.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.tile.queries * self.group()
    }

    /// The query, counted in the call, and the head of a row.
    #[inline(always)]
    pub fn query_and_head(&self, row: usize) -> (usize, usize) {
        let group = self.group();
        (self.tile.offset + self.tile.query + row / group, self.tile.kv_head * group + row % group)
    }

    /// Floats of a row of weighted values.
    #[inline(always)]
    pub fn value_stride(&self) -> usize {
        self.attention.shape.value_dims.next_multiple_of(LANES)
    }

    /// The positions that a query of the tile sees: from, up to.
    #[inline(always)]
    fn sees(&self, query: usize) -> (usize, usize) {
        let position = self.sequence.position + self.tile.query + query;
        let end = self.sequence.end();
        let high = if self.attention.causal { end.min(position + 1) } else { end };
        let low = match self.attention.window {
            Some(window) => (position + 1).saturating_sub(window).max(self.sequence.first_position),
            None => self.sequence.first_position,
        };
        if low < high { (low, high) } else { (low, low) }
    }

    /// The blocks of which the tile sees something: from, up to. The outermost queries decide.
    pub fn blocks(&self) -> (usize, usize) {
        let (mut first, mut end) = (usize::MAX, 0);
        for query in [0, self.tile.queries - 1] {
            let (low, high) = self.sees(query);
            if low < high {
                first = first.min(low / BLOCK);
                end = end.max(high.div_ceil(BLOCK));
            }
        }
        (first.min(end), end)
    }

    /// Packs the queries and notes what each row sees.
    #[inline(always)]
    pub fn prepare<S: Lanes>(&self, _: S, scratch: &mut Scratch) {
        let dims = self.attention.shape.key_dims;
        let rows = self.rows();
        scratch.strips.clear();
        scratch.visible.clear();
        for query in 0..self.tile.queries {
            let sees = self.sees(query);
            scratch.visible.extend(std::iter::repeat_n(sees, self.group()));
        }
        scratch.all_totals.clear();
        scratch.all_totals.resize(rows, Total::EMPTY);
        scratch.block_totals.clear();
        scratch.block_totals.resize(rows, Total::EMPTY);
        scratch.all_values.floats(rows * self.value_stride()).fill(0.0);
        let packed = scratch.queries.floats(rows * dims);
        let mut first = 0;
        while first < rows {
            let strip = Strip { first, rows: strip_rows::<S>(rows - first) };
            // Where each row's query starts among all queries.
            let mut from = [0; MAX_STRIP];
            for (row, from) in from[..strip.rows].iter_mut().enumerate() {
                let (query, head) = self.query_and_head(first + row);
                *from = (query * self.attention.heads + head) * dims;
            }
            let to = &mut packed[first * dims..][..strip.rows * dims];
            for (dim, to) in to.chunks_exact_mut(strip.rows).enumerate() {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = self.queries[from + dim] * self.attention.scale;
                }
            }
            scratch.strips.push(strip);
            first += strip.rows;
        }
    }

    /// Computes each row's softmax and weighted values in one block, relative to the block's largest score.
    #[inline(always)]
    pub fn block<S: Lanes>(&self, s: S, block: usize, scratch: &mut Scratch) {
        let base = block * BLOCK;
        let (mut lowest, mut highest) = (BLOCK, 0);
        scratch.in_block.clear();
        for &(low, high) in &scratch.visible {
            let (low, high) = (low.max(base), high.min(base + BLOCK));
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
            match self.attention.shape.float {
                KvFloat::F32 => self.scores::<S, F32>(s, piece, scratch),
                KvFloat::F16 => self.scores::<S, F16>(s, piece, scratch),
                KvFloat::Bf16 => self.scores::<S, Bf16>(s, piece, scratch),
            }
        }
        let stride = self.value_stride();
        let scores = scratch.scores.floats(self.rows() * SCORES_STRIDE);
        let sums = scratch.block_values.floats(self.rows() * stride);
        let keys = self.sequence.end() - self.sequence.first_position;
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
            match self.attention.shape.float {
                KvFloat::F32 => self.values::<S, F32>(s, piece, scratch),
                KvFloat::F16 => self.values::<S, F16>(s, piece, scratch),
                KvFloat::Bf16 => self.values::<S, Bf16>(s, piece, scratch),
            }
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
                let at = self.tile.kv_head * span.capacity + span.first + (start - span_start);
                let bytes = shape.float.bytes();
                return Some(Piece {
                    keys: &span.keys[at * shape.key_dims * bytes..],
                    values: &span.values[at * shape.value_dims * bytes..],
                    start: start - base,
                    end: end - base,
                });
            }
        }
        None
    }

    /// The scores of all rows against the keys of a piece.
    #[inline(always)]
    fn scores<S: Lanes, E: Element>(&self, s: S, piece: Piece<'_>, scratch: &mut Scratch) {
        let dims = self.attention.shape.key_dims;
        let queries = scratch.queries.floats(self.rows() * dims).as_ptr();
        let scores = scratch.scores.floats(self.rows() * SCORES_STRIDE).as_mut_ptr();
        let group_bytes = dims * GROUP * E::BYTES;
        let (first, end) = (piece.start / GROUP, piece.end.div_ceil(GROUP));
        // Reading the slab makes sure that all groups of the piece are there.
        let keys = &piece.keys[..(end - first) * group_bytes];
        let direct = E::BYTES == 4 || scratch.strips.len() == 1;
        let step = if direct { end - first } else { (KEY_CHUNK / (dims * GROUP * 4)).max(2) };
        let mut at = first;
        while at < end {
            let groups = step.min(end - at);
            let chunk = &keys[(at - first) * group_bytes..][..groups * group_bytes];
            let mut source = chunk.as_ptr();
            if !direct {
                let converted = scratch.keys.floats(groups * dims * GROUP);
                convert::<S, E>(s, chunk, converted);
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
                    if direct { work.run::<E>(self.path) } else { work.run::<F32>(self.path) }
                }
            }
            at += groups;
        }
    }

    /// Adds the weighted values of a piece to the rows' sums.
    #[inline(always)]
    fn values<S: Lanes, E: Element>(&self, s: S, piece: Piece<'_>, scratch: &mut Scratch) {
        let dims = self.attention.shape.value_dims;
        let stride = self.value_stride();
        let weights = scratch.scores.floats(self.rows() * SCORES_STRIDE).as_ptr();
        let sums = scratch.block_values.floats(self.rows() * stride).as_mut_ptr();
        let row_bytes = dims * E::BYTES;
        // Reading the slab makes sure that all positions of the piece are there.
        let values = &piece.values[..(piece.end - piece.start) * row_bytes];
        let direct = dims == stride && (E::BYTES == 4 || scratch.strips.len() == 1);
        let step = if direct { piece.end - piece.start } else { VALUE_CHUNK };
        let ahead = if direct && scratch.strips.len() == 1 { VALUES_AHEAD } else { 0 };
        let mut at = piece.start;
        while at < piece.end {
            let positions = step.min(piece.end - at);
            let chunk = &values[(at - piece.start) * row_bytes..][..positions * row_bytes];
            let mut source = chunk.as_ptr();
            if !direct {
                let converted = scratch.values.floats(positions * stride);
                convert_rows::<S, E>(s, chunk, dims, converted, stride);
                source = converted.as_ptr().cast();
            }
            let chunk = ValueChunk {
                source,
                weights,
                sums,
                stride,
                direct,
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
struct ValueChunk {
    source: *const u8,
    weights: *const f32,
    sums: *mut f32,
    /// Floats of a row of sums.
    stride: usize,
    /// Whether the values are as stored; then a row of them has `stride` elements too.
    direct: bool,
    /// Block position of the first one, and one past the last.
    at: usize,
    end: usize,
    ahead: usize,
    path: Path,
}

impl ValueChunk {
    /// Adds the values of positions `low..high`, as far as they are in the chunk, to rows from `first` on. The
    /// pointers are good for these rows and for the positions of the chunk.
    #[inline(always)]
    fn add<E: Element>(&self, first: usize, rows: usize, low: usize, high: usize) {
        let (low, high) = (low.max(self.at), high.min(self.end));
        if low >= high {
            return;
        }
        let bytes = self.stride * if self.direct { E::BYTES } else { 4 };
        // SAFETY: `Work::values`, which alone makes and uses a chunk, took the pointers from slices as large as
        // the rows and positions ask for, and `low..high` lies in the chunk.
        unsafe {
            let work = ValueStrip {
                weights: self.weights.add(first * SCORES_STRIDE + low),
                rows,
                values: self.source.add((low - self.at) * bytes),
                positions: high - low,
                dims: self.stride,
                out: self.sums.add(first * self.stride),
                ahead: self.ahead,
            };
            if self.direct { work.run::<E>(self.path) } else { work.run::<F32>(self.path) }
        }
    }
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

/// Converts a multiple of sixteen numbers.
#[inline(always)]
fn convert<S: Lanes, E: Element>(s: S, from: &[u8], to: &mut [f32]) {
    assert!(from.len() == to.len() * E::BYTES);
    for (i, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        // SAFETY: the lengths match, so that these sixteen numbers are there.
        s.store(unsafe { E::load(s, from.as_ptr().add(i * LANES * E::BYTES)) }, to);
    }
}

/// Converts rows of `dims` numbers into rows of `stride` floats, a multiple of sixteen, filled up with zeros.
#[inline(always)]
fn convert_rows<S: Lanes, E: Element>(s: S, from: &[u8], dims: usize, to: &mut [f32], stride: usize) {
    if dims == stride {
        return convert::<S, E>(s, from, to);
    }
    let whole = dims / LANES * LANES;
    for (from, to) in from.chunks_exact(dims * E::BYTES).zip(to.chunks_exact_mut(stride)) {
        convert::<S, E>(s, &from[..whole * E::BYTES], &mut to[..whole]);
        let tail = from[whole * E::BYTES..].chunks_exact(E::BYTES).map(E::one);
        to[whole..].iter_mut().zip(tail.chain(std::iter::repeat(0.0))).for_each(|(to, value)| *to = value);
    }
}
