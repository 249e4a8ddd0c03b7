//! Rows of small elements to lines in which neighbours are the same element of neighbouring rows.
//!
//! A load is as fast as this is: every byte of the weights passes here. So whole squares of elements are exchanged in
//! registers, with the vectors that every processor of the kind has.

use super::layout::BLOCK;

/// Writes the elements, of `size` bytes (2 or 4), of `rows` rows (at most 32) that follow each other in `source`: the
/// column's element of each row in turn, from the byte of `dest` on that `line` tells for the column.
///
/// # Panics
/// When a line does not lie in `dest`, or for another size.
pub(super) fn interleave(
    size: usize,
    dest: &mut [u8],
    source: &[u8],
    rows: usize,
    line: impl Fn(usize) -> usize,
) {
    match size {
        2 => squares::<2, 8>(dest, source, rows, line, exchange_halves),
        4 => squares::<4, 4>(dest, source, rows, line, exchange_words),
        _ => panic!("no element of a packed matrix has {size} bytes"),
    }
}

/// `SIDE` elements of `SIZE` bytes.
type Vector = [u8; 16];

/// Does most in squares of `SIDE` elements, a vector, and the rest one by one.
#[inline(always)]
fn squares<const SIZE: usize, const SIDE: usize>(
    dest: &mut [u8],
    source: &[u8],
    rows: usize,
    line: impl Fn(usize) -> usize,
    exchange: impl Fn([Vector; SIDE]) -> [Vector; SIDE],
) {
    if rows == 0 {
        return;
    }
    let row_bytes = source.len() / rows;
    let columns = row_bytes / SIZE;
    // Other blocks than whole ones come once in a matrix.
    let in_squares = if rows == BLOCK { columns / SIDE * SIDE } else { 0 };
    for column in (0..in_squares).step_by(SIDE) {
        let lines: [usize; SIDE] = std::array::from_fn(|index| line(column + index));
        for row in (0..BLOCK).step_by(SIDE) {
            let mut square = [[0; 16]; SIDE];
            for (index, vector) in square.iter_mut().enumerate() {
                let from = (row + index) * row_bytes + column * SIZE;
                vector.copy_from_slice(&source[from..from + 16]);
            }
            for (line, vector) in lines.iter().zip(exchange(square)) {
                let to = line + row * SIZE;
                dest[to..to + 16].copy_from_slice(&vector);
            }
        }
    }
    for column in in_squares..columns {
        let line = line(column);
        for row in 0..rows {
            let from = row * row_bytes + column * SIZE;
            dest[line + row * SIZE..][..SIZE].copy_from_slice(&source[from..from + SIZE]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
use vectors::{exchange_halves, exchange_words};

/// With what every x86-64 has: SSE2.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::*;

    use super::Vector;

    /// Rows of eight halves as columns.
    #[inline(always)]
    pub(super) fn exchange_halves(rows: [Vector; 8]) -> [Vector; 8] {
        let r = rows.map(from_bytes);
        // Of rows i and i + 4, then of all even and of all odd ones, then of all.
        let (low, high) = (low_halves, high_halves);
        let p = [low(r[0], r[4]), high(r[0], r[4]), low(r[1], r[5]), high(r[1], r[5])];
        let q = [low(r[2], r[6]), high(r[2], r[6]), low(r[3], r[7]), high(r[3], r[7])];
        let even = [low(p[0], q[0]), high(p[0], q[0]), low(p[1], q[1]), high(p[1], q[1])];
        let odd = [low(p[2], q[2]), high(p[2], q[2]), low(p[3], q[3]), high(p[3], q[3])];
        std::array::from_fn(|column| {
            let (even, odd) = (even[column / 2], odd[column / 2]);
            to_bytes(if column % 2 == 0 { low(even, odd) } else { high(even, odd) })
        })
    }

    /// Rows of four words as columns.
    #[inline(always)]
    pub(super) fn exchange_words(rows: [Vector; 4]) -> [Vector; 4] {
        let r = rows.map(from_bytes);
        let (low, high) = (low_words, high_words);
        let even = [low(r[0], r[2]), high(r[0], r[2])];
        let odd = [low(r[1], r[3]), high(r[1], r[3])];
        std::array::from_fn(|column| {
            let (even, odd) = (even[column / 2], odd[column / 2]);
            to_bytes(if column % 2 == 0 { low(even, odd) } else { high(even, odd) })
        })
    }

    #[inline(always)]
    fn from_bytes(bytes: Vector) -> __m128i {
        // SAFETY: there are sixteen bytes, at any address, and every x86-64 has the instruction.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn to_bytes(vector: __m128i) -> Vector {
        let mut bytes = [0; 16];
        // SAFETY: as above.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), vector) };
        bytes
    }

    /// The elements of the first halves of two vectors in turn.
    #[inline(always)]
    fn low_halves(a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: every x86-64 has the instruction.
        unsafe { _mm_unpacklo_epi16(a, b) }
    }

    /// Of the second halves.
    #[inline(always)]
    fn high_halves(a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: every x86-64 has the instruction.
        unsafe { _mm_unpackhi_epi16(a, b) }
    }

    #[inline(always)]
    fn low_words(a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: every x86-64 has the instruction.
        unsafe { _mm_unpacklo_epi32(a, b) }
    }

    #[inline(always)]
    fn high_words(a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: every x86-64 has the instruction.
        unsafe { _mm_unpackhi_epi32(a, b) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use plain::{exchange_halves, exchange_words};

/// The same without a processor's own instructions: what compilers make vectors of themselves, or not.
#[cfg(any(all(test, not(feature = "mlx")), not(target_arch = "x86_64")))]
mod plain {
    use super::Vector;

    pub(super) fn exchange_halves(rows: [Vector; 8]) -> [Vector; 8] {
        exchange::<2, 8>(rows)
    }

    pub(super) fn exchange_words(rows: [Vector; 4]) -> [Vector; 4] {
        exchange::<4, 4>(rows)
    }

    #[inline(always)]
    fn exchange<const SIZE: usize, const SIDE: usize>(rows: [Vector; SIDE]) -> [Vector; SIDE] {
        let mut columns = [[0; 16]; SIDE];
        for (index, column) in columns.iter_mut().enumerate() {
            for (row, element) in column.chunks_exact_mut(SIZE).enumerate() {
                element.copy_from_slice(&rows[row][index * SIZE..][..SIZE]);
            }
        }
        columns
    }
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    fn bytes<const N: usize>(seed: usize) -> [u8; N] {
        std::array::from_fn(|index| (index * 37 + seed * 101 + index / 7) as u8)
    }

    #[test]
    fn squares_are_exchanged_with_and_without_vectors() {
        let halves: [Vector; 8] = std::array::from_fn(bytes);
        assert_eq!(exchange_halves(halves), plain::exchange_halves(halves));
        let words: [Vector; 4] = std::array::from_fn(bytes);
        assert_eq!(exchange_words(words), plain::exchange_words(words));
    }

    #[test]
    fn every_element_comes_to_its_line() {
        for size in [2, 4] {
            for rows in [1, 5, 31, BLOCK] {
                for columns in [1, 3, 4, 7, 8, 9, 16, 37] {
                    let source: Vec<u8> =
                        (0..rows * columns * size).map(|index| (index * 31 + index / 251) as u8).collect();
                    // Lines in reverse, with gaps between them that stay as they are.
                    let stride = BLOCK * size + 6;
                    let line = |column: usize| (columns - 1 - column) * stride + 1;
                    let mut dest = vec![0xee; columns * stride];
                    interleave(size, &mut dest, &source, rows, line);
                    let mut expected = vec![0xee; columns * stride];
                    for row in 0..rows {
                        for column in 0..columns {
                            let from = (row * columns + column) * size;
                            let to = line(column) + row * size;
                            expected[to..to + size].copy_from_slice(&source[from..from + size]);
                        }
                    }
                    assert!(dest == expected, "{size} bytes, {rows} rows, {columns} columns");
                }
            }
        }
    }
}
