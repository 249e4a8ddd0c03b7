//! Cases of random shapes, their float64 reference, and helpers to run them.

mod accuracy;
mod affine;
mod index;
mod invariance;
mod keep;
mod limits;
mod storing;
mod turbo;

use half::{bf16, f16};

use super::affine::quantise;
use super::call::attend_on;
use super::shape::BLOCK;
use super::*;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::float::Float;
use crate::mlx::kernels::pool::Pool;

/// A small generator of random numbers: the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From `low` up to and with `high`.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() >> 33) as usize % (high - low + 1)
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0, choices.len() - 1)]
    }

    /// About normal, with deviation 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.next() >> 40) as f32 / (1_u64 << 24) as f32 - 0.5).sum();
        sum * 1.732
    }

    pub fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }
}

/// A mask that owns its numbers.
#[derive(Clone)]
pub enum OwnMask {
    Added(Vec<f32>),
    Allowed(Vec<bool>),
}

impl OwnMask {
    fn borrow(&self) -> Mask<'_> {
        match self {
            OwnMask::Added(added) => Mask::Added(added),
            OwnMask::Allowed(allowed) => Mask::Allowed(allowed),
        }
    }

    /// The rows of some queries.
    fn rows(&self, from: usize, to: usize, keys: usize) -> OwnMask {
        match self {
            OwnMask::Added(added) => OwnMask::Added(added[from * keys..to * keys].to_vec()),
            OwnMask::Allowed(allowed) => OwnMask::Allowed(allowed[from * keys..to * keys].to_vec()),
        }
    }
}

/// One sequence with all its numbers in float32.
#[derive(Clone)]
pub struct Row {
    pub queries: usize,
    pub position: usize,
    pub first_position: usize,
    /// Stored positions.
    pub len: usize,
    /// `[queries][heads * key_dims]`
    pub q: Vec<f32>,
    /// `[len][kv_heads * key_dims]` and `[len][kv_heads * value_dims]`
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub mask: Option<OwnMask>,
}

impl Row {
    pub fn random(
        random: &mut Random,
        attention: &Attention<'_>,
        len: usize,
        queries: usize,
        first: usize,
    ) -> Row {
        let shape = &attention.shape;
        let q = random.normals(queries * attention.heads * shape.key_dims);
        let k = random.normals(len * shape.kv_heads * shape.key_dims);
        let v = match shape.is_joint() {
            true => k.chunks(shape.key_dims).flat_map(|key| &key[..shape.value_dims]).copied().collect(),
            false => random.normals(len * shape.kv_heads * shape.value_dims),
        };
        let position = first + len - queries;
        Row { queries, position, first_position: first, len, q, k, v, mask: None }
    }

    /// The same sequence with only the queries `from..to`, and what was stored when the last of them was.
    pub fn part(&self, attention: &Attention<'_>, from: usize, to: usize, forget_later: bool) -> Row {
        let shape = &attention.shape;
        let (q, k, v) = (
            attention.heads * shape.key_dims,
            shape.kv_heads * shape.key_dims,
            shape.kv_heads * shape.value_dims,
        );
        let len = if forget_later { self.position + to - self.first_position } else { self.len };
        Row {
            queries: to - from,
            position: self.position + from,
            first_position: self.first_position,
            len,
            q: self.q[from * q..to * q].to_vec(),
            k: self.k[..len * k].to_vec(),
            v: self.v[..len * v].to_vec(),
            mask: self.mask.as_ref().map(|mask| mask.rows(from, to, self.len)),
        }
    }
}

/// Slabs of one sequence, cut into spans. All memory that is not written is NaN.
struct Slabs(Vec<Part>);

struct Part {
    keys: Vec<u8>,
    values: Vec<u8>,
    capacity: usize,
    first: usize,
    len: usize,
}

/// Bytes before the slabs, so that they have no more alignment than a half.
const ODD: usize = 2;

impl Slabs {
    fn new(random: &mut Random, shape: &KvShape, row: &Row, cut: bool) -> Slabs {
        let mut parts = Vec::new();
        let mut done = 0;
        while done < row.len {
            let left = row.len - done;
            let len = if cut { left.min(16 * random.within(1, 20)) } else { left };
            let first = if cut { 16 * random.within(0, 3) } else { 0 };
            let capacity = first + len.next_multiple_of(16) + if cut { 16 * random.within(0, 2) } else { 0 };
            let mut keys = vec![0xff; ODD + shape.key_bytes(capacity)];
            let mut values = vec![0xff; ODD + shape.value_bytes(capacity)];
            let (k, v) = (shape.kv_heads * shape.key_dims, shape.kv_heads * shape.value_dims);
            // Stored in pieces of any size, as a prompt and its answer would be.
            let mut stored = 0;
            while stored < len {
                let tokens = if cut { random.within(1, len - stored) } else { len };
                let from = done + stored;
                let new = NewTokens {
                    keys: &row.k[from * k..(from + tokens) * k],
                    key_stride: k,
                    values: &row.v[from * v..(from + tokens) * v],
                    value_stride: v,
                    tokens,
                };
                store(shape, &mut keys[ODD..], &mut values[ODD..], capacity, first + stored, &new);
                stored += tokens;
            }
            parts.push(Part { keys, values, capacity, first, len });
            done += len;
        }
        Slabs(parts)
    }

    fn spans<'a>(&'a self) -> Vec<Span<'a>> {
        let span = |part: &'a Part| Span {
            keys: &part.keys[ODD..],
            values: &part.values[ODD..],
            capacity: part.capacity,
            first: part.first,
            len: part.len,
        };
        self.0.iter().map(span).collect()
    }
}

/// Runs rows together in one call.
pub fn run(path: Path, pool: &Pool, attention: &Attention<'_>, rows: &[Row], cut: Option<u64>) -> Vec<f32> {
    let mut random = Random(cut.unwrap_or(1));
    let slabs: Vec<Slabs> =
        rows.iter().map(|row| Slabs::new(&mut random, &attention.shape, row, cut.is_some())).collect();
    let spans: Vec<Vec<Span<'_>>> = slabs.iter().map(Slabs::spans).collect();
    let sequences: Vec<Sequence<'_>> = rows
        .iter()
        .zip(&spans)
        .map(|(row, spans)| Sequence {
            queries: row.queries,
            position: row.position,
            spans,
            first_position: row.first_position,
            mask: row.mask.as_ref().map(OwnMask::borrow),
        })
        .collect();
    let queries: Vec<f32> = rows.iter().flat_map(|row| row.q.iter().copied()).collect();
    let total: usize = rows.iter().map(|row| row.queries).sum();
    let mut out = vec![f32::NAN; total * attention.heads * attention.shape.value_dims];
    attend_on(path, pool, attention, &sequences, &queries, &mut out).unwrap();
    out
}

/// What is read back of a head's numbers that were stored.
fn read_back(form: KvForm, head: &[f32]) -> Vec<f32> {
    match form {
        KvForm::F32 | KvForm::Joint(Float::F32) => head.to_vec(),
        KvForm::F16 | KvForm::Joint(Float::F16) => {
            head.iter().map(|value| f16::from_f32(*value).to_f32()).collect()
        }
        KvForm::Bf16 | KvForm::Joint(Float::Bf16) => {
            head.iter().map(|value| bf16::from_f32(*value).to_f32()).collect()
        }
        KvForm::Affine { bits, group } => {
            let mut out = Vec::new();
            for values in head.chunks(group) {
                let mut numbers = vec![0; group];
                let (scale, bias) = quantise(values, bits, &mut numbers);
                let (scale, bias) = (f16::from_f32(scale).to_f32(), f16::from_f32(bias).to_f32());
                out.extend(numbers.iter().map(|number| (*number as f32).mul_add(scale, bias)));
            }
            out
        }
        KvForm::Turbo { .. } => unreachable!("`turbo` reads back by itself"),
    }
}

/// The same of many heads, in float64.
fn all_read_back(form: KvForm, heads: &[f32], dims: usize) -> Vec<f64> {
    heads.chunks(dims).flat_map(|head| read_back(form, head)).map(f64::from).collect()
}

/// The result of a row in float64, and for each output how far a float32 result may be off.
///
/// With u = 2^-24 and A the largest Σ|q k| · scale: a score's error is at most (dims + 3) u A, plus a few units of
/// the soft cap; weights, numerator and denominator have twice that relatively, plus 3 u for e^x; a block's chain
/// adds 256 u and each merge 4 u. All of it times the largest value.
pub fn reference(attention: &Attention<'_>, row: &Row) -> Vec<(f64, f64)> {
    let shape = &attention.shape;
    let unit = 2.0_f64.powi(-24);
    let group = attention.heads / shape.kv_heads;
    let stored_keys = all_read_back(shape.form, &row.k, shape.key_dims);
    let stored_values = all_read_back(shape.form, &row.v, shape.value_dims);
    let mut out = Vec::new();
    for query in 0..row.queries {
        let position = row.position + query;
        for head in 0..attention.heads {
            let q = &row.q[(query * attention.heads + head) * shape.key_dims..][..shape.key_dims];
            let (mut scores, mut size) = (Vec::new(), 0.0_f64);
            for t in 0..row.len {
                let at = row.first_position + t;
                if attention.causal && at > position
                    || at >= attention.keep && attention.window.is_some_and(|window| at + window <= position)
                {
                    continue;
                }
                let k =
                    &stored_keys[(t * shape.kv_heads + head / group) * shape.key_dims..][..shape.key_dims];
                let terms = || q.iter().zip(k).map(|(q, k)| f64::from(*q) * k);
                let mut score = terms().sum::<f64>() * f64::from(attention.scale);
                size = size.max(terms().map(f64::abs).sum::<f64>() * f64::from(attention.scale).abs());
                if let Some(cap) = attention.soft_cap {
                    score = f64::from(cap) * (score / f64::from(cap)).tanh();
                }
                match &row.mask {
                    Some(OwnMask::Added(added)) => score += f64::from(added[query * row.len + t]),
                    Some(OwnMask::Allowed(allowed)) if !allowed[query * row.len + t] => continue,
                    _ => {}
                }
                scores.push((t, score));
            }
            let sink = attention.sinks.map(|sinks| f64::from(sinks[head]));
            let largest = scores.iter().map(|s| s.1).chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let denominator: f64 = scores.iter().map(|s| s.1).chain(sink).map(|s| (s - largest).exp()).sum();
            let blocks = row.len.div_ceil(BLOCK) as f64 + 2.0;
            let cap = attention.soft_cap.map_or(0.0, |cap| 16.0 * f64::from(cap));
            let relative = 2.0 * ((shape.key_dims + 3) as f64 * size + cap) + 256.0 + 6.0 + 4.0 * blocks;
            for dim in 0..shape.value_dims {
                let value =
                    |t: usize| stored_values[(t * shape.kv_heads + head / group) * shape.value_dims + dim];
                let sum: f64 = scores.iter().map(|&(t, s)| (s - largest).exp() * value(t)).sum();
                let spread = scores.iter().map(|&(t, _)| value(t).abs()).fold(0.0, f64::max);
                let result = if denominator > 0.0 { sum / denominator } else { 0.0 };
                out.push((result, relative * unit * spread));
            }
        }
    }
    out
}

/// Panics unless all bits agree (any NaN equals any other).
pub fn assert_same(left: &[f32], right: &[f32], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    for (i, (l, r)) in left.iter().zip(right).enumerate() {
        assert!(l.to_bits() == r.to_bits() || l.is_nan() && r.is_nan(), "{what}: {l} is not {r} at {i}");
    }
}

/// Plain attention over half-precision keys and values.
pub fn plain(heads: usize, kv_heads: usize, dims: usize) -> Attention<'static> {
    Attention {
        heads,
        shape: KvShape { kv_heads, key_dims: dims, value_dims: dims, form: KvForm::F16 },
        scale: (dims as f32).powf(-0.5),
        causal: true,
        window: None,
        keep: 0,
        soft_cap: None,
        sinks: None,
    }
}
