use half::{bf16, f16};

use super::{Float, Format, Layout, Matrix};
use super::{multiply_chosen, multiply_gated_chosen, multiply_gated_on, multiply_on};
use crate::mlx::kernels::activation::Activation;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::pool::Pool;

const FLOATS: [Float; 3] = [Float::F32, Float::F16, Float::Bf16];

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed >> 32) as u32
    }
    /// From -1 to 1.
    fn float(&mut self) -> f32 {
        self.word() as f32 / 2.0_f32.powi(31) - 1.0
    }
    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

fn encode(float: Float, values: &[f32]) -> Vec<u8> {
    let bytes = |value: &f32| match float {
        Float::F32 => value.to_le_bytes().to_vec(),
        Float::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        Float::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn decode(float: Float, bytes: &[u8]) -> Vec<f64> {
    let value = |bytes: &[u8]| match float {
        Float::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
        Float::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).into(),
        Float::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).into(),
    };
    bytes.chunks_exact(float.size()).map(value).collect()
}

/// A matrix of random weights, packed, and what the weights are.
struct Sample {
    layout: Layout,
    /// Of exactly the packed size, so that AddressSanitizer sees a read behind its end.
    data: Box<[u8]>,
    /// `[outputs][inputs]`
    weights: Vec<f64>,
    /// What bounds the rounding: |scale| · number + |bias|, or |weight|.
    sizes: Vec<f64>,
}

fn sample(format: Format, outputs: usize, inputs: usize, numbers: &mut Numbers) -> Sample {
    let layout = Layout::new(format, outputs, inputs).unwrap();
    let mut data = vec![0xff; layout.bytes()].into_boxed_slice();
    let (mut weights, mut sizes) = (Vec::new(), Vec::new());
    match format {
        Format::Dense(float) => {
            let elements = encode(float, &numbers.floats(outputs * inputs));
            for (block, dest) in data.chunks_exact_mut(layout.block_bytes()).enumerate() {
                let rows = 32.min(outputs - block * 32);
                let size = inputs * float.size();
                layout.pack_dense_block(dest, rows, &elements[block * 32 * size..][..rows * size]);
            }
            weights = decode(float, &elements);
            sizes = weights.iter().map(|weight| weight.abs()).collect();
        }
        Format::Affine { bits, group, scales: float } => {
            let (bits, group) = (bits as usize, group as usize);
            let words: Vec<u32> = (0..outputs * inputs * bits / 32).map(|_| numbers.word()).collect();
            let scales = encode(float, &numbers.floats(outputs * inputs / group));
            let biases = encode(float, &numbers.floats(outputs * inputs / group));
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            for (block, dest) in data.chunks_exact_mut(layout.block_bytes()).enumerate() {
                let rows = 32.min(outputs - block * 32);
                let (words, factors) = (inputs * bits / 8, inputs / group * float.size());
                layout.pack_affine_block(
                    dest,
                    rows,
                    &bytes[block * 32 * words..][..rows * words],
                    &scales[block * 32 * factors..][..rows * factors],
                    &biases[block * 32 * factors..][..rows * factors],
                );
            }
            let (scales, biases) = (decode(float, &scales), decode(float, &biases));
            for index in 0..outputs * inputs {
                let (row, bit) = (index / inputs, index % inputs * bits);
                let number: u32 = (0..bits)
                    .map(|i| {
                        let place = row * inputs * bits + bit + i;
                        (words[place / 32] >> (place % 32) & 1) << i
                    })
                    .sum();
                let number = f64::from(number);
                let (scale, bias) = (scales[index / group], biases[index / group]);
                weights.push(scale * number + bias);
                sizes.push(scale.abs() * number + bias.abs());
            }
        }
    }
    Sample { layout, data, weights, sizes }
}

impl Sample {
    fn matrix(&self) -> Matrix<'_> {
        Matrix { layout: &self.layout, data: &self.data, bias: None }
    }

    /// The product with one row in float64, and a bound of the kernels' error: each of the products is
    /// rounded by the fused operations that it goes through, at most a group's (or all) and two for
    /// every group, and a sum of activations by those of its group.
    fn exact(&self, x: &[f32], output: usize) -> (f64, f64) {
        let inputs = self.layout.inputs();
        let (mut value, mut size) = (0.0, 0.0);
        for (index, &x) in x.iter().enumerate() {
            value += self.weights[output * inputs + index] * f64::from(x);
            size += self.sizes[output * inputs + index] * f64::from(x).abs();
        }
        let roundings = match self.layout.format() {
            Format::Affine { group, .. } => group as usize + 2 * inputs / group as usize,
            Format::Dense(_) => inputs,
        };
        (value, size * (roundings + 4) as f64 * 2.0_f64.powi(-24) + 1e-40)
    }
}

/// Every form that the kernels take.
fn formats() -> Vec<Format> {
    let mut formats: Vec<Format> = FLOATS.map(Format::Dense).to_vec();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [16, 32, 64, 128] {
            for scales in FLOATS {
                let format = Format::Affine { bits, group, scales };
                if Layout::new(format, 1, 128).is_some() {
                    formats.push(format);
                }
            }
        }
    }
    assert_eq!(formats.len(), 3 + 3 * (6 * 3 + 4));
    formats
}

/// Inputs of a matrix of three or four groups; odd for dense ones.
fn some_inputs(format: Format, at_least: usize) -> usize {
    match format {
        Format::Affine { group, .. } => (at_least + 1).next_multiple_of(group as usize),
        Format::Dense(_) => at_least + 13,
    }
}

fn product(path: Path, pool: &Pool, x: &[f32], rows: usize, matrices: &[Matrix]) -> Vec<f32> {
    let width: usize = matrices.iter().map(|matrix| matrix.layout.outputs()).sum();
    let mut out = vec![f32::NAN; rows * width];
    multiply_on(path, pool, x, rows, matrices, None, &mut out).unwrap();
    out
}

fn assert_same_bits(a: &[f32], b: &[f32], what: impl Fn() -> String) {
    assert_eq!(a.len(), b.len());
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{index}: {a} {b} {}", what());
    }
}

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
fn a_row_does_not_depend_on_the_others_nor_on_threads() {
    let mut numbers = Numbers(2);
    let pools: Vec<Pool> = (1..=4).map(|threads| Pool::new(threads).unwrap()).collect();
    for (number, format) in formats().into_iter().enumerate() {
        let (outputs, inputs) = (75, some_inputs(format, 150));
        let sample = sample(format, outputs, inputs, &mut numbers);
        let x = numbers.floats(100 * inputs);
        for path in Path::all() {
            if path == Path::Portable && Path::best() != path {
                continue;
            }
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

#[test]
fn gated_products_are_those_of_their_parts() {
    use crate::mlx::kernels::simd::Portable;
    let mut numbers = Numbers(5);
    let pool = Pool::new(2).unwrap();
    let (outputs, inputs) = (90, 128);
    let format = Format::Affine { bits: 4, group: 32, scales: Float::F16 };
    let mut gate = sample(format, outputs, inputs, &mut numbers);
    // Half of the gate's and all of the up matrix's form differ.
    let up = sample(Format::Dense(Float::F32), outputs, inputs, &mut numbers);
    for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu2] {
        for rows in [1, 4, 6, 50, 130] {
            let x: Vec<f32> = numbers.floats(rows * inputs).iter().map(|x| x / 64.0).collect();
            let gates = product(Path::best(), &pool, &x, rows, &[gate.matrix()]);
            let ups = product(Path::best(), &pool, &x, rows, &[up.matrix()]);
            let expected: Vec<f32> = gates
                .iter()
                .zip(&ups)
                .map(|(&gate, up)| activation.apply(Portable::<1>, [gate])[0] * up)
                .collect();
            for path in Path::all() {
                let mut out = vec![f32::NAN; rows * outputs];
                let (gate, up) = (gate.matrix(), up.matrix());
                multiply_gated_on(path, &pool, &x, rows, &gate, &up, activation, &mut out).unwrap();
                assert_same_bits(&out, &expected, || format!("{activation:?} {path:?} {rows}"));
            }
        }
        gate =
            sample(Format::Affine { bits: 8, group: 64, scales: Float::Bf16 }, outputs, inputs, &mut numbers);
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
