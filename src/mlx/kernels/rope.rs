//! Rotary position embedding with a table of rotations.

use std::sync::OnceLock;

/// Positions of a page of the table.
const PAGE: usize = 256;

/// Chapters double in pages, so that this many hold more positions than there are.
const CHAPTERS: usize = usize::BITS as usize;

/// Cosines, then sines, of the pairs at a page's positions: `[PAGE][2][pairs]`.
type Page = OnceLock<Box<[f32]>>;

/// The rotations of all positions, computed page by page when they are first needed.
///
/// Angles, cosines and sines are computed in float64 and rounded once. A table can be shared by threads and layers;
/// reading it takes no lock.
pub struct Rotation {
    frequencies: Vec<f64>,
    scale: f64,
    traditional: bool,
    /// Chapter c holds the pages from 2^c - 1 to 2^(c+1) - 2.
    chapters: [OnceLock<Box<[Page]>>; CHAPTERS],
}

impl Rotation {
    /// A rotation of `2 * frequencies.len()` dimensions. Pair i turns by `position * frequencies[i]` radians, and
    /// the result is multiplied by `scale`.
    ///
    /// Pair i is the dimensions 2i and 2i + 1 if `traditional`, else i and i + `frequencies.len()`.
    pub fn new(frequencies: Vec<f64>, scale: f64, traditional: bool) -> Rotation {
        Rotation { frequencies, scale, traditional, chapters: [const { OnceLock::new() }; CHAPTERS] }
    }

    /// The number of dimensions that are rotated.
    pub fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Rotates `heads` heads of one token in place; dimensions of a head beyond [`Rotation::dims`] stay as they are.
    ///
    /// # Panics
    /// When `x` is not `heads * head_dim` long, or a head is shorter than what is rotated.
    pub fn rotate(&self, x: &mut [f32], heads: usize, head_dim: usize, position: usize) {
        let dims = self.dims();
        assert_eq!(x.len(), heads * head_dim, "length of the heads to rotate");
        assert!(dims <= head_dim, "more dimensions to rotate than a head has");
        if dims == 0 {
            return;
        }
        let (cosines, sines) = self.at(position);
        for head in x.chunks_exact_mut(head_dim) {
            if self.traditional {
                let pairs = head[..dims].as_chunks_mut::<2>().0;
                for ((pair, cos), sin) in pairs.iter_mut().zip(cosines).zip(sines) {
                    let [a, b] = *pair;
                    *pair = [a * cos - b * sin, a * sin + b * cos];
                }
            } else {
                let (first, second) = head[..dims].split_at_mut(dims / 2);
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }

    /// Cosines and sines of all pairs at a position.
    fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let page = position / PAGE;
        let chapter = (page + 1).ilog2() as usize;
        let first = (1 << chapter) - 1;
        let pages = self.chapters[chapter].get_or_init(|| (0..1 << chapter).map(|_| Page::new()).collect());
        let numbers = pages[page - first].get_or_init(|| self.compute(page * PAGE));
        let pairs = self.frequencies.len();
        numbers[position % PAGE * 2 * pairs..][..2 * pairs].split_at(pairs)
    }

    fn compute(&self, first: usize) -> Box<[f32]> {
        let mut page = Vec::with_capacity(PAGE * self.dims());
        for position in first..first + PAGE {
            let angles = || self.frequencies.iter().map(|frequency| position as f64 * frequency);
            page.extend(angles().map(|angle| (angle.cos() * self.scale) as f32));
            page.extend(angles().map(|angle| (angle.sin() * self.scale) as f32));
        }
        page.into_boxed_slice()
    }
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    fn frequencies(pairs: usize) -> Vec<f64> {
        (0..pairs).map(|pair| 10_000.0_f64.powf(-(pair as f64) / pairs as f64)).collect()
    }

    fn head(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 + 11) % 64) as f32 / 16.0 - 2.0).collect()
    }

    /// Two products and a sum of rounded numbers: four roundings of at most |a| + |b|.
    #[test]
    fn rotations_are_within_the_bound() {
        for traditional in [false, true] {
            let (pairs, dim, heads) = (24, 64, 3);
            let frequencies = frequencies(pairs);
            let rotation = Rotation::new(frequencies.clone(), 1.25, traditional);
            for position in [0, 1, 255, 256, 767, 768, 1000, 131_071, 5_000_000] {
                let before = head(heads * dim);
                let mut after = before.clone();
                rotation.rotate(&mut after, heads, dim, position);
                for h in 0..heads {
                    for i in h * dim + 2 * pairs..(h + 1) * dim {
                        assert_eq!(after[i], before[i]);
                    }
                    for (pair, frequency) in frequencies.iter().enumerate() {
                        let (i, j) =
                            if traditional { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
                        let (i, j) = (h * dim + i, h * dim + j);
                        let (a, b) = (f64::from(before[i]), f64::from(before[j]));
                        let angle = position as f64 * frequency;
                        let (sin, cos) = (angle.sin() * 1.25, angle.cos() * 1.25);
                        let allowed = 4.0 * 2.0_f64.powi(-24) * 1.25 * (a.abs() + b.abs());
                        assert!(
                            (f64::from(after[i]) - (a * cos - b * sin)).abs() <= allowed,
                            "{position} {pair}"
                        );
                        assert!(
                            (f64::from(after[j]) - (a * sin + b * cos)).abs() <= allowed,
                            "{position} {pair}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn threads_share_a_table() {
        let rotation = Rotation::new(frequencies(8), 1.0, false);
        let alone = Rotation::new(frequencies(8), 1.0, false);
        std::thread::scope(|scope| {
            for start in 0..4 {
                let (rotation, alone) = (&rotation, &alone);
                scope.spawn(move || {
                    for position in (start..3000).step_by(4) {
                        let (mut left, mut right) = (head(16), head(16));
                        rotation.rotate(&mut left, 1, 16, position);
                        alone.rotate(&mut right, 1, 16, position);
                        assert_eq!(left, right);
                    }
                });
            }
        });
    }

    #[test]
    fn without_pairs_nothing_changes() {
        let mut x = head(8);
        Rotation::new(vec![], 1.0, false).rotate(&mut x, 1, 8, 5);
        assert_eq!(x, head(8));
    }

    #[test]
    #[should_panic(expected = "more dimensions")]
    fn a_short_head_is_refused() {
        Rotation::new(frequencies(8), 1.0, false).rotate(&mut head(8), 1, 8, 5);
    }
}
