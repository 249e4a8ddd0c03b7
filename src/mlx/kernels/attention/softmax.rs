//! Softmax of one row in one block, and the merging of blocks.

use super::shape::Mask;
use crate::mlx::kernels::sixteen::{LANES, Lanes, largest_lane, sum_of_lanes, tanh};

/// What changes a row's scores before the softmax, besides order and window.
pub struct RowMask<'a> {
    pub mask: Option<Mask<'a>>,
    /// Index into the mask of the block's position 0 for this row; it may lie before the mask's start, as long as
    /// no visible position does.
    pub offset: isize,
}

impl RowMask<'_> {
    /// The score of block position `t` under the mask.
    #[inline(always)]
    fn apply(&self, score: f32, t: usize) -> f32 {
        let at = self.offset.wrapping_add_unsigned(t) as usize;
        match self.mask {
            None => score,
            Some(Mask::Added(added)) => score + added[at],
            Some(Mask::Allowed(allowed)) => {
                if allowed[at] {
                    score
                } else {
                    f32::NEG_INFINITY
                }
            }
        }
    }
}

/// Turns the scores of positions `low..high` of a block into weights e^(score - largest), in place, and those of
/// the other positions in the same groups of sixteen into 0. Gives the largest score and the sum of the weights.
///
/// Position t adds to partial sum t mod 16, in order; then a fixed tree. NaN among the scores makes the sum NaN.
/// If all visible scores are -∞, the largest is -∞ and the sum 0.
#[inline(always)]
pub fn weigh<S: Lanes>(
    s: S,
    scores: &mut [f32],
    low: usize,
    high: usize,
    soft_cap: Option<f32>,
    mask: &RowMask<'_>,
) -> (f32, f32) {
    let hidden = s.splat(f32::NEG_INFINITY);
    let first = low / LANES;
    let end = high.div_ceil(LANES);
    let groups = &mut scores.as_chunks_mut::<LANES>().0[first..end];
    let mut largest = hidden;
    for (i, group) in groups.iter_mut().enumerate() {
        let start = (first + i) * LANES;
        let mut score = s.load(group);
        if let Some(cap) = soft_cap {
            score = s.mul(s.splat(cap), tanh(s, s.div(score, s.splat(cap))));
        }
        if mask.mask.is_some() {
            let mut lanes = [0.0; LANES];
            s.store(score, &mut lanes);
            for t in low.max(start)..high.min(start + LANES) {
                lanes[t - start] = mask.apply(lanes[t - start], t);
            }
            score = s.load(&lanes);
        }
        if start < low {
            score = s.select_less(numbers(s), s.splat((low - start) as f32), hidden, score);
        }
        if high < start + LANES {
            score = s.select_less(numbers(s), s.splat((high - start) as f32), score, hidden);
        }
        s.store(score, group);
        largest = s.max(score, largest);
    }
    let largest = largest_lane(s, largest);
    let base = s.splat(if largest == f32::NEG_INFINITY { 0.0 } else { largest });
    let mut sums = s.splat(0.0);
    for group in groups {
        let weight = s.exp(s.sub(s.load(group), base));
        s.store(weight, group);
        sums = s.add(sums, weight);
    }
    (largest, sum_of_lanes(s, sums))
}

/// 0, 1, … 15.
#[inline(always)]
fn numbers<S: Lanes>(s: S) -> S::V {
    s.load(&[0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.])
}

/// The softmax of some blocks: the largest score, and relative to it the sum of weights.
#[derive(Clone, Copy, Debug)]
pub struct Total {
    pub largest: f32,
    pub sum: f32,
}

impl Total {
    pub const EMPTY: Total = Total { largest: f32::NEG_INFINITY, sum: 0.0 };
}

/// Adds the totals and weighted values of a block to those of rows; a row has `stride` values. A block without any
/// weight changes nothing. The rows' factors are computed sixteen rows at a time.
#[inline(always)]
pub fn merge<S: Lanes>(
    s: S,
    totals: &mut [Total],
    values: &mut [f32],
    blocks: &[Total],
    block_values: &[f32],
    stride: usize,
) {
    let rows = totals.chunks_mut(LANES).zip(blocks.chunks(LANES));
    let values = values.chunks_mut(LANES * stride).zip(block_values.chunks(LANES * stride));
    for ((totals, blocks), (values, block_values)) in rows.zip(values) {
        let mut lanes = [[0.0; LANES]; 4];
        for (row, (total, block)) in totals.iter().zip(blocks).enumerate() {
            lanes[0][row] = total.largest;
            lanes[1][row] = total.sum;
            lanes[2][row] = block.largest;
            lanes[3][row] = block.sum;
        }
        let (total_largest, block_largest) = (s.load(&lanes[0]), s.load(&lanes[2]));
        let largest = s.max(block_largest, total_largest);
        let keep = s.exp(s.sub(total_largest, largest));
        let bring = s.exp(s.sub(block_largest, largest));
        let sum = s.fma(s.load(&lanes[3]), bring, s.mul(s.load(&lanes[1]), keep));
        s.store(largest, &mut lanes[0]);
        s.store(sum, &mut lanes[1]);
        s.store(keep, &mut lanes[2]);
        s.store(bring, &mut lanes[3]);
        let rows = values.chunks_exact_mut(stride).zip(block_values.chunks_exact(stride));
        for (row, (values, block_values)) in rows.enumerate() {
            if blocks[row].sum == 0.0 {
                continue;
            }
            if totals[row].sum == 0.0 {
                totals[row] = blocks[row];
                values.copy_from_slice(block_values);
                continue;
            }
            totals[row] = Total { largest: lanes[0][row], sum: lanes[1][row] };
            let (keep, bring) = (s.splat(lanes[2][row]), s.splat(lanes[3][row]));
            let pairs = values.as_chunks_mut::<LANES>().0.iter_mut().zip(block_values.as_chunks::<LANES>().0);
            for (value, block_value) in pairs {
                s.store(s.fma(s.load(block_value), bring, s.mul(s.load(value), keep)), value);
            }
        }
    }
}

/// The result of a row: weighted values over the sum of weights and of the sink's. Zeros where nothing is visible.
#[inline(always)]
pub fn finish<S: Lanes>(s: S, mut total: Total, values: &mut [f32], sink: Option<f32>, out: &mut [f32]) {
    if let Some(sink) = sink {
        // The sink is a block with one score, whose value is zero.
        let block = Total { largest: sink, sum: if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 } };
        let largest = if block.largest > total.largest { block.largest } else { total.largest };
        if block.sum != 0.0 {
            let keep = s.exp(s.splat(total.largest - largest));
            let bring = s.exp(s.splat(block.largest - largest));
            let mut lanes = [0.0; LANES];
            s.store(s.add(bring, s.mul(s.splat(total.sum), keep)), &mut lanes);
            total = Total { largest, sum: lanes[0] };
            for value in values.as_chunks_mut::<LANES>().0 {
                s.store(s.mul(s.load(value), keep), value);
            }
        }
    }
    if total.sum == 0.0 {
        out.fill(0.0);
        return;
    }
    let sum = s.splat(total.sum);
    for value in values.as_chunks_mut::<LANES>().0 {
        s.store(s.div(s.load(value), sum), value);
    }
    out.copy_from_slice(&values[..out.len()]);
}
