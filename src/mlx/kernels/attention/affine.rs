//! Affine-quantised keys and values: layout, quantisation and its inverse.
//!
//! Sixteen positions of a head, from a multiple of 16 on, lie together; all words and halves are little-endian.
//!
//! Keys: for each group of dimensions 16 scales and 16 biases in half precision, one for each position; then rows of
//! 16 words of 32 bits, one for each position, where a word holds consecutive dimensions, the first in its lowest
//! bits. So lanes are positions.
//!
//! Values: `[16 positions][groups]` pairs of a scale and a bias in half precision; then rows of 16 words. The values
//! of the positions, one position after the other, are cut into vectors of 16 dimensions; a row of words holds
//! consecutive vectors, the first in the lowest bits of its words. So lanes are dimensions.

use super::halves::nearest;
use super::micro::{ScoreStrip, ValueStrip};
use super::packed::{AffineScores, AffineValues, MOST_GROUPS};
use super::shape::{GROUP, KvShape};
use super::stored::{InPlace, Keys, Stored, Values};
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::sixteen::{self, LANES, Lanes};

/// Bytes of a row of words, and of sixteen halves.
pub const ROW: usize = 64;
pub const HALVES: usize = 32;

/// 1.5 · 2^23: a float of this size has no room for a fraction.
const ROUNDER: f32 = 12_582_912.0;

/// The largest number of dimensions that share a scale.
pub const LARGEST_GROUP: usize = 256;

/// Whole numbers of `BITS` bits with a scale and a bias.
pub struct Affine<const BITS: u32>;

impl<const BITS: u32> Affine<BITS> {
    pub const PER_WORD: usize = (32 / BITS) as usize;
    pub const MASK: u32 = (1 << BITS) - 1;
}

impl<const BITS: u32> Stored for Affine<BITS> {
    const IN_PLACE: InPlace = InPlace::Once;
}

impl<const BITS: u32> Keys for Affine<BITS> {
    #[inline(always)]
    fn keys<S: Lanes>(s: S, shape: &KvShape, from: &[u8], to: &mut [f32]) {
        let group = shape.quantised_group();
        let group_bytes = 2 * HALVES + group / Self::PER_WORD * ROW;
        // One group of dimensions of sixteen positions at a time; a head's follow each other in both.
        for (from, to) in from.chunks_exact(group_bytes).zip(to.chunks_exact_mut(group * GROUP)) {
            let (halves, words) = from.split_at(2 * HALVES);
            let halves = halves.as_chunks::<HALVES>().0;
            let (scale, bias) = (s.load_f16(&halves[0]), s.load_f16(&halves[1]));
            let rows = to.as_chunks_mut::<LANES>().0.chunks_exact_mut(Self::PER_WORD);
            for (words, to) in words.as_chunks::<ROW>().0.iter().zip(rows) {
                let words = s.load_words(words);
                for (i, to) in to.iter_mut().enumerate() {
                    s.store(s.fma(s.field(words, i as u32 * BITS, Self::MASK), scale, bias), to);
                }
            }
        }
    }

    unsafe fn score(strip: &ScoreStrip, shape: &KvShape, path: Path) {
        sixteen::run(path, AffineScores::<BITS> { strip, shape });
    }
}

impl<const BITS: u32> Values for Affine<BITS> {
    #[inline(always)]
    fn values<S: Lanes>(s: S, shape: &KvShape, from: &[u8], _: usize, to: &mut [f32], stride: usize) {
        let (group, dims) = (shape.quantised_group(), shape.value_dims);
        assert!(dims == stride);
        let pairs = GROUP * (dims / group) * 4;
        for (from, to) in
            from.chunks_exact(shape.value_group_bytes()).zip(to.chunks_exact_mut(GROUP * stride))
        {
            let (pairs, words) = from.split_at(pairs);
            let rows = words.as_chunks::<ROW>().0;
            let mut vectors = to.as_chunks_mut::<LANES>().0.iter_mut();
            let mut done = 0;
            let mut words = s.load_words(&rows[0]);
            // Eight pairs of scale and bias at a time.
            for halves in pairs.as_chunks::<HALVES>().0 {
                let mut pairs = [0.0; LANES];
                s.store(s.load_f16(halves), &mut pairs);
                for [scale, bias] in pairs.as_chunks::<2>().0 {
                    let (scale, bias) = (s.splat(*scale), s.splat(*bias));
                    for to in vectors.by_ref().take(group / LANES) {
                        let field = done % Self::PER_WORD;
                        if field == 0 {
                            words = s.load_words(&rows[done / Self::PER_WORD]);
                        }
                        s.store(s.fma(s.field(words, field as u32 * BITS, Self::MASK), scale, bias), to);
                        done += 1;
                    }
                }
            }
        }
    }

    fn fit(shape: &KvShape) -> bool {
        shape.value_dims / shape.quantised_group() <= MOST_GROUPS
    }

    unsafe fn weigh(strip: &ValueStrip, shape: &KvShape, path: Path) {
        sixteen::run(path, AffineValues::<BITS> { strip, shape });
    }
}

/// Quantises a group of numbers, a multiple of 16, as MLX does. Gives scale and bias; `numbers` are the whole numbers.
///
/// The end of the range that is further from 0 is hit exactly: it is the bias, and the scale is such that 0 is a whole
/// number of steps away. The scale is negative if that end is the upper one.
pub fn quantise(from: &[f32], bits: u32, numbers: &mut [u32]) -> (f32, f32) {
    let mask = (1_u32 << bits) - 1;
    let steps = mask as f32;
    let (mut lows, mut highs) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    for values in from.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lows[lane] = if values[lane] < lows[lane] { values[lane] } else { lows[lane] };
            highs[lane] = if values[lane] > highs[lane] { values[lane] } else { highs[lane] };
        }
    }
    let low = lows.into_iter().fold(f32::INFINITY, f32::min);
    let high = highs.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let below = low.abs() > high.abs();
    let scale = ((high - low) / steps).max(1e-7);
    let mut scale = if below { scale } else { -scale };
    let edge = if below { low } else { high };
    let steps_to_zero = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if steps_to_zero != 0.0 {
        scale = edge / steps_to_zero;
        bias = edge;
    }
    for (number, value) in numbers.iter_mut().zip(from) {
        // The sum rounds to a whole number, ties to even, and has it in its low bits.
        *number = (((value - bias) / scale).clamp(0.0, steps) + ROUNDER).to_bits() & mask;
    }
    (scale, bias)
}

/// Stores the key of one position: `lane` of the sixteen positions whose bytes are `to`.
pub fn store_key(bits: u32, group: usize, from: &[f32], to: &mut [u8], lane: usize) {
    let per_word = (32 / bits) as usize;
    let group_bytes = 2 * HALVES + group / per_word * ROW;
    let mut numbers = [0; LARGEST_GROUP];
    let numbers = &mut numbers[..group];
    for (from, to) in from.chunks_exact(group).zip(to.chunks_exact_mut(group_bytes)) {
        let (scale, bias) = quantise(from, bits, numbers);
        let (halves, words) = to.split_at_mut(2 * HALVES);
        let halves = halves.as_chunks_mut::<2>().0;
        halves[lane] = nearest(scale).to_le_bytes();
        halves[LANES + lane] = nearest(bias).to_le_bytes();
        for (row, numbers) in words.chunks_exact_mut(ROW).zip(numbers.chunks_exact(per_word)) {
            let mut word = 0;
            for (i, number) in numbers.iter().enumerate() {
                word |= number << (i as u32 * bits);
            }
            row.as_chunks_mut::<4>().0[lane] = word.to_le_bytes();
        }
    }
}

/// Stores the value of one position: number `at` of the sixteen positions whose bytes are `to`.
pub fn store_value(bits: u32, group: usize, from: &[f32], to: &mut [u8], at: usize) {
    let (per_word, mask) = ((32 / bits) as usize, (1_u32 << bits) - 1);
    let groups = from.len() / group;
    let mut numbers = [0; LARGEST_GROUP];
    let numbers = &mut numbers[..group];
    let (pairs, words) = to.split_at_mut(GROUP * groups * 4);
    let words = words.as_chunks_mut::<4>().0;
    for (index, from) in from.chunks_exact(group).enumerate() {
        let (scale, bias) = quantise(from, bits, numbers);
        let pair = &mut pairs[(at * groups + index) * 4..][..4];
        pair[..2].copy_from_slice(&nearest(scale).to_le_bytes());
        pair[2..].copy_from_slice(&nearest(bias).to_le_bytes());
        let first = (at * groups + index) * group / LANES;
        for (vector, numbers) in (first..).zip(numbers.as_chunks::<LANES>().0) {
            let shift = (vector % per_word) as u32 * bits;
            let row = &mut words[vector / per_word * LANES..][..LANES];
            for (word, number) in row.iter_mut().zip(numbers) {
                // Other positions have the word's other bits.
                *word = (u32::from_le_bytes(*word) & !(mask << shift) | number << shift).to_le_bytes();
            }
        }
    }
}
