//! Attention with what families add to it, against its definition in float64 and in any chunks.

use std::sync::Arc;

use super::{
    CausalAttention, HeadNorm, HeadNorms, KvForm, KvShape, Pools, QueryGrowth, Rope, Rotation, Segments,
    Visible, attend, rotation, store,
};
use crate::mlx::{Array, prim};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIMS: usize = 32;
const WIDTH: usize = (HEADS + 2 * KV_HEADS) * DIMS;
const SCALE: f32 = 0.25;
const TOKENS: usize = 41;
const ROTATED: usize = 16;
const THETA: f64 = 100.0;

fn number(index: usize) -> f32 {
    ((index as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

fn projected(from: usize, to: usize) -> Array {
    let values: Vec<f32> = (from * WIDTH..to * WIDTH).map(number).collect();
    Array::from_slice(&values, &[1, (to - from) as i32, WIDTH as i32]).unwrap()
}

fn segments() -> Segments {
    let shape = KvShape { kv_heads: KV_HEADS, key_dims: DIMS, value_dims: DIMS, form: KvForm::F32 };
    Segments::new(shape, 16, Pools::new(1, None))
}

fn values(array: &Array) -> Vec<f32> {
    prim::contiguous(array).unwrap().to_vec::<f32>().unwrap()
}

/// One token's heads, normalised with these gains and rotated by definition.
fn heads_of(
    x: &[f32],
    norm: Option<(&HeadNorms, &[f32])>,
    multiplier: Option<f64>,
    position: usize,
) -> Vec<f64> {
    let mut x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    if let Some((norms, gains)) = norm {
        let span = if norms.form == HeadNorm::Whole { x.len() } else { DIMS };
        for (index, x) in x.chunks_mut(span).enumerate() {
            let shift = if norms.form == HeadNorm::Own { x.iter().sum::<f64>() / span as f64 } else { 0.0 };
            let square = x.iter().map(|x| (x - shift).powi(2)).sum::<f64>() / span as f64;
            for (i, x) in x.iter_mut().enumerate() {
                let gain = gains[(index * span + i) % gains.len()];
                *x = (*x - shift) / (square + f64::from(norms.eps)).sqrt() * f64::from(gain);
            }
        }
    }
    let Some(multiplier) = multiplier else { return x };
    for head in x.chunks_mut(DIMS) {
        for pair in 0..ROTATED / 2 {
            let angle = position as f64 * THETA.powf(-2.0 * pair as f64 / ROTATED as f64);
            let (a, b) = (head[pair], head[pair + ROTATED / 2]);
            head[pair] = (a * angle.cos() - b * angle.sin()) * multiplier;
            head[pair + ROTATED / 2] = (a * angle.sin() + b * angle.cos()) * multiplier;
        }
    }
    x
}

fn reference(attention: &CausalAttention, multiplier: Option<f64>) -> Vec<f64> {
    let token = |at: usize| (at * WIDTH..(at + 1) * WIDTH).map(number).collect::<Vec<f32>>();
    let (mut keys, mut out) = (Vec::new(), Vec::new());
    for at in 0..TOKENS {
        let row = token(at);
        let (queries, rest) = row.split_at(HEADS * DIMS);
        let norms = attention.norms.as_deref();
        let of_queries = norms.map(|norms| (norms, norms.queries.as_slice()));
        let of_keys = norms.map(|norms| (norms, norms.keys.as_slice()));
        let queries = heads_of(queries, of_queries, multiplier, at);
        keys.push(heads_of(&rest[..KV_HEADS * DIMS], of_keys, multiplier, at));
        let growth = attention.growth.map_or(1.0, |growth| {
            let steps = (at as f64 / f64::from(growth.positions)).floor();
            1.0 + f64::from(growth.beta) * (1.0 + steps).ln()
        });
        for (head, query) in queries.chunks(DIMS).enumerate() {
            let from = head / (HEADS / KV_HEADS) * DIMS;
            let scores = keys.iter().map(|key| {
                let product: f64 = query.iter().zip(&key[from..]).map(|(a, b)| a * b).sum();
                let score = product * growth * f64::from(SCALE);
                attention.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()).exp()
            });
            let scores: Vec<f64> = scores.collect();
            let sum: f64 = scores.iter().sum();
            for dim in 0..DIMS {
                let column = (HEADS + KV_HEADS) * DIMS + from + dim;
                let weigh = |(at, score): (usize, &f64)| score * f64::from(number(at * WIDTH + column));
                out.push(scores.iter().enumerate().map(weigh).sum::<f64>() / sum);
            }
        }
    }
    out
}

/// All that families add, each by itself and some together, and what its rotation multiplies by, if there is one.
fn variants() -> Vec<(CausalAttention, Option<f64>)> {
    let rope = Rope::plain(ROTATED as i32, false, THETA, 1.0);
    let plain = CausalAttention::new(HEADS, KV_HEADS, DIMS, SCALE, &rope).unwrap();
    let normed = |form, [queries, keys]: [usize; 2]| {
        let gains = |len: usize| (0..len).map(|i| 1.0 + 0.5 * number(i + 77)).collect();
        let norms = HeadNorms { form, eps: 1e-5, queries: gains(queries), keys: gains(keys) };
        CausalAttention { norms: Some(Arc::new(norms)), ..plain.clone() }
    };
    let all = [HEADS * DIMS, KV_HEADS * DIMS];
    let growth = Some(QueryGrowth { beta: 0.4, positions: 8.0 });
    let (frequencies, _) = rope.frequencies().unwrap();
    let louder = Arc::new(Rotation::new(frequencies, 1.3, false));
    vec![
        (plain.clone(), Some(1.0)),
        (CausalAttention { rotation: rotation(None).unwrap(), ..plain.clone() }, None),
        (CausalAttention { rotation: louder, ..plain.clone() }, Some(1.3)),
        (normed(HeadNorm::Shared, [DIMS; 2]), Some(1.0)),
        (normed(HeadNorm::Whole, all), Some(1.0)),
        (normed(HeadNorm::Own, all), Some(1.0)),
        (CausalAttention { soft_cap: Some(0.8), ..plain.clone() }, Some(1.0)),
        (CausalAttention { growth, ..plain.clone() }, Some(1.0)),
        (CausalAttention { growth, soft_cap: Some(2.0), ..normed(HeadNorm::Shared, [DIMS; 2]) }, Some(1.0)),
    ]
}

#[test]
fn attention_is_that_of_its_definition_in_any_chunks() {
    for (index, (attention, multiplier)) in variants().into_iter().enumerate() {
        let expected = reference(&attention, multiplier);
        let whole =
            attend(&projected(0, TOKENS), &mut segments(), 0, &attention, Visible::default()).unwrap();
        let whole = values(&whole);
        assert_eq!(whole.len(), expected.len());
        for (at, (a, b)) in whole.iter().zip(&expected).enumerate() {
            assert!((f64::from(*a) - b).abs() < 2e-5, "{index} {at}: {a} and {b}");
        }
        let (mut cache, mut found) = (segments(), Vec::new());
        for (from, to) in [(0, 1), (1, 7), (7, 30), (30, TOKENS)] {
            let part = attend(&projected(from, to), &mut cache, from, &attention, Visible::default());
            found.extend(values(&part.unwrap()));
        }
        assert!(found.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{index}");
    }
}

#[test]
fn keys_stored_alone_are_those_of_attention() {
    for (attention, _) in variants() {
        let whole =
            attend(&projected(0, TOKENS), &mut segments(), 0, &attention, Visible::default()).unwrap();
        let mut cache = segments();
        let first = prim::slice(&projected(0, 20), &[0, 0, (HEADS * DIMS) as i32], &[1, 20, WIDTH as i32]);
        store(&prim::contiguous(&first.unwrap()).unwrap(), &mut cache, 0, &attention).unwrap();
        let rest = attend(&projected(20, TOKENS), &mut cache, 20, &attention, Visible::default()).unwrap();
        assert_eq!(values(&rest), values(&whole)[20 * HEADS * DIMS..]);
    }
}

#[test]
fn a_norm_of_another_number_of_heads_is_refused() {
    let (attention, _) = variants().remove(0);
    for (queries, keys) in [(DIMS, KV_HEADS * DIMS), (HEADS * DIMS, KV_HEADS * DIMS + 1)] {
        let (queries, keys) = (vec![1.0; queries], vec![1.0; keys]);
        let norms = Some(Arc::new(HeadNorms { form: HeadNorm::Whole, eps: 1e-5, queries, keys }));
        let attention = CausalAttention { norms, ..attention.clone() };
        let mut cache = segments();
        assert!(attend(&projected(0, 3), &mut cache, 0, &attention, Visible::default()).is_err());
        assert_eq!(cache.bytes(), 0);
    }
}
