//! A tile: some consecutive queries of one sequence with all heads that share one key/value head.

use super::aligned::Aligned;
use super::micro::{MAX_STRIP, strip_rows};
use super::shape::{Attention, BLOCK, Sequence};
use super::softmax::Total;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::sixteen::{LANES, Lanes};

/// Rows of a tile that is not a single query.
const TILE_ROWS: usize = 48;

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
    pub queries: Aligned,
    /// Scores, then weights, as `[rows][SCORES_STRIDE]`.
    pub scores: Aligned,
    /// Converted keys and values.
    pub keys: Aligned,
    pub values: Aligned,
    /// Weighted values of a block and of all blocks so far, `[rows][padded value dims]`.
    pub block_values: Aligned,
    pub all_values: Aligned,
    pub block_totals: Vec<Total>,
    pub all_totals: Vec<Total>,
    pub strips: Vec<Strip>,
    /// Absolute positions that each row sees: kept ones, and the others.
    pub visible: Vec<[Reach; 2]>,
    /// The same within the block at hand; empty rows are (0, 0).
    pub in_block: Vec<Reach>,
}

/// Rows that are computed together.
#[derive(Clone, Copy)]
pub struct Strip {
    pub first: usize,
    pub rows: usize,
}

/// Positions: from, up to.
pub type Reach = (usize, usize);

/// What query number `query` of a sequence whose positions end at `end` sees: kept positions, and the others.
#[inline(always)]
pub fn sees(attention: &Attention<'_>, sequence: &Sequence<'_>, end: usize, query: usize) -> [Reach; 2] {
    let position = sequence.position + query;
    let high = if attention.causal { end.min(position + 1) } else { end };
    let first = sequence.first_position;
    let low = attention.window.map_or(first, |window| (position + 1).saturating_sub(window).max(first));
    [(first, high.min(attention.keep)), (low.max(attention.keep), high)]
        .map(|(low, high)| if low < high { (low, high) } else { (low, low) })
}

/// The blocks that a tile visits: from, up to, of kept positions and of the others.
pub struct Blocks([(usize, usize); 2]);

impl Blocks {
    /// How many visits there are.
    pub fn visits(&self) -> usize {
        self.0.iter().map(|(first, end)| end - first).sum()
    }

    /// Visit number `index`: the part of what a row sees, and the block.
    pub fn visit(&self, index: usize) -> (usize, usize) {
        let [(first, end), (others, _)] = self.0;
        if index < end - first { (0, first + index) } else { (1, others + index - (end - first)) }
    }
}

/// A tile with its surroundings.
pub struct Work<'a> {
    /// The instructions for the inner loops.
    pub path: Path,
    pub attention: &'a Attention<'a>,
    pub sequence: &'a Sequence<'a>,
    /// Absolute position at which each span of the sequence starts, and one past the last position.
    pub starts: &'a [usize],
    pub end: usize,
    pub tile: Tile,
    /// Of the whole call, `[all queries][heads * key_dims]`.
    pub queries: &'a [f32],
}

impl Work<'_> {
    /// Query heads to a key/value head.
    #[inline(always)]
    pub fn group(&self) -> usize {
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

    /// Floats for what a block gives: weighted values and totals of all rows.
    pub fn slot_floats(&self) -> usize {
        self.rows() * (self.value_stride() + 2)
    }

    /// What a query of the tile sees.
    #[inline(always)]
    fn sees(&self, query: usize) -> [Reach; 2] {
        sees(self.attention, self.sequence, self.end, self.tile.query + query)
    }

    /// The blocks of which the tile sees something. The outermost queries decide.
    pub fn blocks(&self) -> Blocks {
        let outermost = [0, self.tile.queries - 1].map(|query| self.sees(query));
        Blocks([0, 1].map(|part| {
            let (mut first, mut end) = (usize::MAX, 0);
            for (low, high) in outermost.map(|sees| sees[part]) {
                if low < high {
                    first = first.min(low / BLOCK);
                    end = end.max(high.div_ceil(BLOCK));
                }
            }
            (first.min(end), end)
        }))
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
}
