//! What is asked of a whole row of scores, one for each token of the vocabulary: its largest, and the logarithm of
//! the sum of their exponentials.
//!
//! A row is cut into chunks of a fixed size whose results are joined in order: threads do not change them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cpu::Path;
use super::exp::exp_scalar;
use super::pool::{Panicked, Pool};
use super::sixteen::{self, LANES, Lanes, Task, largest_lane, sum_of_lanes};

/// Scores of a chunk: a multiple of 16.
const CHUNK: usize = 4096;

/// The index of the largest score of each row of `width` scores; the lowest such index.
///
/// Scores that are NaN are passed over, but index 0 is the result if the first score is one: MLX's rule on the CPU.
/// `largest` becomes that score, and NaN where any of the row is NaN or ∞: finite where there is a choice.
///
/// # Panics
/// When lengths do not fit together.
pub fn argmax(
    pool: &Pool,
    scores: &[f32],
    width: usize,
    out: &mut [u32],
    largest: &mut [f32],
) -> Result<(), Panicked> {
    argmax_on(Path::best(), pool, scores, width, out, largest)
}

fn argmax_on(
    path: Path,
    pool: &Pool,
    scores: &[f32],
    width: usize,
    out: &mut [u32],
    largest: &mut [f32],
) -> Result<(), Panicked> {
    assert!(out.len() == largest.len(), "{} rows are not {}", out.len(), largest.len());
    let chunks = of_chunks(pool, scores, width, out.len(), |chunk| sixteen::run(path, Largest(chunk)))?;
    let rows = scores.chunks_exact(width).zip(chunks.chunks_exact(width.div_ceil(CHUNK)));
    for ((row, chunks), (out, largest)) in rows.zip(out.iter_mut().zip(largest)) {
        let (mut best, mut most, mut taint) = (0, f32::NEG_INFINITY, 0.0);
        for (index, &(value, chunk_taint)) in chunks.iter().enumerate() {
            taint += chunk_taint;
            if value > most {
                (best, most) = (index, value);
            }
        }
        let start = best * CHUNK;
        let found = row[start..].iter().position(|score| *score == most);
        *out = if row[0].is_nan() { 0 } else { (start + found.unwrap_or(0)) as u32 };
        *largest = most + taint;
    }
    Ok(())
}

/// The logarithm of the sum of the exponentials of each row of `width` scores. -∞ if all are -∞, ∞ if one is, NaN if
/// one is NaN.
///
/// # Panics
/// When lengths do not fit together.
pub fn log_sum_exp(pool: &Pool, scores: &[f32], width: usize, out: &mut [f32]) -> Result<(), Panicked> {
    log_sum_exp_on(Path::best(), pool, scores, width, out)
}

fn log_sum_exp_on(
    path: Path,
    pool: &Pool,
    scores: &[f32],
    width: usize,
    out: &mut [f32],
) -> Result<(), Panicked> {
    let chunks = of_chunks(pool, scores, width, out.len(), |chunk| {
        let (largest, _) = sixteen::run(path, Largest(chunk));
        (largest, sixteen::run(path, SumOfExp(chunk, largest)))
    })?;
    for ((row, chunks), out) in
        scores.chunks_exact(width).zip(chunks.chunks_exact(width.div_ceil(CHUNK))).zip(out)
    {
        let (mut largest, mut total) = (f32::NEG_INFINITY, 0.0_f32);
        for &(chunk_largest, sum) in chunks {
            if sum == 0.0 {
                continue;
            }
            let both = if chunk_largest > largest { chunk_largest } else { largest };
            let kept = if total == 0.0 { 0.0 } else { total * exp_scalar(largest - both) };
            total = kept + sum * exp_scalar(chunk_largest - both);
            largest = both;
        }
        *out = if largest == f32::INFINITY {
            // Differences of infinities were NaN: look whether there is one that was given.
            if row.iter().any(|score| score.is_nan()) { f32::NAN } else { f32::INFINITY }
        } else {
            (f64::from(largest) + f64::from(total).ln()) as f32
        };
    }
    Ok(())
}

/// Two numbers for each chunk of each row, computed on the pool.
fn of_chunks(
    pool: &Pool,
    scores: &[f32],
    width: usize,
    rows: usize,
    of: impl Fn(&[f32]) -> (f32, f32) + Sync,
) -> Result<Vec<(f32, f32)>, Panicked> {
    assert!(
        width > 0 && scores.len() == rows * width,
        "{} scores are not {rows} rows of {width}",
        scores.len()
    );
    let chunks = width.div_ceil(CHUNK);
    let results: Vec<AtomicU64> = (0..rows * chunks).map(|_| AtomicU64::new(0)).collect();
    pool.run(rows * chunks, &|part| {
        let row = &scores[part / chunks * width..][..width];
        let start = part % chunks * CHUNK;
        let (first, second) = of(&row[start..width.min(start + CHUNK)]);
        let both = u64::from(first.to_bits()) << 32 | u64::from(second.to_bits());
        results[part].store(both, Ordering::Relaxed);
    })?;
    let halves = |both: u64| (f32::from_bits((both >> 32) as u32), f32::from_bits(both as u32));
    Ok(results.into_iter().map(|both| halves(both.into_inner())).collect())
}

/// The largest score of a chunk that is not NaN, or -∞; and 0, or NaN where any of them is NaN or ∞.
struct Largest<'a>(&'a [f32]);

impl Task for Largest<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) -> (f32, f32) {
        let (whole, rest) = self.0.as_chunks::<LANES>();
        let mut largest = [s.splat(f32::NEG_INFINITY); 4];
        let mut taint = [s.splat(0.0); 4];
        let least = s.splat(f32::MIN);
        let mut see = |i: usize, scores: &[f32; LANES]| {
            let scores = s.load(scores);
            largest[i] = s.max(scores, largest[i]);
            // -∞ is as good as the least number; what is NaN or ∞ taken from itself is NaN.
            let raised = s.max(least, scores);
            taint[i] = s.add(taint[i], s.sub(raised, raised));
        };
        let (fours, ones) = whole.as_chunks::<4>();
        for four in fours {
            for (i, scores) in four.iter().enumerate() {
                see(i, scores);
            }
        }
        for scores in ones {
            see(0, scores);
        }
        let pairs = [s.max(largest[0], largest[1]), s.max(largest[2], largest[3])];
        let mut found = largest_lane(s, s.max(pairs[0], pairs[1]));
        let taints = s.add(s.add(taint[0], taint[1]), s.add(taint[2], taint[3]));
        let mut tainted = sum_of_lanes(s, taints);
        for score in rest {
            found = if *score > found { *score } else { found };
            let raised = if f32::MIN > *score { f32::MIN } else { *score };
            tainted += raised * 0.0;
        }
        (found, tainted)
    }
}

/// The sum of e^(score - largest): score i adds to partial sum i mod 16, in order; then a fixed tree.
struct SumOfExp<'a>(&'a [f32], f32);

impl Task for SumOfExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) -> f32 {
        // With all scores at -∞ the sum is 0.
        let base = s.splat(if self.1 == f32::NEG_INFINITY { 0.0 } else { self.1 });
        let (whole, rest) = self.0.as_chunks::<LANES>();
        let mut sums = s.splat(0.0);
        for scores in whole {
            sums = s.add(sums, s.exp(s.sub(s.load(scores), base)));
        }
        if !rest.is_empty() {
            let mut last = [f32::NEG_INFINITY; LANES];
            last[..rest.len()].copy_from_slice(rest);
            sums = s.add(sums, s.exp(s.sub(s.load(&last), base)));
        }
        sum_of_lanes(s, sums)
    }
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    fn scores(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 20) as f32 - 8.0
        };
        (0..len).map(|_| next()).collect()
    }

    fn argmax_of(path: Path, threads: usize, row: &[f32]) -> u32 {
        let (mut out, mut largest) = ([u32::MAX], [0.0]);
        argmax_on(path, &Pool::new(threads).unwrap(), row, row.len(), &mut out, &mut largest).unwrap();
        let clean = row.iter().all(|score| !score.is_nan() && *score != f32::INFINITY);
        let expected = if clean { row[out[0] as usize] } else { f32::NAN };
        assert!(
            largest[0] == expected || largest[0].is_nan() && expected.is_nan(),
            "{} {expected}",
            largest[0]
        );
        out[0]
    }

    fn log_sum_exp_of(path: Path, threads: usize, row: &[f32]) -> f32 {
        let mut out = [0.0];
        log_sum_exp_on(path, &Pool::new(threads).unwrap(), row, row.len(), &mut out).unwrap();
        out[0]
    }

    /// MLX's loop.
    fn plain_argmax(row: &[f32]) -> u32 {
        let mut best = 0;
        for (index, score) in row.iter().enumerate() {
            if *score > row[best] {
                best = index;
            }
        }
        best as u32
    }

    #[test]
    fn argmax_is_the_first_of_the_largest() {
        for len in [1, 2, 15, 16, 17, 100, 4095, 4096, 4097, 9000, 49_152] {
            for seed in 0..4 {
                let mut row = scores(len, seed);
                for round in 0..4 {
                    for path in Path::all() {
                        assert_eq!(argmax_of(path, 1 + round, &row), plain_argmax(&row), "{path:?} {len}");
                    }
                    // The largest a second time somewhere; then some that are not numbers; then infinities.
                    let (best, at) =
                        (row[plain_argmax(&row) as usize], (seed as usize * 7919 + round * 31) % len);
                    row[at] = [best, f32::NEG_INFINITY, f32::NAN, f32::INFINITY][round];
                }
            }
        }
        for row in [vec![f32::NEG_INFINITY; 5000], vec![f32::NAN; 5000], vec![f32::NAN, 1.0, 2.0]] {
            assert_eq!(argmax_of(Path::best(), 2, &row), 0);
        }
        // One that is no number, wherever it stands.
        for at in 0..200 {
            for odd in [f32::NAN, f32::INFINITY] {
                let mut row = scores(200, 3);
                row[at] = odd;
                for path in Path::all() {
                    argmax_of(path, 1, &row);
                }
            }
        }
    }

    /// Each exponential is within 3 units (with the difference's rounding, 20 more for differences up to 16); sums of
    /// 256 terms a lane and of chunks add 256 + 3 · 12.
    #[test]
    fn log_sum_exp_is_within_the_bound() {
        for len in [1, 3, 16, 17, 4096, 4100, 49_152, 49_155] {
            let row = scores(len, 5);
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|score| (f64::from(*score) - f64::from(largest)).exp()).sum();
            let expected = f64::from(largest) + sum.ln();
            let first = log_sum_exp_of(Path::Portable, 1, &row);
            let allowed = (23.0 + 256.0 + 36.0 + expected.abs()) * 2.0_f64.powi(-24);
            assert!((f64::from(first) - expected).abs() <= allowed, "{len}: {first} {expected}");
            for path in Path::all() {
                for threads in 1..=3 {
                    assert_eq!(log_sum_exp_of(path, threads, &row).to_bits(), first.to_bits());
                }
            }
        }
    }

    #[test]
    fn log_sum_exp_of_extremes() {
        let of = |change: &[(usize, f32)]| {
            let mut row = scores(5000, 9);
            for &(at, score) in change {
                row[at] = score;
            }
            log_sum_exp_of(Path::best(), 2, &row)
        };
        assert_eq!(of(&[(4999, f32::INFINITY)]), f32::INFINITY);
        assert!(of(&[(4999, f32::INFINITY), (0, f32::NAN)]).is_nan());
        assert!(of(&[(4100, f32::NAN)]).is_nan());
        assert_eq!(of(&[(7, 3e38)]), 3e38);
        assert_eq!(log_sum_exp_of(Path::best(), 2, &[f32::NEG_INFINITY; 5000]), f32::NEG_INFINITY);
        assert!(log_sum_exp_of(Path::best(), 2, &[f32::NAN; 3]).is_nan());
    }

    #[test]
    fn rows_are_apart() {
        let all = scores(3 * 5000, 11);
        let pool = Pool::new(2).unwrap();
        let (mut indices, mut logs) = ([0; 3], [0.0; 3]);
        let mut largest = [0.0; 3];
        argmax(&pool, &all, 5000, &mut indices, &mut largest).unwrap();
        log_sum_exp(&pool, &all, 5000, &mut logs).unwrap();
        for (row, scores) in all.chunks_exact(5000).enumerate() {
            assert_eq!(indices[row], plain_argmax(scores));
            assert_eq!(largest[row], scores[indices[row] as usize]);
            assert_eq!(logs[row], log_sum_exp_of(Path::best(), 1, scores));
        }
    }
}
