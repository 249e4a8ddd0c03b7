//! Products with a model's weights.

use super::packed::PackedWeight;
use crate::base::{Error, Result};
#[cfg(test)]
use crate::mlx::kernels;
#[cfg(test)]
use crate::mlx::kernels::arena::Arena;
use crate::mlx::microscaled::{self, Microscaled};
use crate::mlx::{Array, Dtype, direct_product_limit, prim};

/// A weight matrix `[outputs, inputs]`, as it is kept.
#[derive(Clone, Debug)]
pub enum Weight {
    Dense {
        matrix: Array,
        /// A view of `matrix` with exchanged axes, made once instead of at each product.
        transposed: Array,
        /// Views of blocks of rows `[blocks, inputs, outputs / blocks]` for products with a single
        /// vector, where the BLAS is faster with small matrices.
        blocks: Option<Array>,
    },
    /// Affine groups along the rows: `scale * q + bias` for `group` consecutive inputs, `bits`
    /// bits each, packed into 32-bit words.
    Affine { packed: Array, scales: Array, biases: Array, group: u32, bits: u32 },
    /// Small floats, packed into 32-bit words; uint8 scales of groups along the rows.
    Microscaled { packed: Array, scales: Array, mode: Microscaled },
    /// In the order of our kernels, for results that need not be MLX's to the bit.
    Packed(PackedWeight),
}

impl Weight {
    pub fn dense(matrix: Array) -> Result<Self> {
        if matrix.shape().len() != 2 || !matrix.dtype().is_float() {
            return Err(Error::internal(format!("{matrix:?} is no weight matrix")));
        }
        let transposed = prim::transpose(&matrix)?;
        transposed.eval()?;
        Ok(Weight::Dense { matrix, transposed, blocks: None })
    }

    /// As `dense`, for results that need not be MLX's to the bit.
    pub fn dense_for_speed(matrix: Array) -> Result<Self> {
        let (outputs, inputs) = (matrix.dim(0) as usize, matrix.dim(1) as usize);
        let mut weight = Self::dense(matrix)?;
        if let Weight::Dense { matrix, blocks, .. } = &mut weight
            && matrix.dtype() == Dtype::Float32
            && let Some(limit) = direct_product_limit()
            && let Some(rows) = block_rows(outputs, inputs, limit)
        {
            let shape = [(outputs / rows) as i32, rows as i32, inputs as i32];
            let views = prim::transpose_axes(&prim::reshape(matrix, &shape)?, &[0, 2, 1])?;
            views.eval()?;
            *blocks = Some(views);
        }
        Ok(weight)
    }

    /// The same weight in the order of our kernels; as it is where there is no kernel for it.
    #[cfg(test)]
    pub fn pack(self, arena: &mut Arena) -> Result<Self> {
        let packed = match &self {
            _ if !kernels::AVAILABLE => None,
            Weight::Dense { matrix, .. } => PackedWeight::dense(arena, matrix)?,
            Weight::Affine { packed, scales, biases, group, bits } => {
                PackedWeight::affine(arena, packed, scales, biases, *group, *bits)?
            }
            // Those that have a kernel became another form when they were read.
            Weight::Microscaled { .. } | Weight::Packed(_) => None,
        };
        Ok(packed.map_or(self, Weight::Packed))
    }

    pub fn affine(packed: Array, scales: Array, biases: Array, group: u32, bits: u32) -> Result<Self> {
        let fits = match (packed.shape(), scales.shape(), biases.shape()) {
            ([rows, words], [scale_rows, groups], bias_shape) => {
                rows == scale_rows
                    && bias_shape == [*scale_rows, *groups]
                    && i64::from(*words) * 32 == i64::from(*groups) * i64::from(group) * i64::from(bits)
            }
            _ => false,
        };
        if !fits {
            return Err(Error::internal(format!(
                "{packed:?}, {scales:?} and {biases:?} are no weight of {bits} bits in groups of {group}"
            )));
        }
        Ok(Weight::Affine { packed, scales, biases, group, bits })
    }

    pub fn microscaled(packed: Array, scales: Array, mode: Microscaled) -> Result<Self> {
        let fits = match (packed.shape(), scales.shape()) {
            ([rows, words], [scale_rows, groups]) => {
                rows == scale_rows
                    && i64::from(*words) * 32
                        == i64::from(*groups) * i64::from(mode.group()) * i64::from(mode.bits())
            }
            _ => false,
        };
        if !fits || packed.dtype() != Dtype::Uint32 || scales.dtype() != Dtype::Uint8 {
            return Err(Error::internal(format!("{packed:?} and {scales:?} are no weight of {mode:?}")));
        }
        Ok(Weight::Microscaled { packed, scales, mode })
    }

    /// Rows of the matrix.
    pub fn outputs(&self) -> i32 {
        match self {
            Weight::Dense { matrix, .. } => matrix.dim(0),
            Weight::Affine { packed, .. } | Weight::Microscaled { packed, .. } => packed.dim(0),
            Weight::Packed(packed) => packed.outputs() as i32,
        }
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> i32 {
        match self {
            Weight::Dense { matrix, .. } => matrix.dim(1),
            Weight::Affine { scales, group, .. } => scales.dim(1) * *group as i32,
            Weight::Microscaled { scales, mode, .. } => scales.dim(1) * mode.group() as i32,
            Weight::Packed(packed) => packed.inputs() as i32,
        }
    }

    pub fn byte_size(&self) -> usize {
        match self {
            Weight::Dense { matrix, .. } => matrix.byte_size(),
            Weight::Affine { packed, scales, biases, .. } => {
                packed.byte_size() + scales.byte_size() + biases.byte_size()
            }
            Weight::Microscaled { packed, scales, .. } => packed.byte_size() + scales.byte_size(),
            Weight::Packed(packed) => packed.byte_size(),
        }
    }
}

/// Rows of the largest equal blocks whose products with a vector stay within `limit`
/// multiplications; `None` if one block does, or if the blocks would be too many.
fn block_rows(outputs: usize, inputs: usize, limit: usize) -> Option<usize> {
    const FEWEST: usize = 32;
    if outputs * inputs <= limit {
        return None;
    }
    let most = limit / inputs.max(1);
    (FEWEST..=most).rev().find(|rows| outputs.is_multiple_of(*rows))
}

/// A weight with the vector that is added to its products, if there is one.
#[derive(Clone, Debug)]
pub struct Linear {
    pub weight: Weight,
    pub bias: Option<Array>,
}

impl Linear {
    pub fn new(weight: Weight, bias: Option<Array>) -> Result<Self> {
        if bias.as_ref().is_some_and(|bias| bias.shape() != [weight.outputs()]) {
            return Err(Error::internal("a bias does not fit its weight"));
        }
        Ok(Linear { weight, bias })
    }

    pub fn apply(&self, x: &Array) -> Result<Array> {
        linear(x, &self.weight, self.bias.as_ref())
    }

    /// Multiplications of one row's product.
    pub fn work(&self) -> f64 {
        f64::from(self.weight.outputs()) * f64::from(self.weight.inputs())
    }
}

/// `x @ weight.T + bias`
pub fn linear(x: &Array, weight: &Weight, bias: Option<&Array>) -> Result<Array> {
    match (weight, bias) {
        (Weight::Dense { blocks: Some(blocks), .. }, bias) if x.size() == blocks.dim(1) as usize => {
            let vector = prim::reshape(x, &[1, 1, -1])?;
            let product = prim::reshape(&prim::matmul(&vector, blocks)?, &[1, 1, -1])?;
            match bias {
                Some(bias) => prim::add(&product, bias),
                None => Ok(product),
            }
        }
        (Weight::Dense { transposed, .. }, None) => prim::matmul(x, transposed),
        (Weight::Dense { transposed, .. }, Some(bias)) => prim::addmm(bias, x, transposed),
        (Weight::Affine { packed, scales, biases, group, bits }, bias) => {
            let product = prim::quantized_matmul(x, packed, scales, biases, true, *group, *bits)?;
            match bias {
                Some(bias) => prim::add(&product, bias),
                None => Ok(product),
            }
        }
        (Weight::Microscaled { packed, scales, mode }, bias) => {
            let product = microscaled::matmul(x, packed, scales, *mode)?;
            match bias {
                Some(bias) => prim::add(&product, bias),
                None => Ok(product),
            }
        }
        (Weight::Packed(packed), bias) => super::fused::product(x, packed, bias),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_equal_and_within_the_limit() {
        assert_eq!(block_rows(576, 576, 1 << 19), None);
        assert_eq!(block_rows(1536, 576, 1 << 19), Some(768));
        assert_eq!(block_rows(49152, 576, 1 << 19), Some(768));
        assert_eq!(block_rows(576, 1536, 1 << 19), Some(288));
        // A prime number of rows, and rows that are too long.
        assert_eq!(block_rows(50021, 576, 1 << 19), None);
        assert_eq!(block_rows(4096, 1 << 17, 1 << 19), None);
    }

    #[test]
    fn products_by_blocks_are_those_of_the_whole() {
        let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
        let matrix = Array::from_slice(&values, &[6, 2]).unwrap();
        let whole = Weight::dense(matrix.clone()).unwrap();
        let views = prim::transpose_axes(&prim::reshape(&matrix, &[3, 2, 2]).unwrap(), &[0, 2, 1]).unwrap();
        let transposed = prim::transpose(&matrix).unwrap();
        let split = Weight::Dense { matrix, transposed, blocks: Some(views) };
        let bias = Array::from_slice(&[0.5f32; 6], &[6]).unwrap();
        for bias in [None, Some(&bias)] {
            for rows in [1, 3] {
                let x = Array::from_slice(&vec![2.0f32; rows * 2], &[1, rows as i32, 2]).unwrap();
                let (a, b) = (linear(&x, &whole, bias).unwrap(), linear(&x, &split, bias).unwrap());
                assert_eq!(a.shape(), b.shape());
                assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
            }
        }
    }
}
