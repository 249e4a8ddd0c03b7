//! Products with a model's weights.

use crate::base::{Error, Result};
use crate::mlx::{Array, prim};

/// A weight matrix `[outputs, inputs]`, as it is kept.
#[derive(Clone, Debug)]
pub enum Weight {
    Dense {
        matrix: Array,
        /// A view of `matrix` with exchanged axes, made once instead of at each product.
        transposed: Array,
    },
    /// Affine groups along the rows: `scale * q + bias` for `group` consecutive inputs, `bits`
    /// bits each, packed into 32-bit words.
    Affine { packed: Array, scales: Array, biases: Array, group: u32, bits: u32 },
}

impl Weight {
    pub fn dense(matrix: Array) -> Result<Self> {
        if matrix.shape().len() != 2 || !matrix.dtype().is_float() {
            return Err(Error::internal(format!("{matrix:?} is no weight matrix")));
        }
        let transposed = prim::transpose(&matrix)?;
        transposed.eval()?;
        Ok(Weight::Dense { matrix, transposed })
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

    /// Rows of the matrix.
    pub fn outputs(&self) -> i32 {
        match self {
            Weight::Dense { matrix, .. } => matrix.dim(0),
            Weight::Affine { packed, .. } => packed.dim(0),
        }
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> i32 {
        match self {
            Weight::Dense { matrix, .. } => matrix.dim(1),
            Weight::Affine { scales, group, .. } => scales.dim(1) * *group as i32,
        }
    }

    pub fn byte_size(&self) -> usize {
        match self {
            Weight::Dense { matrix, .. } => matrix.byte_size(),
            Weight::Affine { packed, scales, biases, .. } => {
                packed.byte_size() + scales.byte_size() + biases.byte_size()
            }
        }
    }
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
        (Weight::Dense { transposed, .. }, None) => prim::matmul(x, transposed),
        (Weight::Dense { transposed, .. }, Some(bias)) => prim::addmm(bias, x, transposed),
        (Weight::Affine { packed, scales, biases, group, bits }, bias) => {
            let product = prim::quantized_matmul(x, packed, scales, biases, true, *group, *bits)?;
            match bias {
                Some(bias) => prim::add(&product, bias),
                None => Ok(product),
            }
        }
    }
}
