//! Samples and comparisons for the tests.

mod exact;
mod invariance;
mod packing;

use half::{bf16, f16};

use super::product::multiply_on;
use super::{Format, Layout, Matrix};
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::float::Float;
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
