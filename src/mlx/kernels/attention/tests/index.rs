//! What an indexer chooses, against float64 and against itself.

use super::super::index::choose_on;
use super::*;

/// An indexer with the numbers of a sequence.
struct Case {
    indexer: Indexer,
    queries: usize,
    len: usize,
    q: Vec<f32>,
    weights: Vec<f32>,
    /// `[len][dims]`
    keys: Vec<f32>,
}

fn indexer(heads: usize, dims: usize, float: Float, chosen: usize) -> Indexer {
    let shape = KvShape { kv_heads: 1, key_dims: dims, value_dims: 1, form: KvForm::Joint(float) };
    Indexer { heads, shape, chosen }
}

impl Case {
    fn random(random: &mut Random, indexer: Indexer, len: usize, queries: usize) -> Case {
        let dims = indexer.shape.key_dims;
        Case {
            indexer,
            queries,
            len,
            q: random.normals(queries * indexer.heads * dims),
            weights: random.normals(queries * indexer.heads),
            keys: random.normals(len * dims),
        }
    }

    /// The same sequence with only these queries and what was stored when the last of them was.
    fn part(&self, from: usize, to: usize) -> Case {
        let (dims, heads) = (self.indexer.shape.key_dims, self.indexer.heads);
        let len = self.len - self.queries + to;
        Case {
            indexer: self.indexer,
            queries: to - from,
            len,
            q: self.q[from * heads * dims..to * heads * dims].to_vec(),
            weights: self.weights[from * heads..to * heads].to_vec(),
            keys: self.keys[..len * dims].to_vec(),
        }
    }

    fn run(&self, path: Path, threads: usize, cut: Option<u64>) -> Vec<bool> {
        let row = Row {
            queries: self.queries,
            position: self.len - self.queries,
            first_position: 0,
            len: self.len,
            q: Vec::new(),
            k: self.keys.clone(),
            v: vec![0.0; self.len],
            mask: None,
        };
        let slabs = Slabs::new(&mut Random(cut.unwrap_or(1)), &self.indexer.shape, &row, cut.is_some());
        let spans = slabs.spans();
        let (queries, position) = (row.queries, row.position);
        let sequence = Sequence { queries, position, spans: &spans, first_position: 0, mask: None };
        let mut attended = vec![true; self.queries * self.len];
        let pool = Pool::new(threads).unwrap();
        choose_on(path, &pool, &self.indexer, &sequence, &self.q, &self.weights, &mut attended).unwrap();
        attended
    }

    /// A query's scores in float64 with how far float32 may be off: each product has a chain of `dims` roundings of at
    /// most its sum of sizes, and each head adds two more.
    fn scores(&self, query: usize) -> Vec<(f64, f64)> {
        let Indexer { heads, shape, .. } = self.indexer;
        let dims = shape.key_dims;
        let keys = all_read_back(shape.form, &self.keys, dims);
        let score = |key: &[f64]| {
            let (mut sum, mut size) = (0.0, 0.0);
            for head in 0..heads {
                let q = &self.q[(query * heads + head) * dims..][..dims];
                let terms = || q.iter().zip(key).map(|(q, k)| f64::from(*q) * k);
                let weight = f64::from(self.weights[query * heads + head]);
                sum += terms().sum::<f64>().max(0.0) * weight;
                size += terms().map(f64::abs).sum::<f64>() * weight.abs();
            }
            (sum, (dims + heads + 2) as f64 * 2.0_f64.powi(-24) * size)
        };
        keys.chunks(dims).map(score).collect()
    }
}

#[test]
fn the_best_positions_are_chosen() {
    let mut random = Random(71);
    let (mut compared, mut unclear) = (0, 0);
    for case in 0..60 {
        let float = random.one_of(&[Float::F32, Float::F16, Float::Bf16]);
        let dims = random.one_of(&[8, 33, 64, 128]);
        let chosen = random.one_of(&[1, 5, 16, 100, 256, 400]);
        let indexer = indexer(random.within(1, 20), dims, float, chosen);
        let len = random.one_of(&[1, 15, 16, 17, 255, 256, 257, 400, 600]);
        let queries = random.one_of(&[1, 1, 3, 20]).min(len);
        let of = Case::random(&mut random, indexer, len, queries);
        for path in Path::all() {
            let attended = of.run(path, 2, Some(case + 1));
            for (query, attended) in attended.chunks(len).enumerate() {
                let seen = len - queries + query + 1;
                assert!(attended[seen..].iter().all(|attended| !attended), "{seen} of {len}");
                assert_eq!(attended.iter().filter(|attended| **attended).count(), chosen.min(seen));
                let scores = &of.scores(query)[..seen];
                let mut order: Vec<f64> = scores.iter().map(|score| score.0).collect();
                order.sort_by(|a, b| b.total_cmp(a));
                let last = order[chosen.min(seen) - 1];
                let bound = scores.iter().map(|score| score.1).fold(0.0, f64::max);
                for ((score, _), attended) in scores.iter().zip(attended) {
                    compared += 1;
                    if (score - last).abs() <= 2.0 * bound {
                        unclear += 1;
                    } else {
                        assert_eq!(*score > last, *attended, "{score} {last} {bound}");
                    }
                }
            }
        }
    }
    assert!(unclear * 20 < compared, "{unclear} of {compared}");
}

#[test]
fn a_choice_depends_on_the_query_and_the_keys_alone() {
    let mut random = Random(73);
    for (heads, float) in [(1, Float::F32), (7, Float::F16), (29, Float::Bf16)] {
        let whole = Case::random(&mut random, indexer(heads, 20, float, 290), 310, 30);
        let expected = whole.run(Path::best(), 1, None);
        for path in Path::all() {
            for threads in 1..=3 {
                assert!(whole.run(path, threads, Some(threads as u64)) == expected, "{path:?} {threads}");
            }
        }
        for query in [0, 8, 9, 10, 29] {
            let part = whole.part(query, query + 1);
            let attended = part.run(Path::best(), 2, Some(9));
            let row = &expected[query * whole.len..][..whole.len];
            assert!(attended == row[..part.len], "{query}");
        }
    }
}

/// Of equal scores the first, and what is no number before all.
#[test]
fn ties_and_what_is_no_number_have_an_order() {
    let mut random = Random(79);
    let mut case = Case::random(&mut random, indexer(2, 8, Float::F32, 3), 40, 1);
    case.keys.fill(0.0);
    let chosen = |case: &Case| -> Vec<usize> {
        let attended = case.run(Path::best(), 1, None);
        (0..case.len).filter(|position| attended[*position]).collect()
    };
    assert_eq!(chosen(&case), [0, 1, 2]);
    case.keys[20 * 8] = f32::NAN;
    assert_eq!(chosen(&case), [0, 1, 20]);
    for path in Path::all() {
        assert!(case.run(path, 1, None)[20], "{path:?}");
    }
}
