//! The fused steps against MLX's operations, one row at a time against many, and packed weights against plain ones.

use super::{
    Activation, Linear, Norm, NormKind, Weight, embedding, gated_products, joined_products, linear,
    normalized, product_onto,
};
use crate::mlx::kernels::arena::Arena;
use crate::mlx::{Array, Dtype, prim};

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn floats(shape: &[i32], seed: u32) -> Array {
    let count = shape.iter().product::<i32>() as usize;
    Array::from_slice(&noise(count, seed), shape).unwrap()
}

fn values(array: &Array) -> Vec<f32> {
    prim::contiguous(array).unwrap().to_vec::<f32>().unwrap()
}

/// A packed weight and the float32 matrix that it stands for.
fn weights(outputs: i32, inputs: i32, seed: u32) -> Vec<(Weight, Array)> {
    let matrix = floats(&[outputs, inputs], seed);
    let mut made = Vec::new();
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        let rounded = prim::astype(&matrix, dtype).unwrap();
        let plain = prim::astype(&rounded, Dtype::Float32).unwrap();
        made.push((Weight::dense(rounded).unwrap().pack(&mut Arena::new()).unwrap(), plain));
    }
    for (bits, group) in [(4, 32), (8, 32), (4, 64), (6, 64), (3, 32)] {
        let words = inputs * bits / 32;
        let numbers: Vec<u32> = noise((outputs * words) as usize, seed + 1)
            .iter()
            .map(|value| value.to_bits().reverse_bits())
            .collect();
        let packed = Array::from_slice(&numbers, &[outputs, words]).unwrap();
        let [scales, biases] = [2, 3].map(|more| {
            let small = prim::multiply(
                &floats(&[outputs, inputs / group], seed + more),
                &Array::scalar(0.1).unwrap(),
            );
            prim::astype(&small.unwrap(), Dtype::Float16).unwrap()
        });
        let wide = |array: &Array| prim::astype(array, Dtype::Float32).unwrap();
        let plain =
            prim::dequantize(&packed, &wide(&scales), &wide(&biases), group as u32, bits as u32).unwrap();
        let weight = Weight::affine(packed, scales, biases, group as u32, bits as u32).unwrap();
        made.push((weight.pack(&mut Arena::new()).unwrap(), plain));
    }
    made
}

fn assert_near(found: &Array, expected: &Array, bound: f32) {
    assert_eq!(found.shape(), expected.shape());
    let (found, expected) = (values(found), values(expected));
    let largest = expected.iter().fold(1e-6f32, |most, value| most.max(value.abs()));
    for (index, (a, b)) in found.iter().zip(&expected).enumerate() {
        assert!((a - b).abs() <= bound * largest, "{index}: {a} and {b}");
    }
}

fn row(x: &Array, index: i32) -> Array {
    prim::contiguous(&prim::slice(x, &[0, index, 0], &[1, index + 1, x.dim(2)]).unwrap()).unwrap()
}

#[test]
fn products_are_those_of_the_plain_matrix_and_of_each_row_alone() {
    let x = floats(&[1, 9, 128], 1);
    for (weight, plain) in weights(40, 128, 10) {
        assert!(matches!(weight, Weight::Packed(_)));
        let bias = floats(&[40], 5);
        for bias in [None, Some(&bias)] {
            let found = linear(&x, &weight, bias).unwrap();
            let expected = linear(&x, &Weight::dense(plain.clone()).unwrap(), bias).unwrap();
            assert_near(&found, &expected, 1e-5);
            for index in 0..9 {
                let alone = linear(&row(&x, index), &weight, bias).unwrap();
                assert_eq!(values(&alone), values(&row(&found, index)));
            }
        }
    }
}

#[test]
fn steps_are_what_their_operations_give_one_by_one() {
    let x = floats(&[1, 5, 64], 2);
    let gain = floats(&[64], 3);
    let norm = Norm { kind: NormKind::RootMeanSquare, gain: &gain, bias: None, eps: 1e-5 };
    let normal = prim::rms_norm(&x, &gain, 1e-5).unwrap();
    assert_near(&normalized(&x, Some(norm)).unwrap(), &normal, 1e-6);

    let [a, b, c] = [(48, 64, 20), (32, 64, 30), (64, 48, 40)].map(|(outputs, inputs, seed)| {
        let matrix = floats(&[outputs, inputs], seed);
        let bias = Some(floats(&[outputs], seed + 5));
        let plain = Linear::new(Weight::dense(matrix.clone()).unwrap(), bias.clone()).unwrap();
        (Linear::new(Weight::dense(matrix).unwrap().pack(&mut Arena::new()).unwrap(), bias).unwrap(), plain)
    });
    let joined = joined_products(&x, Some(norm), &[&a.0, &b.0]).unwrap();
    let separate = [&a.1, &b.1].map(|linear| linear.apply(&normal).unwrap());
    assert_near(&joined, &prim::concatenate(&separate.iter().collect::<Vec<_>>(), -1).unwrap(), 1e-5);

    let up = floats(&[48, 64], 50);
    let up =
        [Weight::dense(up.clone()).unwrap().pack(&mut Arena::new()).unwrap(), Weight::dense(up).unwrap()]
            .map(|weight| Linear::new(weight, None).unwrap());
    let gated = gated_products(&x, Some(norm), &a.0, &up[0], Activation::Silu).unwrap();
    let gate = a.1.apply(&normal).unwrap();
    let expected = prim::multiply(
        &prim::multiply(&gate, &prim::sigmoid(&gate).unwrap()).unwrap(),
        &up[1].apply(&normal).unwrap(),
    );
    let expected = expected.unwrap();
    assert_near(&gated, &expected, 1e-5);

    let onto = product_onto(&expected, &c.0, &x).unwrap();
    assert_near(&onto, &prim::add(&x, &c.1.apply(&expected).unwrap()).unwrap(), 1e-5);
}

#[test]
fn weights_without_a_kernel_are_composed() {
    // One weight of the step has not been packed.
    let x = floats(&[1, 3, 64], 2);
    let gain = floats(&[64], 3);
    let norm = Norm { kind: NormKind::RootMeanSquare, gain: &gain, bias: None, eps: 1e-5 };
    let normal = prim::rms_norm(&x, &gain, 1e-5).unwrap();
    let plain = Linear::new(Weight::dense(floats(&[8, 64], 4)).unwrap(), None).unwrap();
    let packed = Linear::new(plain.weight.clone().pack(&mut Arena::new()).unwrap(), None).unwrap();
    let both = joined_products(&x, Some(norm), &[&plain, &packed]).unwrap();
    let one = plain.apply(&normal).unwrap();
    assert_near(&both, &prim::concatenate(&[&one, &one], -1).unwrap(), 1e-5);
}

#[test]
fn rows_of_a_packed_table_are_exact() {
    let ids = Array::from_slice(&[3u32, 39, 0, 3], &[1, 4]).unwrap();
    for (weight, plain) in weights(40, 64, 60) {
        let found = embedding(&ids, &weight).unwrap();
        let expected = embedding(&ids, &Weight::dense(plain).unwrap()).unwrap();
        assert_near(&found, &expected, 1e-6);
    }
    let (weight, _) = weights(40, 64, 60).remove(0);
    let beyond = Array::from_slice(&[40u32], &[1, 1]).unwrap();
    assert!(embedding(&beyond, &weight).unwrap().eval().is_err());
}
