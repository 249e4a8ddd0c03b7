//! Results against float64, and the forms at their edges.

use super::super::product::multiply_on;
use super::super::{Format, Layout, Matrix};
use super::{Numbers, Sample, formats, product, sample, some_inputs};
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::float::Float;
use crate::mlx::kernels::pool::Pool;

#[test]
fn products_are_near_the_exact_ones() {
    let mut numbers = Numbers(1);
    let pool = Pool::new(2).unwrap();
    for format in formats() {
        for (rows, outputs, least) in [(1, 70, 300), (3, 33, 100), (7, 1, 600), (29, 64, 200)] {
            let inputs = some_inputs(format, least);
            let sample = sample(format, outputs, inputs, &mut numbers);
            let x = numbers.floats(rows * inputs);
            let out = product(Path::best(), &pool, &x, rows, &[sample.matrix()]);
            for row in 0..rows {
                for output in 0..outputs {
                    let (exact, bound) = sample.exact(&x[row * inputs..][..inputs], output);
                    let value = f64::from(out[row * outputs + output]);
                    assert!((value - exact).abs() <= bound, "{format:?} {row} {output}: {value} {exact}");
                }
            }
        }
    }
}

#[test]
fn zeros_and_extremes() {
    let mut numbers = Numbers(7);
    let pool = Pool::new(1).unwrap();
    for format in formats() {
        let inputs = some_inputs(format, 128);
        let sample = sample(format, 33, inputs, &mut numbers);
        for rows in [1, 6] {
            let out = product(Path::best(), &pool, &vec![0.0; rows * inputs], rows, &[sample.matrix()]);
            assert!(out.iter().all(|out| *out == 0.0));
            for size in [1e-43_f32, 1e-38, 1e-30, 1e30] {
                let x: Vec<f32> = numbers.floats(rows * inputs).iter().map(|x| x * size).collect();
                let out = product(Path::best(), &pool, &x, rows, &[sample.matrix()]);
                for (index, out) in out.iter().enumerate() {
                    let (exact, bound) = sample.exact(&x[index / 33 * inputs..][..inputs], index % 33);
                    // Below the normal numbers an activation that is divided by the power of two of a place
                    // is off by 2⁻¹⁵⁰, and meets a number below 2¹⁶.
                    let bound = bound + inputs as f64 * 2.0_f64.powi(16 - 149);
                    assert!((f64::from(*out) - exact).abs() <= bound, "{format:?} {size}: {out} {exact}");
                }
            }
        }
    }
}

#[test]
fn rows_are_looked_up() {
    let mut numbers = Numbers(8);
    for format in formats() {
        let inputs = some_inputs(format, 130);
        let sample = sample(format, 45, inputs, &mut numbers);
        for row in 0..45 {
            let mut out = vec![f32::NAN; inputs];
            sample.layout.row(&sample.data, row, &mut out);
            for (index, out) in out.iter().enumerate() {
                assert_eq!(*out, sample.weights[row * inputs + index] as f32, "{format:?} {row} {index}");
            }
        }
    }
}

#[test]
fn forms_that_no_kernel_takes_are_refused() {
    let affine = |bits, group| Format::Affine { bits, group, scales: Float::F16 };
    for (bits, group) in [(1, 32), (7, 32), (4, 8), (4, 48), (4, 256), (3, 16), (5, 16), (0, 32), (4, 0)] {
        assert_eq!(Layout::new(affine(bits, group), 32, 256), None, "{bits} {group}");
    }
    assert_eq!(Layout::new(affine(4, 32), 32, 48), None);
    assert_eq!(Layout::new(affine(4, 32), 0, 64), None);
    assert_eq!(Layout::new(Format::Dense(Float::F16), 8, 0), None);
    assert_eq!(Layout::new(Format::Dense(Float::F32), usize::MAX / 4, 8), None);
    let layout = Layout::new(affine(4, 32), 33, 64).unwrap();
    assert_eq!((layout.blocks(), layout.block_bytes(), layout.bytes()), (2, 1280, 2560));
}
#[test]
fn several_matrices_bias_and_residual() {
    let mut numbers = Numbers(4);
    let pool = Pool::new(3).unwrap();
    let affine = |bits, group| Format::Affine { bits, group, scales: Float::F16 };
    let inputs = 256;
    let samples = [
        sample(affine(4, 32), 100, inputs, &mut numbers),
        sample(affine(8, 64), 32, inputs, &mut numbers),
        sample(affine(6, 16), 5, inputs, &mut numbers),
        sample(Format::Dense(Float::Bf16), 40, inputs, &mut numbers),
    ];
    let bias = numbers.floats(40);
    let mut matrices: Vec<Matrix> = samples.iter().map(Sample::matrix).collect();
    matrices[3].bias = Some(&bias);
    for rows in [1, 2, 9, 40] {
        let x = numbers.floats(rows * inputs);
        let residual = numbers.floats(rows * 177);
        let mut out = vec![f32::NAN; rows * 177];
        multiply_on(Path::best(), &pool, &x, rows, &matrices, Some(&residual), &mut out).unwrap();
        let mut first = 0;
        for sample in &samples {
            let outputs = sample.layout.outputs();
            let alone = product(Path::best(), &pool, &x, rows, &[sample.matrix()]);
            for row in 0..rows {
                for output in 0..outputs {
                    let index = row * 177 + first + output;
                    let bias = if outputs == 40 { bias[output] } else { 0.0 };
                    let expected = alone[row * outputs + output] + bias + residual[index];
                    assert_eq!(out[index], expected, "{row} {output} of {outputs}");
                }
            }
            first += outputs;
        }
    }
    let none: [Matrix; 0] = [];
    multiply_on(Path::best(), &pool, &[], 0, &none, None, &mut []).unwrap();
    multiply_on(Path::best(), &pool, &[], 0, &matrices, None, &mut []).unwrap();
}

/// One row takes two blocks of such matrices at a time, which must not cross from one matrix to the next.
#[test]
fn several_matrices_of_halves_with_bias_and_residual() {
    let mut numbers = Numbers(10);
    let inputs = 200;
    let samples = [(Float::Bf16, 100), (Float::F16, 33), (Float::Bf16, 5), (Float::Bf16, 64)]
        .map(|(float, outputs)| sample(Format::Dense(float), outputs, inputs, &mut numbers));
    let biases = samples.each_ref().map(|sample| numbers.floats(sample.layout.outputs()));
    let pairs = samples.iter().zip(&biases);
    let matrices: Vec<Matrix> =
        pairs.map(|(sample, bias)| Matrix { bias: Some(bias), ..sample.matrix() }).collect();
    let (x, residual) = (numbers.floats(inputs), numbers.floats(202));
    let alone = Pool::new(1).unwrap();
    let parts = samples.iter().flat_map(|sample| product(Path::best(), &alone, &x, 1, &[sample.matrix()]));
    let expected: Vec<f32> = parts.zip(biases.concat()).zip(&residual).map(|((a, b), c)| a + b + c).collect();
    for path in Path::all() {
        for threads in 1..=4 {
            let mut out = vec![f32::NAN; 202];
            let pool = Pool::new(threads).unwrap();
            multiply_on(path, &pool, &x, 1, &matrices, Some(&residual), &mut out).unwrap();
            assert_eq!(out, expected, "{path:?} {threads}");
        }
    }
}
