//! Operations against known values, and errors that leave MLX usable.

use super::ops::{self, Linear, Rope, Weight};
use super::{Array, Dtype, Mask, eval, prim};
use crate::base::Code;

fn floats(values: &[f32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape).unwrap()
}

/// A reproducible sequence in [-1, 1).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    }

    fn array(&mut self, shape: &[i32]) -> Array {
        let count = shape.iter().product::<i32>() as usize;
        let values: Vec<f32> = (0..count).map(|_| self.next()).collect();
        floats(&values, shape)
    }
}

fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= tolerance, "{found} instead of {expected} at {index}");
    }
}

#[test]
fn b139_a_failed_operation_is_an_error_and_the_next_one_works() {
    let array = floats(&[1.0, 2.0, 3.0], &[3]);
    for _ in 0..3 {
        let error = prim::reshape(&array, &[2, 2]).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("reshape"), "{error}");
        assert!(!error.message().contains(".cpp"), "{error}");
    }
    let error = prim::matmul(&array, &floats(&[1.0; 4], &[2, 2])).unwrap_err();
    assert!(error.message().contains("matmul"), "{error}");
    let doubled = prim::add(&array, &array).unwrap();
    assert_eq!(doubled.to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
}

#[test]
fn b139_messages_stay_with_the_thread_that_failed() {
    let threads: Vec<_> = (1..5)
        .map(|size| {
            std::thread::spawn(move || {
                for _ in 0..50 {
                    let array = Array::from_slice(&vec![0f32; size], &[size as i32]).unwrap();
                    let message = prim::reshape(&array, &[77]).unwrap_err();
                    assert!(message.message().contains(&format!("size {size}")), "{message}");
                }
                super::stream::leave_thread();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn host_values_survive_the_way_in_and_out() {
    assert_eq!(floats(&[1.5, -2.0], &[2]).to_vec::<f32>().unwrap(), [1.5, -2.0]);
    assert_eq!(Array::from_slice(&[7u32], &[]).unwrap().item::<u32>().unwrap(), 7);
    assert!(floats(&[1.0, 2.0], &[2]).item::<f32>().is_err());
    assert!(floats(&[1.0], &[1]).to_vec::<u32>().is_err());
    assert!(Array::from_bytes(Dtype::Float32, &[2], &[0; 7]).is_err());
    assert!(Array::from_bytes(Dtype::Float32, &[-1], &[]).is_err());
    assert!(Array::from_slice::<f32>(&[], &[0, 3]).unwrap().to_vec::<f32>().unwrap().is_empty());
}

#[test]
fn views_read_in_row_major_order() {
    let array = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &[2, 3]);
    let turned = prim::transpose(&array).unwrap();
    assert_eq!(turned.shape(), [3, 2]);
    assert_eq!(turned.to_vec::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    let part = prim::slice(&array, &[0, 1], &[2, 2]).unwrap();
    assert_eq!(part.to_vec::<f32>().unwrap(), [1.0, 4.0]);
    let odd = prim::slice(&Array::from_slice(&[1u8, 2, 3, 4], &[4]).unwrap(), &[1], &[3]).unwrap();
    assert_eq!(odd.to_vec::<u8>().unwrap(), [2, 3]);
}

#[test]
fn a_clone_is_the_same_value() {
    let array = floats(&[1.0], &[1]);
    let clone = array.clone();
    drop(array);
    assert_eq!(clone.item::<f32>().unwrap(), 1.0);
}

#[test]
fn dense_products_add_their_bias() {
    let weight = Weight::dense(floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])).unwrap();
    assert_eq!((weight.outputs(), weight.inputs()), (3, 2));
    let x = floats(&[1.0, 10.0], &[1, 1, 2]);
    let plain = ops::linear(&x, &weight, None).unwrap();
    assert_eq!(plain.to_vec::<f32>().unwrap(), [21.0, 43.0, 65.0]);
    let linear = Linear::new(weight.clone(), Some(floats(&[1.0, 2.0, 3.0], &[3]))).unwrap();
    assert_eq!(linear.apply(&x).unwrap().to_vec::<f32>().unwrap(), [22.0, 45.0, 68.0]);
    assert!(Linear::new(weight, Some(floats(&[1.0], &[1]))).is_err());
}

#[test]
fn b152_quantised_products_of_odd_shapes() {
    let mut noise = Noise(1);
    for bits in [2, 3, 4, 5, 6, 8] {
        for (outputs, inputs, rows) in
            [(32, 64, 1), (64, 544, 2), (96, 1024, 1), (130, 64, 720), (130, 544, 1), (32, 1024, 2)]
        {
            let group = 32;
            let dense = noise.array(&[outputs, inputs]);
            let [packed, scales, biases] = prim::quantize(&dense, group, bits).unwrap();
            let kept =
                prim::dequantize(&packed, &scales, &biases, group, bits).unwrap().to_vec::<f32>().unwrap();
            let x = noise.array(&[rows, inputs]);
            let x_values = x.to_vec::<f32>().unwrap();
            let (n, k) = (outputs as usize, inputs as usize);
            let mut expected = Vec::with_capacity(rows as usize * n);
            for x_row in x_values.chunks(k) {
                for weight_row in kept.chunks(k) {
                    expected
                        .push(x_row.iter().zip(weight_row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum());
                }
            }
            let weight = Weight::affine(packed, scales, biases, group, bits).unwrap();
            assert_eq!((weight.outputs(), weight.inputs()), (outputs, inputs));
            let found = ops::linear(&x, &weight, None).unwrap().to_vec::<f32>().unwrap();
            assert_close(&found, &expected, 2e-4);
        }
    }
}

#[test]
fn b152_quantised_products_with_rows_as_inputs() {
    let mut noise = Noise(2);
    for (inputs, outputs, rows) in [(64, 32, 1), (130, 96, 2), (544, 64, 720)] {
        let dense = noise.array(&[inputs, outputs]);
        let [packed, scales, biases] = prim::quantize(&dense, 32, 4).unwrap();
        let kept = prim::dequantize(&packed, &scales, &biases, 32, 4).unwrap().to_vec::<f32>().unwrap();
        let x = noise.array(&[rows, inputs]);
        let n = outputs as usize;
        let mut expected = Vec::new();
        for x_row in x.to_vec::<f32>().unwrap().chunks(inputs as usize) {
            for column in 0..n {
                let products = x_row.iter().enumerate();
                expected.push(products.map(|(k, a)| f64::from(*a) * f64::from(kept[k * n + column])).sum());
            }
        }
        let found = prim::quantized_matmul(&x, &packed, &scales, &biases, false, 32, 4).unwrap();
        assert_close(&found.to_vec::<f32>().unwrap(), &expected, 2e-4);
    }
}

#[test]
fn triples_that_do_not_fit_are_refused() {
    let [packed, scales, biases] = prim::quantize(&Noise(3).array(&[4, 64]), 32, 4).unwrap();
    assert!(Weight::affine(packed.clone(), scales.clone(), biases.clone(), 32, 8).is_err());
    assert!(Weight::affine(packed.clone(), scales.clone(), biases.clone(), 64, 4).is_err());
    assert!(Weight::affine(packed, scales.clone(), floats(&[0.0; 4], &[4, 1]), 32, 4).is_err());
    assert!(Weight::dense(floats(&[0.0; 4], &[4])).is_err());
}

#[test]
fn quantised_and_dense_tables_give_the_same_rows() {
    let dense = Noise(4).array(&[10, 64]);
    let [packed, scales, biases] = prim::quantize(&dense, 32, 8).unwrap();
    let kept = Weight::dense(prim::dequantize(&packed, &scales, &biases, 32, 8).unwrap()).unwrap();
    let affine = Weight::affine(packed, scales, biases, 32, 8).unwrap();
    let ids = ops::token_ids(&[9, 0, 3], 10).unwrap();
    let rows = ops::embedding(&ids, &affine).unwrap();
    assert_eq!(rows.shape(), [1, 3, 64]);
    let expected = ops::embedding(&ids, &kept).unwrap();
    assert_eq!(rows.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
}

#[test]
fn b42_ids_outside_the_table_are_refused() {
    for (ids, position) in [(&[1u32, 64][..], 1), (&[1, u32::MAX], 1), (&[1 << 31], 0)] {
        let error = ops::token_ids(ids, 64).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(error.detail().position, Some(position));
        assert_eq!(error.detail().field.as_deref(), Some("tokens"));
    }
    assert!(ops::token_ids(&[63], 64).is_ok());
}

#[test]
fn norm_gate_and_scores() {
    let x = floats(&[3.0, -4.0], &[1, 1, 2]);
    let normed = ops::rms_norm(&x, &floats(&[1.0, 2.0], &[2]), 0.0).unwrap();
    let root = 12.5f64.sqrt();
    assert_close(&normed.to_vec::<f32>().unwrap(), &[3.0 / root, -8.0 / root], 1e-6);
    let gated =
        ops::gated(&floats(&[1.0, -2.0], &[2]), &floats(&[2.0, 3.0], &[2]), ops::Activation::Silu).unwrap();
    let silu = |x: f64| x / (1.0 + (-x).exp());
    assert_close(&gated.to_vec::<f32>().unwrap(), &[2.0 * silu(1.0), 3.0 * silu(-2.0)], 1e-6);
    let scores = floats(&[0.0, 1.0, 1.0], &[1, 3]);
    assert_eq!(ops::argmax(&scores).unwrap().to_vec::<u32>().unwrap(), [1]);
    let total = (1.0 + 2.0 * 1f64.exp()).ln();
    let normalised = ops::log_probabilities(&scores).unwrap()[0].to_vec::<f32>().unwrap();
    assert_close(&normalised, &[-total, 1.0 - total, 1.0 - total], 1e-6);
}

#[test]
fn rope_turns_pairs_of_halves_by_their_position() {
    let x = floats(&[1.0, 0.0, 0.0, 1.0], &[1, 1, 1, 4]);
    let turned = ops::rope(&x, &Rope::plain(4, false, 10000.0, 1.0), 5).unwrap();
    // Pairs (0, 2) and (1, 3) with frequencies 1 and 10000^-1/2.
    let (slow_sin, slow_cos) = (5.0 / 100.0f64).sin_cos();
    let (sin, cos) = 5f64.sin_cos();
    assert_close(&turned.to_vec::<f32>().unwrap(), &[cos, -slow_sin, sin, slow_cos], 1e-6);
    let halved = ops::rope(&x, &Rope::plain(4, false, 10000.0, 0.5), 10).unwrap();
    assert_close(&halved.to_vec::<f32>().unwrap(), &[cos, -slow_sin, sin, slow_cos], 1e-6);
    let factors = Rope::with_factors(4, false, 10000.0, &[1.0, 2.0]).unwrap();
    let stretched = ops::rope(&x, &factors, 5).unwrap();
    let (half_sin, half_cos) = (5.0 / 200.0f64).sin_cos();
    assert_close(&stretched.to_vec::<f32>().unwrap(), &[cos, -half_sin, sin, half_cos], 1e-6);
}

#[test]
fn attention_is_causal_and_shares_keys_among_heads() {
    let mut noise = Noise(5);
    let (queries, keys, values) =
        (noise.array(&[1, 4, 2, 8]), noise.array(&[1, 2, 3, 8]), noise.array(&[1, 2, 3, 8]));
    let (q, k, v) =
        (queries.to_vec::<f32>().unwrap(), keys.to_vec::<f32>().unwrap(), values.to_vec::<f32>().unwrap());
    let remembered = ops::KeysValues::Plain { keys, values };
    let found = ops::attention(&queries, &remembered, 0.5, &Mask::Causal).unwrap();
    let mut expected = Vec::new();
    for head in 0..4 {
        for query in 0..2 {
            // The last query stands at the last key.
            let visible = query + 2;
            let row = |values: &[f32], at: usize| -> Vec<f64> {
                values[at * 8..at * 8 + 8].iter().map(|value| f64::from(*value)).collect()
            };
            let q_row = row(&q, head * 2 + query);
            let weights: Vec<f64> = (0..visible)
                .map(|key| {
                    let k_row = row(&k, head / 2 * 3 + key);
                    (0.5 * q_row.iter().zip(&k_row).map(|(a, b)| a * b).sum::<f64>()).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            for dim in 0..8 {
                let sum: f64 = (0..visible).map(|key| weights[key] * row(&v, head / 2 * 3 + key)[dim]).sum();
                expected.push(sum / total);
            }
        }
    }
    assert_close(&found.to_vec::<f32>().unwrap(), &expected, 1e-6);
    let x = noise.array(&[1, 3, 16]);
    let there_and_back = ops::merge_heads(&ops::split_heads(&x, 4).unwrap()).unwrap();
    assert_eq!(there_and_back.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
}

#[test]
fn memory_is_counted_and_given_back() {
    let before = super::memory::active();
    let array = prim::zeros(&[1 << 20], Dtype::Float32).unwrap();
    eval([&array]).unwrap();
    assert!(super::memory::active() >= before + (4 << 20));
    assert!(super::memory::peak() >= before + (4 << 20));
    drop(array);
    super::memory::clear_pool().unwrap();
    assert!(super::memory::active() < before + (4 << 20));
}
