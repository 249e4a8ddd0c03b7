//! The codec against a model of the format in float64, and against the kernels' own.

use super::*;
use crate::base::Code;
use crate::mlx::Mask;

const U: f64 = 1.0 / (1_u64 << 24) as f64;
const KEY_BITS: [u32; 4] = [2, 4, 5, 8];
const VALUE_BITS: [u32; 5] = [2, 3, 4, 5, 8];

/// About normal numbers, the same in every run.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (uniform() + uniform() + uniform() + uniform()) * 1.732).collect()
}

fn array(numbers: &[f32], heads: i32, dims: i32) -> Array {
    Array::from_slice(numbers, &[1, heads, numbers.len() as i32 / (heads * dims), dims]).unwrap()
}

fn floats(array: &Array) -> Vec<f32> {
    prim::astype(array, Dtype::Float32).unwrap().to_vec().unwrap()
}

/// The bit stream's numbers, bit by bit.
fn taken_apart(bytes: &[u8], bits: u32) -> Vec<u8> {
    let bit = |bit: usize| bytes[bit / 8] >> (bit % 8) & 1;
    let bits = bits as usize;
    (0..bytes.len() * 8 / bits).map(|i| (0..bits).map(|b| bit(i * bits + b) << b).sum()).collect()
}

/// Whether float32 may round to the other of the two whole numbers around.
fn near_half(x: f64, error: f64) -> bool {
    ((x - x.floor()) - 0.5).abs() <= error
}

fn rotated(head: &[f32]) -> Vec<f64> {
    let negative = negative(head.len()).unwrap();
    let sign = |odd: bool| if odd { -1.0 } else { 1.0 };
    let term = |i: usize, j: usize| {
        sign((i & j).count_ones() % 2 == 1) * sign(negative[j / 64] >> (j % 64) & 1 == 1) * f64::from(head[j])
    };
    let factor = 1.0 / (head.len() as f64).sqrt();
    (0..head.len()).map(|i| (0..head.len()).map(|j| term(i, j)).sum::<f64>() * factor).collect()
}

#[test]
fn keys_are_encoded_as_the_model_says() {
    for (bits, size, shift) in
        KEY_BITS.iter().flat_map(|b| [(*b, 1.0, 0.0), (*b, 1e-3, 1.0), (*b, 50.0, 30.0)])
    {
        let x: Vec<f32> = noise(2 * 40 * 64, u64::from(bits)).iter().map(|x| size * (x + shift)).collect();
        let codec = TurboQuant::new(bits, 4, 64, 64).unwrap();
        let keys = codec.encode_keys(&array(&x, 2, 64)).unwrap();
        let signed = bits == 8;
        let numbers: Vec<f64> = if signed {
            keys.numbers.to_vec::<i8>().unwrap().into_iter().map(f64::from).collect()
        } else {
            taken_apart(&keys.numbers.to_vec::<u8>().unwrap(), bits).into_iter().map(f64::from).collect()
        };
        assert_eq!(keys.numbers.shape(), [1, 2, 40, 64 * bits as i32 / 8]);
        for halves in [&keys.scales, &keys.zeros] {
            assert_eq!((halves.shape(), halves.dtype()), (&[1, 2, 40, 2][..], Dtype::Float16));
        }
        let (scales, zeros) = (floats(&keys.scales), floats(&keys.zeros));
        let decoded = floats(&codec.decode_keys(&keys, Dtype::Float32).unwrap());
        let mut compared = 0;
        for (group, x) in x.chunks(GROUP).enumerate() {
            let low = f64::from(x.iter().copied().fold(f32::INFINITY, f32::min));
            let high = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let m = if signed { 127.0 } else { f64::from((1 << bits) - 1) };
            let scale = (high - low) / if signed { 2.0 * m } else { m };
            let divisor = scale + f64::from(EPSILON);
            let middle = if signed { (high + low) / (2.0 * divisor) } else { low / divisor };
            let zero = middle.round_ties_even();
            let (s, z) = (f64::from(scales[group]), f64::from(zeros[group]));
            assert!((s - scale).abs() <= scale * (1.0 / 2048.0 + 8.0 * U) + 2_f64.powi(-25), "{s} {scale}");
            if near_half(middle, 8.0 * U * middle.abs()) {
                continue;
            }
            assert_eq!(z, f64::from(half::f16::from_f64(zero)), "{bits}");
            for (i, x) in x.iter().enumerate() {
                let at = group * GROUP + i;
                assert_eq!(decoded[at], (numbers[at] as f32 + zeros[group]) * scales[group]);
                let quotient = f64::from(*x) / divisor;
                if !near_half(quotient - zero, 8.0 * U * (quotient.abs() + zero.abs())) {
                    let expected =
                        (quotient - zero).round_ties_even().clamp(if signed { -m } else { 0.0 }, m);
                    assert_eq!(numbers[at], expected, "{bits} {group} {i}");
                    compared += 1;
                }
            }
        }
        assert!(compared > x.len() * 9 / 10, "{compared}");
    }
}

#[test]
fn values_are_encoded_as_the_model_says() {
    for dims in [64, 128, 256, 512] {
        let x = noise(2 * 5 * dims, dims as u64);
        let y: Vec<f64> = x.chunks(dims).flat_map(rotated).collect();
        for bits in VALUE_BITS {
            let codec = TurboQuant::new(4, bits, 64, dims).unwrap();
            let values = codec.encode_values(&array(&x, 2, dims as i32)).unwrap();
            assert_eq!(values.numbers.shape(), [1, 2, 5, dims as i32 * bits as i32 / 8]);
            assert_eq!(
                (values.scales.shape(), values.scales.dtype()),
                (&[1, 2, 5, dims as i32 / 32][..], Dtype::Float16)
            );
            let numbers = taken_apart(&values.numbers.to_vec::<u8>().unwrap(), bits);
            let scales = floats(&values.scales);
            let deferred = floats(&codec.decode_values_deferred(&values, Dtype::Float32).unwrap());
            let (centroids, boundaries) = (centroids(bits).unwrap(), boundaries(bits).unwrap());
            let mut compared = 0;
            for (group, y) in y.chunks(GROUP).enumerate() {
                let scale = (y.iter().map(|y| y * y).sum::<f64>() / 32.0).sqrt();
                let head = &x[group * GROUP / dims * dims..][..dims];
                let sum: f64 = head.iter().map(|x| f64::from(x.abs())).sum();
                let error = 12.0 * U * sum / (dims as f64).sqrt();
                assert!((f64::from(scales[group]) - scale).abs() <= scale / 2000.0 + error);
                for (i, y) in y.iter().enumerate() {
                    let at = group * GROUP + i;
                    assert_eq!(deferred[at], centroids[usize::from(numbers[at])] * scales[group]);
                    let t = y / (scale + f64::from(EPSILON));
                    let tolerance = error / scale * (1.0 + t.abs()) + 40.0 * U * t.abs();
                    if boundaries.iter().all(|b| (f64::from(*b) - t).abs() > tolerance) {
                        let below = boundaries.iter().filter(|b| f64::from(**b) < t).count();
                        assert_eq!(usize::from(numbers[at]), below, "{dims} {bits} {at}");
                        compared += 1;
                    }
                }
            }
            assert!(compared > x.len() * 9 / 10, "{compared}");
        }
    }
}

#[test]
fn every_number_of_every_width_is_packed_and_comes_back() {
    for bits in VALUE_BITS {
        let numbers: Vec<u8> = (0..512_u32).map(|i| ((i * 7 + i / 256) % (1 << bits)) as u8).collect();
        let packed = pack(&Array::from_slice(&numbers, &[2, 256]).unwrap(), bits).unwrap();
        assert_eq!((packed.shape(), packed.dtype()), (&[2, 32 * bits as i32][..], Dtype::Uint8));
        assert_eq!(taken_apart(&packed.to_vec::<u8>().unwrap(), bits), numbers, "{bits}");
        assert_eq!(unpack(&packed, bits).unwrap().to_vec::<u8>().unwrap(), numbers, "{bits}");
        let seen: std::collections::BTreeSet<u8> = numbers.into_iter().collect();
        assert_eq!(seen.len(), 1 << bits);
    }
}

/// Known and kept: other implementations read and write it so.
#[test]
fn a_constant_group_of_8_bit_keys_has_an_infinite_zero() {
    let codec = TurboQuant::new(8, 3, 64, 64).unwrap();
    for (value, zero) in [(0.75, f32::INFINITY), (-3.0, f32::NEG_INFINITY), (0.0, 0.0)] {
        let keys = codec.encode_keys(&array(&[value; 64], 1, 64)).unwrap();
        assert_eq!(floats(&keys.zeros), [zero; 2], "{value}");
        assert_eq!(floats(&keys.scales), [0.0; 2]);
        assert_eq!(keys.numbers.dtype(), Dtype::Int8);
        let decoded = floats(&codec.decode_keys(&keys, Dtype::Float32).unwrap());
        assert!(decoded.iter().all(|x| if value == 0.0 { *x == 0.0 } else { x.is_nan() }));
    }
}

#[test]
fn ten_tokens_and_six_are_sixteen() {
    let x = noise(16 * 128, 5);
    let whole = array(&x, 1, 128);
    let parts = [(0, 10), (10, 16)].map(|(from, to)| array(&x[from * 128..to * 128], 1, 128));
    for (key_bits, value_bits) in [(2, 2), (4, 3), (5, 4), (8, 5), (8, 8)] {
        let codec = TurboQuant::new(key_bits, value_bits, 128, 128).unwrap();
        let encode = |x: &Array| {
            let (keys, values) = (codec.encode_keys(x).unwrap(), codec.encode_values(x).unwrap());
            [keys.numbers, keys.scales, keys.zeros, values.numbers, values.scales]
        };
        let (expected, [ten, six]) = (encode(&whole), parts.each_ref().map(encode));
        for ((expected, ten), six) in expected.iter().zip(&ten).zip(&six) {
            let found = prim::concatenate(&[ten, six], 2).unwrap();
            assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()));
            assert_eq!(floats(&found), floats(expected));
        }
    }
}

#[test]
fn attention_over_rotated_values_is_that_over_values() {
    for (bits, dims) in [(3, 64), (8, 128), (2, 256)] {
        let codec = TurboQuant::new(8, bits, dims, dims).unwrap();
        let width = dims as i32;
        let keys = codec.encode_keys(&array(&noise(2 * 40 * dims, 1), 2, width)).unwrap();
        let values = codec.encode_values(&array(&noise(2 * 40 * dims, 2), 2, width)).unwrap();
        let queries = array(&noise(6 * 3 * dims, 3), 6, width);
        for (dtype, tolerance) in [(Dtype::Float32, 1e-5), (Dtype::Bfloat16, 0.03)] {
            let attend = |values: Array| {
                let keys = codec.decode_keys(&keys, dtype).unwrap();
                let queries = prim::astype(&queries, dtype).unwrap();
                let scale = (dims as f32).sqrt().recip();
                prim::scaled_dot_product_attention(&queries, &keys, &values, scale, &Mask::None).unwrap()
            };
            let eager = attend(codec.decode_values_eager(&values, dtype).unwrap());
            let deferred = attend(codec.decode_values_deferred(&values, dtype).unwrap());
            let deferred = codec.rotate_back(&deferred, dtype).unwrap();
            assert_eq!((eager.dtype(), deferred.dtype()), (dtype, dtype));
            let (eager, deferred) = (floats(&eager), floats(&deferred));
            for (eager, deferred) in eager.iter().zip(&deferred) {
                assert!((eager - deferred).abs() <= tolerance, "{bits}: {eager} {deferred}");
            }
        }
    }
}

#[test]
fn values_come_back_nearer_with_more_bits() {
    let x = noise(20 * 128, 9);
    let square: f32 = x.iter().map(|x| x * x).sum();
    let mut last = f32::INFINITY;
    for bits in VALUE_BITS {
        let codec = TurboQuant::new(8, bits, 128, 128).unwrap();
        let values = codec.encode_values(&array(&x, 1, 128)).unwrap();
        let back = floats(&codec.decode_values_eager(&values, Dtype::Float32).unwrap());
        let error = x.iter().zip(&back).map(|(x, back)| (x - back).powi(2)).sum::<f32>() / square;
        assert!(error < last && error < 0.2, "{bits}: {error} {last}");
        last = error;
    }
    assert!(last < 2e-4, "{last}");
}

/// B71
#[test]
fn b71_other_sizes_and_widths_are_refused() {
    for (key_bits, value_bits, key_dims, value_dims) in
        [(8, 3, 80, 80), (8, 3, 96, 64), (8, 3, 64, 32), (3, 3, 64, 64), (8, 6, 64, 64), (0, 0, 64, 64)]
    {
        let error = TurboQuant::new(key_bits, value_bits, key_dims, value_dims).unwrap_err();
        assert_eq!(error.code(), Code::Unsupported);
        assert!(error.message().contains("TurboQuant"), "{error}");
    }
}

/// What the kernels store is read as the same numbers, up to roundings in the last bit of what is encoded.
#[cfg(target_os = "linux")]
#[test]
fn kernels_and_operations_encode_the_same() {
    use crate::mlx::kernels::attention::{KvForm, KvShape, NewTokens, Source, Target, convert, store};
    for (dims, key_bits, value_bits) in [(64, 8, 3), (128, 5, 4), (256, 4, 8), (512, 2, 2), (64, 8, 5)] {
        let x = noise(16 * dims, dims as u64 + u64::from(value_bits));
        let codec = TurboQuant::new(key_bits, value_bits, dims, dims).unwrap();
        let input = array(&x, 1, dims as i32);
        let keys = codec.encode_keys(&input).unwrap();
        let keys = floats(&codec.decode_keys(&keys, Dtype::Float32).unwrap());
        let values = codec.encode_values(&input).unwrap();
        let values = floats(&codec.decode_values_eager(&values, Dtype::Float32).unwrap());

        let form = KvForm::Turbo { key_bits, value_bits };
        let shape = KvShape { kv_heads: 1, key_dims: dims, value_dims: dims, form };
        let slabs = |shape: &KvShape| (vec![0; shape.key_bytes(16)], vec![0; shape.value_bytes(16)]);
        let (mut k, mut v) = slabs(&shape);
        let new = NewTokens { keys: &x, key_stride: dims, values: &x, value_stride: dims, tokens: 16 };
        store(&shape, &mut k, &mut v, 16, 0, &new);
        let plain = KvShape { form: KvForm::F32, ..shape };
        let (mut plain_k, mut plain_v) = slabs(&plain);
        let source = Source { shape, keys: &k, values: &v, capacity: 16 };
        let target = Target { shape: plain, keys: &mut plain_k, values: &mut plain_v, capacity: 16 };
        convert(&crate::mlx::kernels::threads::pool().unwrap(), &source, target, 16).unwrap();
        let number = |bytes: &[u8], i: usize| f32::from_le_bytes(bytes[4 * i..][..4].try_into().unwrap());
        let found_keys = (0..16 * dims).map(|i| number(&plain_k, i % dims * 16 + i / dims));
        let found_values = (0..16 * dims).map(|i| number(&plain_v, i));
        let differ = |found: f32, expected: &f32| (found - expected).abs() > 1e-5;
        let keys_apart = found_keys.zip(&keys).filter(|(found, x)| differ(*found, x)).count();
        let values_apart = found_values.zip(&values).filter(|(found, x)| differ(*found, x)).count();
        // A number at a boundary moves its key, or a little of all values of its head.
        assert!(keys_apart <= 2 && values_apart <= dims, "{dims}: {keys_apart} {values_apart}");
    }
}
