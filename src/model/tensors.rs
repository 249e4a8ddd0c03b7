//! The kept tensors of a model that is being built.

use crate::base::{Error, Result};
use crate::mlx::microscaled::Microscaled;
use crate::mlx::ops::{Linear, Weight};
use crate::mlx::{Array, Dtype, prim};
use crate::model::config;
use crate::model::weights::{ElementType, PlannedLinear};

/// How a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// MLX's operations in mlx-lm's order.
    Exact,
    /// MLX's operations in the order that is fastest: float32 products through the BLAS.
    Blas,
    /// Our kernels: float32 activations over packed weights.
    Kernels,
}

/// A kept tensor, or the weight that has been made of several.
pub enum Part {
    Array(Array),
    Weight(Weight),
    /// Part of the weight that stands at another index.
    Merged,
}

/// Kept tensors by their index in the load plan.
pub struct Tensors {
    parts: Vec<Part>,
    arithmetic: Arithmetic,
    /// The type of most floats in the files.
    float: Dtype,
}

impl Tensors {
    pub fn new(parts: Vec<Part>, arithmetic: Arithmetic, float: Dtype) -> Self {
        Tensors { parts, arithmetic, float }
    }

    /// The type of most floats in the files.
    pub fn float(&self) -> Dtype {
        self.float
    }

    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn array(&self, index: usize) -> Result<Array> {
        match self.parts.get(index) {
            Some(Part::Array(array)) => Ok(array.clone()),
            _ => Err(Error::internal("a planned tensor is missing")),
        }
    }

    /// A norm's gain or a bias, in the type that the arithmetic takes.
    pub fn vector(&self, index: usize) -> Result<Array> {
        let array = self.array(index)?;
        if self.arithmetic != Arithmetic::Kernels || array.dtype() == Dtype::Float32 {
            return Ok(array);
        }
        let array = prim::astype(&array, Dtype::Float32)?;
        array.eval()?;
        Ok(array)
    }

    pub fn weight(&self, planned: &PlannedLinear) -> Result<Weight> {
        match self.parts.get(planned.weight()) {
            Some(Part::Weight(weight)) => Ok(weight.clone()),
            // Our kernels' matrices were packed while they were read; others are arrays.
            _ => self.weight_of_arrays(planned),
        }
    }

    pub fn linear(&self, planned: &PlannedLinear, bias: Option<usize>) -> Result<Linear> {
        Linear::new(self.weight(planned)?, bias.map(|bias| self.vector(bias)).transpose()?)
    }

    fn weight_of_arrays(&self, planned: &PlannedLinear) -> Result<Weight> {
        let array = |index: usize| self.array(index);
        match *planned {
            PlannedLinear::Plain { weight } if self.arithmetic == Arithmetic::Blas => {
                Weight::dense_for_speed(array(weight)?)
            }
            PlannedLinear::Plain { weight } => Weight::dense(array(weight)?),
            PlannedLinear::Affine { weight, scales, biases, bits, group } => {
                Weight::affine(array(weight)?, array(scales)?, array(biases)?, group, bits)
            }
            PlannedLinear::Microscaled { weight, scales, mode } => {
                let mode = match mode {
                    config::Microscaled::Mxfp4 => Microscaled::Mxfp4,
                    config::Microscaled::Nvfp4 => Microscaled::Nvfp4,
                    config::Microscaled::Mxfp8 => Microscaled::Mxfp8,
                };
                Weight::microscaled(array(weight)?, array(scales)?, mode)
            }
        }
    }
}

/// The array type of a file's elements.
pub fn dtype_of(element: ElementType) -> Dtype {
    match element {
        ElementType::Bool => Dtype::Bool,
        ElementType::U8 => Dtype::Uint8,
        ElementType::I8 => Dtype::Int8,
        ElementType::U16 => Dtype::Uint16,
        ElementType::I16 => Dtype::Int16,
        ElementType::U32 => Dtype::Uint32,
        ElementType::I32 => Dtype::Int32,
        ElementType::U64 => Dtype::Uint64,
        ElementType::I64 => Dtype::Int64,
        ElementType::F16 => Dtype::Float16,
        ElementType::Bf16 => Dtype::Bfloat16,
        ElementType::F32 => Dtype::Float32,
    }
}
