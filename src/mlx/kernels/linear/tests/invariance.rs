//! A row's bits, whatever surrounds it and whatever computes it.

use super::super::product::multiply_gated_on;
use super::super::{Format, Matrix, multiply_chosen, multiply_gated_chosen};
use super::{Numbers, Sample, assert_same_bits, formats, product, sample, some_inputs};
use crate::mlx::kernels::activation::Activation;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::float::Float;
use crate::mlx::kernels::pool::Pool;
use crate::mlx::kernels::simd_portable::Portable;
use crate::mlx::kernels::sixteen::LANES;

#[test]
fn a_row_does_not_depend_on_the_others_nor_on_threads() {
    let mut numbers = Numbers(2);
    let pools: Vec<Pool> = (1..=4).map(|threads| Pool::new(threads).unwrap()).collect();
    for (number, format) in formats().into_iter().enumerate() {
        let (outputs, inputs) = (75, some_inputs(format, 150));
        let sample = sample(format, outputs, inputs, &mut numbers);
        let x = numbers.floats(100 * inputs);
        // The portable path is slow, and compared with the others below.
        for path in Path::all().into_iter().filter(|path| *path != Path::Portable) {
            let alone: Vec<f32> = x
                .chunks_exact(inputs)
                .flat_map(|x| product(path, &pools[0], x, 1, &[sample.matrix()]))
                .collect();
            for rows in (1..=33).chain([64, 97, 100]) {
                let first = 100 - rows;
                let pool = &pools[(rows + number) % 4];
                let together = product(path, pool, &x[first * inputs..], rows, &[sample.matrix()]);
                assert_same_bits(&together, &alone[first * outputs..], || {
                    format!("{format:?} {path:?} {rows}")
                });
            }
        }
    }
}

#[test]
fn all_paths_give_the_same_bits() {
    let mut numbers = Numbers(3);
    let pool = Pool::new(2).unwrap();
    for format in formats() {
        let (outputs, inputs) = (37, some_inputs(format, 150));
        let sample = sample(format, outputs, inputs, &mut numbers);
        for rows in [1, 2, 3, 4, 5, 12, 13, 31] {
            let mut x = numbers.floats(rows * inputs);
            // Such that scaling an activation loses bits.
            x[inputs / 2] = 1.234e-42;
            x[inputs / 2 + 1] = 1.1754945e-38;
            let expected = product(Path::Portable, &pool, &x, rows, &[sample.matrix()]);
            for path in Path::all() {
                let out = product(path, &pool, &x, rows, &[sample.matrix()]);
                assert_same_bits(&out, &expected, || format!("{format:?} {path:?} {rows}"));
            }
        }
    }
}

#[test]
fn gated_products_are_those_of_their_parts() {
    let mut numbers = Numbers(5);
    let pool = Pool::new(2).unwrap();
    let (outputs, inputs) = (90, 128);
    let affine = |bits, group, scales| Format::Affine { bits, group, scales };
    let forms = [
        (affine(4, 32, Float::F16), Format::Dense(Float::F32)),
        (affine(8, 64, Float::Bf16), Format::Dense(Float::F32)),
        (Format::Dense(Float::Bf16), Format::Dense(Float::F16)),
    ];
    let samples =
        forms.map(|(gate, up)| [gate, up].map(|format| sample(format, outputs, inputs, &mut numbers)));
    for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu2] {
        for ([gate, up], rows) in samples.iter().flat_map(|pair| [1, 4, 6, 50, 130].map(|rows| (pair, rows)))
        {
            let x: Vec<f32> = numbers.floats(rows * inputs).iter().map(|x| x / 64.0).collect();
            let gates = product(Path::best(), &pool, &x, rows, &[gate.matrix()]);
            let ups = product(Path::best(), &pool, &x, rows, &[up.matrix()]);
            let expected: Vec<f32> = gates
                .iter()
                .zip(&ups)
                .map(|(&gate, up)| activation.apply(Portable, [gate; LANES])[0] * up)
                .collect();
            for path in Path::all() {
                let mut out = vec![f32::NAN; rows * outputs];
                let (gate, up) = (gate.matrix(), up.matrix());
                multiply_gated_on(path, &pool, &x, rows, &gate, &up, activation, &mut out).unwrap();
                assert_same_bits(&out, &expected, || format!("{activation:?} {path:?} {rows}"));
            }
        }
    }
}

#[test]
fn chosen_experts_give_what_each_gives_alone() {
    let mut numbers = Numbers(9);
    let pool = Pool::new(3).unwrap();
    let (outputs, inputs) = (50, 96);
    let affine = |bits| Format::Affine { bits, group: 32, scales: Float::F16 };
    let gates: Vec<Sample> = (0..5).map(|_| sample(affine(4), outputs, inputs, &mut numbers)).collect();
    let ups: Vec<Sample> = (0..5).map(|_| sample(affine(6), outputs, inputs, &mut numbers)).collect();
    let gates: Vec<Matrix> = gates.iter().map(Sample::matrix).collect();
    let ups: Vec<Matrix> = ups.iter().map(Sample::matrix).collect();
    // 400 rows with two experts each give more than a chunk to one of them.
    for (rows, each) in [(1, 1), (1, 4), (3, 2), (33, 2), (400, 2)] {
        let x: Vec<f32> = numbers.floats(rows * inputs).iter().map(|x| x / 16.0).collect();
        // Expert 3 is never chosen, expert 0 often.
        let chosen: Vec<u32> =
            (0..rows * each).map(|_| [0, 1, 0, 4, 2, 0][numbers.word() as usize % 6]).collect();
        let mut out = vec![f32::NAN; chosen.len() * outputs];
        multiply_chosen(&pool, &x, rows, &ups, &chosen, &mut out).unwrap();
        let mut gated = vec![f32::NAN; chosen.len() * outputs];
        let silu = Activation::Silu;
        multiply_gated_chosen(&pool, &x, rows, &gates, &ups, silu, &chosen, &mut gated).unwrap();
        for (index, &expert) in chosen.iter().enumerate() {
            let x = &x[index / each * inputs..][..inputs];
            let (gate, up) = (gates[expert as usize], ups[expert as usize]);
            let place = index * outputs..(index + 1) * outputs;
            let alone = product(Path::best(), &pool, x, 1, &[up]);
            assert_same_bits(&out[place.clone()], &alone, || format!("{rows} {each} {index}"));
            let mut alone = vec![f32::NAN; outputs];
            multiply_gated_on(Path::best(), &pool, x, 1, &gate, &up, silu, &mut alone).unwrap();
            assert_same_bits(&gated[place], &alone, || format!("{rows} {each} {index}"));
        }
    }
    multiply_chosen(&pool, &[], 0, &ups, &[], &mut []).unwrap();
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut numbers = Numbers(6);
    let pool = Pool::new(2).unwrap();
    for format in formats() {
        let (outputs, inputs) = (40, some_inputs(format, 140));
        let sample = sample(format, outputs, inputs, &mut numbers);
        for rows in [1, 3, 5, 20] {
            let mut x = numbers.floats(rows * inputs);
            let clean = product(Path::best(), &pool, &x, rows, &[sample.matrix()]);
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
                let row = rows / 2;
                // The last of the inputs: where a path that reads too far or too little would show.
                x[row * inputs + inputs - 1] = value;
                let out = product(Path::best(), &pool, &x, rows, &[sample.matrix()]);
                for (index, (out, clean)) in out.iter().zip(&clean).enumerate() {
                    if index / outputs != row {
                        assert_eq!(out.to_bits(), clean.to_bits(), "{format:?} {rows} {value}");
                    } else {
                        assert!(!value.is_nan() || out.is_nan(), "{format:?} {rows} {value}");
                        assert!(!value.is_infinite() || !out.is_finite(), "{format:?} {rows} {value}");
                        assert_ne!(out.to_bits(), clean.to_bits());
                    }
                }
            }
        }
    }
}
