//! Which of the tokens before it a query attends, where an indexer chooses.
//!
//! A position's score is the sum over the indexer's heads, in order, of the head's weight times the positive part of its
//! query times the position's key. Each product of query and key is one chain of fused multiply-adds over the
//! dimensions, as in attention; so a row's choice depends on its query and on the keys that it sees alone.

use std::sync::{Mutex, PoisonError};

use super::aligned::Aligned;
use super::forms::for_form;
use super::micro::{MAX_STRIP, SCORES_STRIDE, ScoreStrip, strip_rows};
use super::shape::{BLOCK, GROUP, KvShape, Sequence, Span};
use super::stored::Keys;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::pool::{Panicked, Pool};
use crate::mlx::kernels::sixteen::{self, LANES, Lanes, Task};

/// What chooses.
#[derive(Clone, Copy, Debug)]
pub struct Indexer {
    pub heads: usize,
    /// Of its keys: one head, of a joint form.
    pub shape: KvShape,
    /// Tokens that a query attends: those with the best scores, of equal ones the first. All while there are no more.
    pub chosen: usize,
}

/// Scores that are held at a time, in floats: queries are taken in parts.
const HELD: usize = 1 << 20;

/// Notes for each query of the sequence which positions it attends, `[queries][positions from 0 on]`; later ones than
/// its own it never does. `queries` are `[queries][heads * dims]`, rotated, `weights` `[queries][heads]`.
///
/// # Panics
/// When lengths do not fit together, a position has no memory or the form is not joint, before anything is computed.
pub fn choose(
    pool: &Pool,
    indexer: &Indexer,
    sequence: &Sequence<'_>,
    queries: &[f32],
    weights: &[f32],
    attended: &mut [bool],
) -> Result<(), Panicked> {
    choose_on(Path::best(), pool, indexer, sequence, queries, weights, attended)
}

/// [`choose`] with the instructions of `path`.
pub fn choose_on(
    path: Path,
    pool: &Pool,
    indexer: &Indexer,
    sequence: &Sequence<'_>,
    queries: &[f32],
    weights: &[f32],
    attended: &mut [bool],
) -> Result<(), Panicked> {
    let end = check(indexer, sequence, queries, weights, attended);
    if end == 0 {
        return Ok(());
    }
    let at_once = (HELD / end).max(1);
    let mut scores = Aligned::default();
    for (part, attended) in attended.chunks_mut(at_once * end).enumerate() {
        let first = part * at_once;
        let scores = scores.floats(attended.len());
        let blocks = scores.chunks_mut(end).enumerate().flat_map(|(query, scores)| {
            let blocks = scores.chunks_mut(BLOCK).enumerate();
            blocks.map(move |(block, scores)| Mutex::new((first + query, block * BLOCK, scores)))
        });
        let blocks: Vec<_> = blocks.collect();
        pool.run_claiming(blocks.len(), &|index| {
            let (query, base, scores) = &mut *blocks[index].lock().unwrap_or_else(PoisonError::into_inner);
            let seen = sequence.position + *query + 1;
            if seen > indexer.chosen && *base < seen {
                let (queries, weights) = (row(queries, *query, sequence), row(weights, *query, sequence));
                let block = Block { path, indexer, sequence, queries, weights, base: *base, scores };
                for_form!(keys indexer.shape.form, block.run());
            }
        })?;
        drop(blocks);
        let rows: Vec<_> = attended.chunks_mut(end).zip(scores.chunks(end)).map(Mutex::new).collect();
        pool.run_claiming(rows.len(), &|index| {
            let (attended, scores) = &mut *rows[index].lock().unwrap_or_else(PoisonError::into_inner);
            best(scores, sequence.position + first + index + 1, indexer.chosen, attended);
        })?;
    }
    Ok(())
}

/// Gives the number of positions.
fn check(
    indexer: &Indexer,
    sequence: &Sequence<'_>,
    queries: &[f32],
    weights: &[f32],
    attended: &[bool],
) -> usize {
    indexer.shape.check();
    assert!(indexer.shape.is_joint() && indexer.shape.kv_heads == 1, "keys of another form");
    assert!(indexer.heads > 0 && indexer.chosen > 0, "an indexer that chooses nothing");
    assert_eq!(queries.len(), sequence.queries * indexer.heads * indexer.shape.key_dims, "length of queries");
    assert_eq!(weights.len(), sequence.queries * indexer.heads, "length of weights");
    assert_eq!(sequence.first_position, 0, "first position");
    let end = sequence.end();
    assert!(sequence.position + sequence.queries <= end, "a query's own key is not there");
    assert_eq!(attended.len(), sequence.queries * end, "length of what is attended");
    sequence.check(&indexer.shape);
    assert!(!sequence.spans.iter().any(Span::is_absent), "a position without memory");
    end
}

/// The part of a query in what all queries have.
fn row<'a>(all: &'a [f32], query: usize, sequence: &Sequence<'_>) -> &'a [f32] {
    let len = all.len() / sequence.queries;
    &all[query * len..][..len]
}

/// Marks the best `chosen` of the first `seen` positions.
fn best(scores: &[f32], seen: usize, chosen: usize, attended: &mut [bool]) {
    attended.fill(false);
    if seen <= chosen {
        attended[..seen].fill(true);
        return;
    }
    // What is no number comes first, so that it shows.
    let score =
        |position: u32| Some(scores[position as usize]).filter(|score| !score.is_nan()).unwrap_or(f32::NAN);
    let mut positions: Vec<u32> = (0..seen as u32).collect();
    positions.select_nth_unstable_by(chosen - 1, |a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
    for position in &positions[..chosen] {
        attended[*position as usize] = true;
    }
}

/// A query's scores of up to a block of positions.
struct Block<'a> {
    path: Path,
    indexer: &'a Indexer,
    sequence: &'a Sequence<'a>,
    /// `[heads * dims]` and `[heads]`
    queries: &'a [f32],
    weights: &'a [f32],
    /// Position of the first score.
    base: usize,
    scores: &'a mut [f32],
}

impl Block<'_> {
    fn run<E: Keys>(self) {
        let dims = self.indexer.shape.key_dims;
        let (mut packed, mut products) = (Aligned::default(), Aligned::default());
        let products = products.floats(MAX_STRIP * SCORES_STRIDE);
        self.scores.fill(0.0);
        let mut head = 0;
        while head < self.indexer.heads {
            let rows = sixteen::run(self.path, Rows(self.indexer.heads - head));
            let queries = packed.floats(rows * dims);
            for (dim, to) in queries.chunks_exact_mut(rows).enumerate() {
                for (row, to) in to.iter_mut().enumerate() {
                    *to = self.queries[(head + row) * dims + dim];
                }
            }
            self.multiply::<E>(queries, rows, products);
            let weights = &self.weights[head..][..rows];
            sixteen::run(self.path, Add { weights, products, scores: self.scores });
            head += rows;
        }
    }

    /// The products of `rows` queries, `[dims][rows]`, and the block's keys.
    fn multiply<E: Keys>(&self, queries: &[f32], rows: usize, products: &mut [f32]) {
        let shape = &self.indexer.shape;
        let (mut start, high) = (0, self.base + self.scores.len());
        for span in self.sequence.spans {
            let (low, end) = (self.base.max(start), high.min(start + span.len));
            if low < end {
                let (at, groups) = ((span.first + low - start) / GROUP, (end - low).div_ceil(GROUP));
                let keys = &span.keys[at * shape.key_group_bytes()..][..groups * shape.key_group_bytes()];
                let products =
                    &mut products[low - self.base..][..(rows - 1) * SCORES_STRIDE + groups * GROUP];
                let strip = ScoreStrip {
                    queries: queries.as_ptr(),
                    rows,
                    dims: shape.key_dims,
                    keys: keys.as_ptr(),
                    groups,
                    out: products.as_mut_ptr(),
                    prefetch: true,
                };
                // SAFETY: the slices were cut to what the strip says: `rows * dims` queries, `groups` groups of
                // keys, and products up to the last row's last group.
                unsafe { E::score(&strip, shape, self.path) };
            }
            start += span.len;
        }
    }
}

/// How many of so many rows come first.
struct Rows(usize);

impl Task for Rows {
    type Output = usize;

    #[inline(always)]
    fn run<S: Lanes>(self, _: S) -> usize {
        strip_rows::<S>(self.0)
    }
}

/// Adds the weighted positive parts of rows of products to the scores.
struct Add<'a> {
    weights: &'a [f32],
    /// `[rows][SCORES_STRIDE]`
    products: &'a [f32],
    scores: &'a mut [f32],
}

impl Task for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        for (weight, products) in self.weights.iter().zip(self.products.chunks(SCORES_STRIDE)) {
            let weight = s.splat(*weight);
            let products = products.as_chunks::<LANES>().0;
            for (scores, products) in self.scores.chunks_mut(LANES).zip(products) {
                let mut sums = [0.0; LANES];
                sums[..scores.len()].copy_from_slice(scores);
                // Of two the second, where there is no larger: what is no number stays.
                let product = s.mul(s.max(s.splat(0.0), s.load(products)), weight);
                s.store(s.add(s.load(&sums), product), &mut sums);
                scores.copy_from_slice(&sums[..scores.len()]);
            }
        }
    }
}
