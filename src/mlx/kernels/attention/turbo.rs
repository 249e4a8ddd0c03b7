//! Keys and values of TurboQuant: layout, quantisation and its inverse. The format is in `mlx/turboquant`.
//!
//! Sixteen positions of a head, from a multiple of 16 on, lie together; all words and halves are little-endian. In
//! each lane, 32 numbers of b bits follow each other in b words, the first in the lowest bits.
//!
//! Keys: for each group of 32 dimensions 16 scales and 16 zeros in half precision, one for each position, then b rows
//! of 16 words. So lanes are positions. Signed numbers are stored with 127 added.
//!
//! Values: the groups of the positions, one position after the other, are cut into blocks of sixteen. For each block
//! there are 16 scales in half precision, then b rows of 16 words: the numbers of the groups as 32 vectors of 16
//! dimensions. So lanes are dimensions.
//!
//! The format has no number for a group of keys that hardly vary but are far from 0: their zero is not finite in half
//! precision, or their scale is 0. Such a group is stored as its middle: scale (max + min) / 2, zero 1, numbers that
//! mean 0. Read by the rule for all groups, that is the middle in half precision, within half the group's range. A group
//! of keys, and a head of values, with a number that is not finite are read as NaN.

use half::f16;

use super::shape::KvShape;
use super::stored::{InPlace, Keys, Stored, Values};
use crate::mlx::kernels::sixteen::{LANES, Lanes, tree};
use crate::mlx::turboquant::{self, EPSILON, tables};

/// Bytes of a row of words, and of sixteen halves.
const ROW: usize = 64;
const HALVES: usize = 32;

/// 1.5 · 2^23: a float of this size has no room for a fraction.
const ROUNDER: f32 = 12_582_912.0;

/// What is added to signed numbers.
const SIGNED: f32 = 127.0;

/// Bytes of the keys of sixteen positions.
pub fn key_bytes(dims: usize, bits: u32) -> usize {
    dims / turboquant::GROUP * (2 * HALVES + bits as usize * ROW)
}

/// Bytes of the values of sixteen positions.
pub fn value_bytes(dims: usize, bits: u32) -> usize {
    dims / turboquant::GROUP * (HALVES + bits as usize * ROW)
}

/// Keys of `BITS` bits.
pub struct TurboKeys<const BITS: u32>;

/// Values of `BITS` bits.
pub struct TurboValues<const BITS: u32>;

impl<const BITS: u32> Stored for TurboKeys<BITS> {
    const IN_PLACE: InPlace = InPlace::Never;
}

impl<const BITS: u32> Stored for TurboValues<BITS> {
    const IN_PLACE: InPlace = InPlace::Never;
}

/// Runs `$body` for each number `$i` from 0 to 31, with the words that hold it and its first bit in them.
///
/// Compilers keep such a loop, and then shifts are by numbers that they do not know: it is written out.
macro_rules! for_numbers {
    ($s:ident, $bits:ident, $rows:ident, |$i:ident, $words:ident, $shift:ident| $body:block) => {{
        let mut words = [$s.load_words(&$rows[0]); 8];
        for (word, row) in words.iter_mut().zip($rows) {
            *word = $s.load_words(row);
        }
        if S::REGISTERS {
            for_numbers!(
                [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]
                ($s, $bits, words, |$i, $words, $shift| $body)
            );
        } else {
            for number in 0..turboquant::GROUP {
                for_numbers!(number ($s, $bits, words, |$i, $words, $shift| $body));
            }
        }
    }};
    ([$($n:literal)*] $arguments:tt) => {
        $(for_numbers!($n $arguments);)*
    };
    ($n:tt ($s:ident, $bits:ident, $all:ident, |$i:ident, $words:ident, $shift:ident| $body:block)) => {{
        let $i: usize = $n;
        let bit = $i as u32 * $bits;
        let (word, shift) = ((bit / 32) as usize, bit % 32);
        let ($words, $shift) = if shift + $bits > 32 {
            ($s.joined($all[word], $all[word + 1], shift), 0)
        } else {
            ($all[word], shift)
        };
        $body
    }};
}

impl<const BITS: u32> Keys for TurboKeys<BITS> {
    #[inline(always)]
    fn keys<S: Lanes>(s: S, _: &KvShape, from: &[u8], to: &mut [f32]) {
        let mask = (1 << BITS) - 1;
        let blocks = from.chunks_exact(2 * HALVES + BITS as usize * ROW);
        for (from, to) in blocks.zip(to.as_chunks_mut::<LANES>().0.chunks_exact_mut(turboquant::GROUP)) {
            let (halves, rows) = from.split_at(2 * HALVES);
            let (halves, rows) = (halves.as_chunks::<HALVES>().0, rows.as_chunks::<ROW>().0);
            let scale = s.load_f16(&halves[0]);
            // Whole numbers below 2^17, so that this sum and those below are exact.
            let zero = s.load_f16(&halves[1]);
            let zero = if BITS == 8 { s.sub(zero, s.splat(SIGNED)) } else { zero };
            for_numbers!(s, BITS, rows, |i, words, shift| {
                s.store(s.mul(s.add(s.field(words, shift, mask), zero), scale), &mut to[i]);
            });
        }
    }
}

impl<const BITS: u32> Values for TurboValues<BITS> {
    #[inline(always)]
    fn values<S: Lanes>(s: S, shape: &KvShape, from: &[u8], _: usize, to: &mut [f32], stride: usize) {
        assert!(shape.value_dims == stride);
        let blocks = from.chunks_exact(HALVES + BITS as usize * ROW);
        for (from, to) in blocks.zip(to.as_chunks_mut::<LANES>().0.chunks_exact_mut(turboquant::GROUP)) {
            let (halves, rows) = from.split_at(HALVES);
            let rows = rows.as_chunks::<ROW>().0;
            let mut scales = [0.0; LANES];
            s.store(s.load_f16(&halves.as_chunks().0[0]), &mut scales);
            for_numbers!(s, BITS, rows, |i, words, shift| {
                let centroid = match BITS {
                    2 => s.entry(words, shift, &tables::CENTROIDS_2),
                    3 => s.entry(words, shift, &tables::CENTROIDS_3),
                    4 => s.entry(words, shift, &tables::CENTROIDS_4),
                    5 => s.entry(words, shift, &tables::CENTROIDS_5),
                    _ => s.entry(words, shift, &tables::CENTROIDS_8),
                };
                s.store(s.mul(centroid, s.splat(scales[i / 2])), &mut to[i]);
            });
        }
    }
}

/// Quantises a group of 32 numbers. Gives scale and zero; `numbers` are as they are stored, not negative.
#[inline(always)]
pub fn quantise(
    from: &[f32; turboquant::GROUP],
    bits: u32,
    numbers: &mut [u32; turboquant::GROUP],
) -> (f16, f16) {
    let (mut lows, mut highs, mut finite) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], true);
    for values in from.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lows[lane] = if values[lane] < lows[lane] { values[lane] } else { lows[lane] };
            highs[lane] = if values[lane] > highs[lane] { values[lane] } else { highs[lane] };
            finite &= values[lane].is_finite();
        }
    }
    let low = lows.into_iter().fold(f32::INFINITY, f32::min);
    let high = highs.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let signed = bits == 8;
    let steps = ((1_u32 << bits) - 1 - u32::from(signed)) as f32;
    let scale = (high - low) / steps;
    let divisor = scale + EPSILON;
    let zero = if signed { (high + low) / (2.0 * divisor) } else { low / divisor }.round_ties_even();
    let (lowest, highest) = if signed { (-SIGNED, SIGNED) } else { (0.0, steps) };
    for (number, value) in numbers.iter_mut().zip(from) {
        let whole = (value / divisor - zero).clamp(lowest, highest) - lowest;
        // The sum rounds to a whole number, ties to even, and has it in its low bits.
        *number = (whole + ROUNDER).to_bits() & 0xff;
    }
    let (stored_scale, stored_zero) = (f16::from_f32(scale), f16::from_f32(zero));
    if !finite {
        return (f16::NAN, f16::ZERO);
    }
    if stored_scale == f16::ZERO || !stored_zero.is_finite() {
        numbers.fill((-lowest) as u32);
        return (f16::from_f32(low / 2.0 + high / 2.0), f16::ONE);
    }
    (stored_scale, stored_zero)
}

/// Stores the key of one position: `lane` of the sixteen positions whose bytes are `to`.
#[inline(always)]
pub fn store_key(bits: u32, from: &[f32], to: &mut [u8], lane: usize) {
    let mut numbers = [0; turboquant::GROUP];
    let blocks = to.chunks_exact_mut(2 * HALVES + bits as usize * ROW);
    for (from, to) in from.as_chunks().0.iter().zip(blocks) {
        let (scale, zero) = quantise(from, bits, &mut numbers);
        let (halves, rows) = to.split_at_mut(2 * HALVES);
        let halves = halves.as_chunks_mut::<2>().0;
        halves[lane] = scale.to_le_bytes();
        halves[LANES + lane] = zero.to_le_bytes();
        // Less than a word waits while one more number is added.
        let (mut waiting, mut filled) = (0_u64, 0);
        let mut rows = rows.chunks_exact_mut(ROW);
        for number in numbers {
            waiting |= u64::from(number) << filled;
            filled += bits;
            if filled >= 32 {
                if let Some(row) = rows.next() {
                    row.as_chunks_mut::<4>().0[lane] = (waiting as u32).to_le_bytes();
                }
                waiting >>= 32;
                filled -= 32;
            }
        }
    }
}

/// Stores the value of one position: number `at` of the sixteen positions whose bytes are `to`.
#[inline(always)]
pub fn store_value(bits: u32, from: &[f32], to: &mut [u8], at: usize) {
    let boundaries = turboquant::boundaries(bits).unwrap_or_default();
    let mut rotated = [0.0; LARGEST_HEAD];
    let rotated = &mut rotated[..from.len()];
    rotated.copy_from_slice(from);
    rotate(rotated);
    let mask = (1_u32 << bits) - 1;
    let first = at * from.len() / turboquant::GROUP;
    let block_bytes = HALVES + bits as usize * ROW;
    for (group, values) in (first..).zip(rotated.chunks_exact_mut(turboquant::GROUP)) {
        let block = &mut to[group / LANES * block_bytes..][..block_bytes];
        let (scales, rows) = block.split_at_mut(HALVES);
        let rows = rows.as_chunks_mut::<4>().0.as_chunks_mut::<LANES>().0;
        let vectors = values.as_chunks_mut::<LANES>().0;
        let mut squares = [0.0; LANES];
        for lane in 0..LANES {
            squares[lane] = vectors[0][lane] * vectors[0][lane] + vectors[1][lane] * vectors[1][lane];
        }
        let scale = (tree(squares) / turboquant::GROUP as f32).sqrt();
        let stored = if scale.is_finite() { f16::from_f32(scale) } else { f16::NAN };
        scales.as_chunks_mut::<2>().0[group % LANES] = stored.to_le_bytes();
        for (half, vector) in vectors.iter_mut().enumerate() {
            vector.iter_mut().for_each(|value| *value /= scale + EPSILON);
            let numbers = count_below(boundaries, vector);
            let bit = (group % LANES * 2 + half) as u32 * bits;
            let (row, shift) = ((bit / 32) as usize, bit % 32);
            // Other positions have the words' other bits.
            replace(&mut rows[row], mask << shift, numbers.map(|number| number << shift));
            if shift + bits > 32 {
                let cut = 32 - shift;
                replace(&mut rows[row + 1], mask >> cut, numbers.map(|number| number >> cut));
            }
        }
    }
}

/// For each value, how many boundaries are less.
#[inline(always)]
fn count_below(boundaries: &[f32], values: &[f32; LANES]) -> [u32; LANES] {
    if boundaries.len() > 31 {
        return values.map(|value| boundaries.partition_point(|boundary| *boundary < value) as u32);
    }
    let mut counts = [0; LANES];
    for boundary in boundaries {
        for (count, value) in counts.iter_mut().zip(values) {
            *count += u32::from(boundary < value);
        }
    }
    counts
}

/// Replaces the bits of `mask` in a row of words.
#[inline(always)]
fn replace(row: &mut [[u8; 4]; LANES], mask: u32, bits: [u32; LANES]) {
    for (word, bits) in row.iter_mut().zip(bits) {
        *word = (u32::from_le_bytes(*word) & !mask | bits).to_le_bytes();
    }
}

/// Dimensions of the largest head that has a rotation.
const LARGEST_HEAD: usize = 512;

/// Rotates a head of 64, 128, 256 or 512 numbers: signs, then the orthonormal Hadamard transform.
#[inline(always)]
pub fn rotate(head: &mut [f32]) {
    flip(head);
    hadamard(head);
}

/// The inverse of [`rotate`], but for rounding.
#[inline(always)]
pub fn rotate_back(head: &mut [f32]) {
    hadamard(head);
    flip(head);
}

/// Changes the signs that the format says.
#[inline(always)]
fn flip(head: &mut [f32]) {
    let negative = turboquant::negative(head.len()).unwrap_or_default();
    for (numbers, negative) in head.chunks_exact_mut(64).zip(negative) {
        for (i, number) in numbers.iter_mut().enumerate() {
            *number = f32::from_bits(number.to_bits() ^ ((negative >> i) as u32 & 1) << 31);
        }
    }
}

/// The Hadamard transform (Sylvester's order) times 1/√n, of n numbers, a power of two from 32 on: sums and differences
/// of numbers 1, 2, 4, … apart, then the factor. So MLX does it on a CPU.
#[inline(always)]
fn hadamard(numbers: &mut [f32]) {
    for vector in numbers.as_chunks_mut::<LANES>().0 {
        for apart in [1, 2, 4, 8] {
            let old = *vector;
            for lane in 0..LANES {
                let (first, second) = (old[lane & !apart], old[lane | apart]);
                vector[lane] = if lane & apart == 0 { first + second } else { first - second };
            }
        }
    }
    let factor = (1.0 / (numbers.len() as f64).sqrt()) as f32;
    let vectors = numbers.as_chunks_mut::<LANES>().0;
    let mut apart = 1;
    while apart < vectors.len() {
        let last = if 2 * apart == vectors.len() { factor } else { 1.0 };
        for pairs in vectors.chunks_exact_mut(2 * apart) {
            let (left, right) = pairs.split_at_mut(apart);
            for (left, right) in left.iter_mut().zip(right) {
                for (left, right) in left.iter_mut().zip(right) {
                    (*left, *right) = ((*left + *right) * last, (*left - *right) * last);
                }
            }
        }
        apart *= 2;
    }
}
