//! TurboQuant against a model of the format in float64, and conversion between forms.

use std::collections::BTreeSet;

use super::super::turbo::{quantise, rotate, rotate_back};
use super::*;
use crate::mlx::turboquant::{self, EPSILON};

const U: f64 = 1.0 / (1_u64 << 24) as f64;

fn turbo(dims: usize, key_bits: u32, value_bits: u32) -> KvShape {
    KvShape { kv_heads: 1, key_dims: dims, value_dims: dims, form: KvForm::Turbo { key_bits, value_bits } }
}

/// Random shapes that cover all sizes and bits.
fn shapes() -> Vec<KvShape> {
    let mut shapes: Vec<KvShape> =
        [(2, 2), (4, 3), (5, 4), (8, 5), (8, 8), (8, 3)].map(|(k, v)| turbo(64, k, v)).into();
    shapes.extend([turbo(128, 8, 3), turbo(256, 4, 8), turbo(512, 5, 5)]);
    shapes.push(KvShape { kv_heads: 2, value_dims: 128, ..turbo(64, 2, 4) });
    shapes
}

/// What a slab holds of one position and head, taken apart by the layout that `turbo.rs` describes.
struct Taken {
    /// As stored.
    numbers: Vec<u32>,
    /// For each group.
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

fn half(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

/// The number of `bits` bits at `index` of a lane of rows of 16 words.
fn number(rows: &[u8], lane: usize, index: usize, bits: usize) -> u32 {
    let bit = |bit: usize| {
        let byte = rows[bit / 32 * 64 + lane * 4 + bit % 32 / 8];
        u32::from(byte >> (bit % 8) & 1)
    };
    (0..bits).map(|i| bit(index * bits + i) << i).sum()
}

fn take_key(slab: &[u8], shape: &KvShape, capacity: usize, head: usize, position: usize) -> Taken {
    let KvForm::Turbo { key_bits, .. } = shape.form else { unreachable!() };
    let (bits, groups) = (key_bits as usize, shape.key_dims / 32);
    let block = 64 + 64 * bits;
    let mut taken = Taken { numbers: vec![], scales: vec![], zeros: vec![] };
    for group in 0..groups {
        let at = ((head * capacity + position) / 16 * groups + group) * block;
        let bytes = &slab[at..][..block];
        taken.scales.push(half(bytes, position % 16));
        taken.zeros.push(half(bytes, 16 + position % 16));
        taken.numbers.extend((0..32).map(|i| number(&bytes[64..], position % 16, i, bits)));
    }
    taken
}

fn take_value(slab: &[u8], shape: &KvShape, capacity: usize, head: usize, position: usize) -> Taken {
    let KvForm::Turbo { value_bits, .. } = shape.form else { unreachable!() };
    let (bits, groups) = (value_bits as usize, shape.value_dims / 32);
    let block = 32 + 64 * bits;
    let mut taken = Taken { numbers: vec![], scales: vec![], zeros: vec![] };
    for group in 0..groups {
        let index = position % 16 * groups + group;
        let at = (head * capacity + position) / 16 * groups * block + index / 16 * block;
        let bytes = &slab[at..][..block];
        taken.scales.push(half(bytes, index % 16));
        let vector = |i: usize| index % 16 * 2 + i / 16;
        taken.numbers.extend((0..32).map(|i| number(&bytes[32..], i % 16, vector(i), bits)));
    }
    taken
}

/// What the kernels read: keys, and values in the rotated space. In float32, as they do.
fn read_key(taken: &Taken, bits: u32) -> Vec<f32> {
    let signed = if bits == 8 { 127.0 } else { 0.0 };
    let numbers = taken.numbers.iter().enumerate();
    numbers.map(|(i, q)| (*q as f32 - signed + taken.zeros[i / 32]) * taken.scales[i / 32]).collect()
}

fn read_value(taken: &Taken, bits: u32) -> Vec<f32> {
    let centroids = turboquant::centroids(bits).unwrap();
    taken.numbers.iter().enumerate().map(|(i, q)| centroids[*q as usize] * taken.scales[i / 32]).collect()
}

/// The rotation by its definition, in float64: signs, then entry (i, j) of the matrix is (-1)^|i & j| / √dims.
fn rotated(head: &[f32]) -> Vec<f64> {
    let negative = turboquant::negative(head.len()).unwrap();
    let signed: Vec<f64> = (0..head.len())
        .map(|i| f64::from(head[i]) * if negative[i / 64] >> (i % 64) & 1 == 1 { -1.0 } else { 1.0 })
        .collect();
    hadamard(&signed)
}

fn rotated_back(head: &[f64]) -> Vec<f64> {
    let negative = turboquant::negative(head.len()).unwrap();
    let sign = |i: usize| if negative[i / 64] >> (i % 64) & 1 == 1 { -1.0 } else { 1.0 };
    hadamard(head).iter().enumerate().map(|(i, x)| x * sign(i)).collect()
}

fn hadamard(numbers: &[f64]) -> Vec<f64> {
    let sign = |i: usize, j: usize| if (i & j).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
    let factor = 1.0 / (numbers.len() as f64).sqrt();
    let row = |i: usize| numbers.iter().enumerate().map(|(j, x)| sign(i, j) * x).sum::<f64>();
    (0..numbers.len()).map(|i| row(i) * factor).collect()
}

struct OwnSlabs {
    keys: Vec<u8>,
    values: Vec<u8>,
    capacity: usize,
}

/// Stores `[tokens][kv_heads * dims]` in the pieces given.
fn stored(shape: &KvShape, keys: &[f32], values: &[f32], pieces: &[usize]) -> OwnSlabs {
    let tokens: usize = pieces.iter().sum();
    let capacity = tokens.next_multiple_of(16);
    let mut slabs = OwnSlabs {
        keys: vec![0xff; shape.key_bytes(capacity)],
        values: vec![0xff; shape.value_bytes(capacity)],
        capacity,
    };
    let (k, v) = (shape.kv_heads * shape.key_dims, shape.kv_heads * shape.value_dims);
    let mut at = 0;
    for tokens in pieces {
        let new = NewTokens {
            keys: &keys[at * k..],
            key_stride: k,
            values: &values[at * v..],
            value_stride: v,
            tokens: *tokens,
        };
        store(shape, &mut slabs.keys, &mut slabs.values, capacity, at, &new);
        at += tokens;
    }
    slabs
}

/// Whether a float32 division, rounding and so on may have ended at the other side of the half between two whole numbers.
fn near_half(x: f64, error: f64) -> bool {
    ((x - x.floor()) - 0.5).abs() <= error
}

#[test]
fn keys_are_encoded_as_the_model_says() {
    let mut random = Random(61);
    let (mut compared, mut ambiguous) = (0, 0);
    for bits in [2, 4, 5, 8] {
        for case in 0..200 {
            let (size, shift) = (random.one_of(&[1e-3, 1.0, 50.0]), random.one_of(&[0.0, 0.0, 1.0, 30.0]));
            let head: Vec<f32> = random.normals(64).iter().map(|x| size * (x + shift)).collect();
            let shape = turbo(64, bits, 4);
            let slabs = stored(&shape, &head, &head, &[1]);
            let taken = take_key(&slabs.keys, &shape, 16, 0, 0);
            for (group, x) in head.chunks(32).enumerate() {
                let low = x.iter().copied().fold(f32::INFINITY, f32::min);
                let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let (low, high) = (f64::from(low), f64::from(high));
                let (signed, m) = (bits == 8, if bits == 8 { 127.0 } else { f64::from((1 << bits) - 1) });
                let scale = (high - low) / if signed { 2.0 * m } else { m };
                let divisor = scale + f64::from(EPSILON);
                let middle = if signed { (high + low) / (2.0 * divisor) } else { low / divisor };
                let zero = middle.round_ties_even();
                let (s, z) = (f64::from(taken.scales[group]), f64::from(taken.zeros[group]));
                assert!(
                    (s - scale).abs() <= scale * (1.0 / 2048.0 + 8.0 * U) + 2_f64.powi(-25),
                    "{s} {scale}"
                );
                // A few roundings of float32, each relative to the quotients.
                if near_half(middle, 8.0 * U * middle.abs()) {
                    ambiguous += 32;
                    continue;
                }
                assert_eq!(z, f64::from(f16::from_f64(zero)), "bits {bits}, case {case}");
                for (i, x) in x.iter().enumerate() {
                    let quotient = f64::from(*x) / divisor;
                    let whole = quotient - zero;
                    if near_half(whole, 8.0 * U * (quotient.abs() + zero.abs())) {
                        ambiguous += 1;
                        continue;
                    }
                    let q = whole.round_ties_even().clamp(if signed { -m } else { 0.0 }, m);
                    let found = f64::from(taken.numbers[group * 32 + i]) - if signed { 127.0 } else { 0.0 };
                    assert_eq!(found, q, "bits {bits}, case {case}, number {i}: {whole}");
                    compared += 1;
                }
            }
        }
    }
    assert!(ambiguous * 50 < compared, "{ambiguous} of {compared}");
}

#[test]
fn values_are_encoded_as_the_model_says() {
    let mut random = Random(67);
    let (mut compared, mut ambiguous) = (0, 0);
    for dims in [64, 128, 256, 512] {
        for bits in [2, 3, 4, 5, 8] {
            let boundaries = turboquant::boundaries(bits).unwrap();
            let shape = turbo(dims, 4, bits);
            let size = random.one_of(&[1e-3, 1.0, 50.0]);
            let heads: Vec<f32> = random.normals(20 * dims).iter().map(|x| size * x).collect();
            let slabs = stored(&shape, &heads, &heads, &[20]);
            for (token, head) in heads.chunks(dims).enumerate() {
                let taken = take_value(&slabs.values, &shape, 32, 0, token);
                let y = rotated(head);
                // Of the transform: its stages and the factor, relative to the sum of all sizes.
                let sum: f64 = head.iter().map(|x| f64::from(x.abs())).sum();
                let error = (f64::from(dims.ilog2()) + 2.0) * U * sum / (dims as f64).sqrt();
                for (group, y) in y.chunks(32).enumerate() {
                    let scale = (y.iter().map(|y| y * y).sum::<f64>() / 32.0).sqrt();
                    let s = f64::from(taken.scales[group]);
                    assert!((s - scale).abs() <= scale / 2048.0 + 40.0 * U * scale + error + 2_f64.powi(-25));
                    for (i, y) in y.iter().enumerate() {
                        let t = y / (scale + f64::from(EPSILON));
                        let tolerance = error / scale * (1.0 + t.abs()) + 40.0 * U * t.abs();
                        if boundaries.iter().any(|b| (f64::from(*b) - t).abs() <= tolerance) {
                            ambiguous += 1;
                            continue;
                        }
                        let index = boundaries.iter().filter(|b| f64::from(**b) < t).count();
                        assert_eq!(
                            taken.numbers[group * 32 + i] as usize,
                            index,
                            "{dims} {bits} {token} {i}: {t}"
                        );
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(ambiguous * 50 < compared, "{ambiguous} of {compared}");
}

/// Reads slabs through [`convert`] to float32.
fn read(slabs: &OwnSlabs, shape: &KvShape, tokens: usize) -> OwnSlabs {
    let shape32 = KvShape { form: KvForm::F32, ..*shape };
    converted(slabs, shape, &shape32, tokens)
}

fn converted(slabs: &OwnSlabs, from: &KvShape, to: &KvShape, tokens: usize) -> OwnSlabs {
    let capacity = tokens.next_multiple_of(16) + 32;
    let mut out = OwnSlabs {
        keys: vec![0xff; to.key_bytes(capacity)],
        values: vec![0xff; to.value_bytes(capacity)],
        capacity,
    };
    let source = Source { shape: *from, keys: &slabs.keys, values: &slabs.values, capacity: slabs.capacity };
    let target = Target { shape: *to, keys: &mut out.keys, values: &mut out.values, capacity };
    convert(&Pool::new(2).unwrap(), &source, target, tokens).unwrap();
    out
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Position 0 of a head with float32 keys.
fn first_key(slabs: &OwnSlabs) -> Vec<f32> {
    numbers(&slabs.keys).chunks(16).map(|lanes| lanes[0]).collect()
}

#[test]
fn every_number_of_every_width_comes_back() {
    for bits in [2, 4, 5, 8] {
        let shape = turbo(512, bits, 4);
        let (low, high) = if bits == 8 { (-127, 127) } else { (0, (1 << bits) - 1) };
        // Sixteen groups that begin with both ends of the range: their scale is 1 and their zero 0.
        let mut next = (low..=high).cycle();
        let head: Vec<f32> = (0..512)
            .map(|i| match i % 32 {
                0 => low as f32,
                1 => high as f32,
                _ => next.next().unwrap() as f32,
            })
            .collect();
        let slabs = stored(&shape, &head, &head, &[1]);
        assert_eq!(first_key(&read(&slabs, &shape, 1))[..512], head, "{bits}");
        let taken = take_key(&slabs.keys, &shape, 16, 0, 0);
        assert_eq!(read_key(&taken, bits), head, "{bits}");
    }
    for bits in [2, 3, 4, 5, 8] {
        let mut seen = BTreeSet::new();
        let shape = turbo(64, 4, bits);
        // In the rotated space, one of 32 numbers stands out from ±1 so far that it is a centroid times the scale.
        let centroids = turboquant::centroids(bits).unwrap();
        let tokens = centroids.len();
        let mut heads: Vec<f32> = (0..64 * tokens).map(|i| if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
        for (centroid, head) in centroids.iter().zip(heads.chunks_mut(64)) {
            head[5] = (31.0 / (32.0 - centroid * centroid)).sqrt() * centroid;
            rotate_back(head);
        }
        let slabs = stored(&shape, &heads, &heads, &[tokens]);
        let back = numbers(&read(&slabs, &shape, tokens).values);
        for token in 0..tokens {
            let taken = take_value(&slabs.values, &shape, slabs.capacity, 0, token);
            let mut expected = read_value(&taken, bits);
            rotate_back(&mut expected);
            assert_eq!(back[token * 64..][..64], expected, "{bits} {token}");
            seen.extend(taken.numbers);
        }
        assert_eq!(seen.len(), 1 << bits, "{bits}");
    }
}

#[test]
fn ten_tokens_and_six_are_sixteen() {
    let mut random = Random(73);
    for shape in shapes() {
        let keys = random.normals(32 * shape.kv_heads * shape.key_dims);
        let values = random.normals(32 * shape.kv_heads * shape.value_dims);
        for pieces in [&[10, 6][..], &[1, 2, 13], &[7, 20, 5]] {
            let tokens = pieces.iter().sum();
            let whole = stored(&shape, &keys, &values, &[tokens]);
            let parts = stored(&shape, &keys, &values, pieces);
            assert!(whole.keys == parts.keys && whole.values == parts.values, "{shape:?} {pieces:?}");
        }
    }
}

#[test]
fn the_rotation_is_orthonormal_and_that_of_the_model() {
    let mut random = Random(79);
    for dims in [64, 128, 256, 512] {
        let head = random.normals(dims);
        let mut turned = head.clone();
        rotate(&mut turned);
        let expected = rotated(&head);
        let sum: f64 = head.iter().map(|x| f64::from(x.abs())).sum();
        let bound = (f64::from(dims.ilog2()) + 2.0) * U * sum / (dims as f64).sqrt();
        for (found, expected) in turned.iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() <= bound);
        }
        let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        assert!((norm(&turned) / norm(&head) - 1.0).abs() < 1e-6);
        rotate_back(&mut turned);
        for (found, expected) in turned.iter().zip(&head) {
            assert!((f64::from(*found) - f64::from(*expected)).abs() <= 4.0 * bound.max(1e-6));
        }
    }
}

/// B71: sizes and widths without a rotation or table are refused before anything is stored, and for the others the
/// error falls with each bit.
#[test]
fn b71_sizes_round_trip_or_are_refused() {
    let mut random = Random(83);
    for dims in [64, 128, 256, 512] {
        let heads = random.normals(9 * dims);
        let square: f64 = heads.iter().map(|x| f64::from(*x).powi(2)).sum();
        let mut last = [f64::INFINITY; 2];
        for (key_bits, value_bits) in [(2, 2), (4, 3), (5, 4), (8, 5), (8, 8)] {
            let shape = turbo(dims, key_bits, value_bits);
            assert_eq!(shape.supported(), Ok(()));
            let back = read(&stored(&shape, &heads, &heads, &[9]), &shape, 9);
            let keys = numbers(&back.keys);
            let values = numbers(&back.values);
            let key = |token: usize, dim: usize| keys[dim * 16 + token];
            let error = |read: &dyn Fn(usize, usize) -> f32| {
                let all = (0..9).flat_map(|token| (0..dims).map(move |dim| (token, dim)));
                all.map(|(t, d)| f64::from(read(t, d) - heads[t * dims + d]).powi(2)).sum::<f64>() / square
            };
            let errors = [error(&key), error(&|t, d| values[t * dims + d])];
            // The least error of a quantiser of the normal distribution of so many bits (J. Max, 1960), but for 8
            // bits, where the table is a fit.
            let least = [1.0, 1.0, 0.1175, 0.03454, 0.009497, 0.002499, 0.0, 0.0, 0.0001];
            assert!(errors[1] < 1.6 * least[value_bits as usize], "{dims} {value_bits}: {errors:?}");
            assert!(
                errors[0] < last[0] || key_bits == 8 && errors[0] == last[0],
                "{dims} {errors:?} {last:?}"
            );
            assert!(errors[1] < last[1], "{dims} {errors:?} {last:?}");
            last = errors;
        }
    }
    let refused = |shape: KvShape| {
        assert!(shape.supported().is_err(), "{shape:?}");
        std::panic::catch_unwind(|| {
            store(
                &shape,
                &mut [],
                &mut [],
                16,
                0,
                &NewTokens { keys: &[], key_stride: 0, values: &[], value_stride: 0, tokens: 1 },
            )
        })
        .unwrap_err();
    };
    for dims in [0, 16, 32, 80, 96, 192, 1024] {
        refused(turbo(dims, 8, 3));
        refused(KvShape { value_dims: 64, ..turbo(dims, 8, 3) });
        refused(KvShape { key_dims: 64, ..turbo(dims, 8, 3) });
    }
    for bits in [0, 1, 3, 6, 7, 9, 16] {
        refused(turbo(64, bits, 4));
    }
    for bits in [0, 1, 6, 7, 9, 16] {
        refused(turbo(64, 4, bits));
    }
}

#[test]
fn bytes_of_a_token() {
    let of = |form, dims| {
        let shape = KvShape { form, ..turbo(dims, 8, 3) };
        (shape.key_bytes(16) + shape.value_bytes(16)) as f64 / 16.0
    };
    let small = KvForm::Turbo { key_bits: 8, value_bits: 3 };
    assert_eq!(of(small, 64), 64.0 + 8.0 + 24.0 + 4.0);
    assert!(of(small, 64) <= 0.42 * of(KvForm::F16, 64));
    assert_eq!(of(KvForm::Turbo { key_bits: 2, value_bits: 2 }, 128), 32.0 + 16.0 + 32.0 + 8.0);
}

/// A form-32 copy of a row with what the kernels read: keys, and rotated values.
fn as_read(shape: &KvShape, row: &Row) -> Row {
    let KvForm::Turbo { key_bits, value_bits } = shape.form else { unreachable!() };
    let slabs = stored(shape, &row.k, &row.v, &[row.len]);
    let (mut k, mut v) = (Vec::new(), Vec::new());
    for token in 0..row.len {
        for head in 0..shape.kv_heads {
            k.extend(read_key(&take_key(&slabs.keys, shape, slabs.capacity, head, token), key_bits));
            v.extend(read_value(&take_value(&slabs.values, shape, slabs.capacity, head, token), value_bits));
        }
    }
    Row { k, v, ..row.clone() }
}

/// The reference computes in the rotated space; each result is then a sum of all of its head times ±1/√dims, rounded
/// once in each of the transform's stages, once by the factor.
#[test]
fn attention_is_within_the_bound() {
    let mut random = Random(89);
    let pool = Pool::new(2).unwrap();
    let mut worst = 0.0_f64;
    for (case, shape) in
        shapes().into_iter().cycle().take(if cfg!(debug_assertions) { 10 } else { 60 }).enumerate()
    {
        let heads = shape.kv_heads * random.within(1, 9);
        let attention = Attention {
            heads,
            shape,
            window: random.one_of(&[None, None, Some(17), Some(300)]),
            ..plain(heads, shape.kv_heads, 64)
        };
        let len = random.one_of(&[1, 15, 16, 17, 33, 255, 257, 300, 520]);
        let queries = random.one_of(&[1, 1, 2, 17]).min(len);
        let first = 16 * random.one_of(&[0, 0, 15]);
        let row = Row::random(&mut random, &attention, len, queries, first);
        let floats = Attention { shape: KvShape { form: KvForm::F32, ..shape }, ..attention };
        let expected = reference(&floats, &as_read(&shape, &row));
        for path in Path::all() {
            let out = run(path, &pool, &attention, std::slice::from_ref(&row), Some(case as u64 + 1));
            let dims = shape.value_dims;
            for (out, expected) in out.chunks(dims).zip(expected.chunks(dims)) {
                let turned: Vec<f64> = expected.iter().map(|result| result.0).collect();
                let size: f64 = turned.iter().map(|x| x.abs()).sum();
                let error: f64 = expected.iter().map(|result| result.1).sum();
                let stages = f64::from(dims.ilog2()) + 2.0;
                let bound = (error + stages * U * (size + error)) / (dims as f64).sqrt();
                for (out, expected) in out.iter().zip(rotated_back(&turned)) {
                    let error = (f64::from(*out) - expected).abs();
                    assert!(error <= bound, "{path:?}: {out} is not {expected} ± {bound:e}; {attention:?}");
                    worst = worst.max(error / bound);
                }
            }
        }
    }
    assert!(worst > 1e-4, "{worst}");
}

/// Groups for which the format has no finite zero or no scale are read as their middle.
#[test]
fn groups_that_hardly_vary_are_read_as_their_middle() {
    let pool = Pool::new(1).unwrap();
    for bits in [2, 4, 5, 8] {
        for (value, spread) in
            [(0.75, 0.0), (-3.0, 0.0), (1e4, 0.0), (100.0, 0.01), (1e-4, 1e-8), (0.0, 0.0), (0.0, 1e-9)]
        {
            let head: Vec<f32> = (0..64).map(|i| value + spread * (i % 32) as f32 / 31.0).collect();
            let shape = turbo(64, bits, 4);
            let back = first_key(&read(&stored(&shape, &head, &head, &[1]), &shape, 1));
            for (found, x) in back.iter().zip(&head) {
                let bound = spread / 2.0 + x.abs() / 1024.0 + 1e-7;
                assert!((found - x).abs() <= bound, "{bits}: {found} is not {x} ± {bound}");
            }
            let attention = Attention { shape, ..plain(1, 1, 64) };
            let row = Row {
                queries: 1,
                position: 1,
                first_position: 0,
                len: 2,
                q: vec![1.0; 64],
                k: [&head[..], &head[..]].concat(),
                v: vec![0.5; 128],
                mask: None,
            };
            for path in Path::all() {
                let out = run(path, &pool, &attention, std::slice::from_ref(&row), None);
                assert!(out.iter().all(|out| out.is_finite()), "{bits} {value} {spread}");
            }
        }
        let mut numbers = [0; 32];
        let (scale, zero) = quantise(&[0.75; 32], bits, &mut numbers);
        let none = if bits == 8 { 127 } else { 0 };
        assert_eq!((scale.to_f32(), zero.to_f32(), numbers), (0.75, 1.0, [none; 32]));
    }
}

#[test]
fn what_is_not_a_number_reaches_those_that_see_it() {
    let mut random = Random(97);
    let pool = Pool::new(2).unwrap();
    let shape = KvShape { kv_heads: 2, ..turbo(64, 8, 3) };
    let attention = Attention { shape, ..plain(6, 2, 64) };
    let clean = Row::random(&mut random, &attention, 40, 40, 0);
    let expected = run(Path::best(), &pool, &attention, std::slice::from_ref(&clean), None);
    for bad in [0, 15, 16, 39] {
        for value in [f32::NAN, f32::INFINITY] {
            for keys in [true, false] {
                let mut spoilt = clean.clone();
                let numbers = if keys { &mut spoilt.k } else { &mut spoilt.v };
                numbers[bad * 128 + 3] = value;
                numbers[bad * 128 + 64 + 40] = value;
                let out = run(Path::best(), &pool, &attention, &[spoilt], None);
                let row = 6 * 64;
                assert_same(&out[..bad * row], &expected[..bad * row], "before");
                assert!(out[bad * row..].iter().all(|value| value.is_nan()), "{bad}");
            }
        }
    }
}

#[test]
fn conversion_stores_what_was_read() {
    let mut random = Random(101);
    let shape = KvShape { kv_heads: 3, ..turbo(64, 8, 3) };
    let targets = [
        shape.form,
        KvForm::Turbo { key_bits: 5, value_bits: 8 },
        KvForm::Affine { bits: 4, group: 32 },
        KvForm::Affine { bits: 8, group: 64 },
        KvForm::F32,
        KvForm::Bf16,
    ];
    for tokens in [1, 16, 37, 256, 300] {
        let (k, v) = (random.normals(tokens * 192), random.normals(tokens * 192));
        for form in [KvForm::F32, KvForm::F16, KvForm::Bf16] {
            let from = KvShape { form, ..shape };
            let slabs = stored(&from, &k, &v, &[tokens]);
            let (k, v) = (read_back(form, &k), read_back(form, &v));
            for form in targets {
                let to = KvShape { form, ..shape };
                let found = read(&converted(&slabs, &from, &to, tokens), &to, tokens);
                let expected = read(&stored(&to, &k, &v, &[tokens]), &to, tokens);
                assert!(
                    found.keys == expected.keys && found.values == expected.values,
                    "{from:?} {to:?} {tokens}"
                );
            }
        }
    }
    // Nothing to convert.
    converted(&stored(&shape, &[], &[], &[0]), &shape, &shape, 0);
}

/// Not by way of the slabs of another size or shape.
#[test]
#[should_panic(expected = "the shapes differ")]
fn conversion_keeps_the_shape() {
    let slabs = stored(&turbo(64, 8, 3), &[0.0; 64], &[0.0; 64], &[1]);
    converted(&slabs, &turbo(64, 8, 3), &turbo(128, 8, 3), 1);
}
