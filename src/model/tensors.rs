//! The kept tensors of a model that is being built.

use crate::base::{Error, Result};
use crate::mlx::ops::{Linear, Weight};
use crate::mlx::{Array, Dtype};
use crate::model::weights::{ElementType, PlannedLinear};

/// Arrays by their index in the load plan.
pub struct Tensors {
    arrays: Vec<Array>,
    exact: bool,
}

impl Tensors {
    /// `exact`: the model shall compute with MLX's operations in mlx-lm's order.
    pub fn new(arrays: Vec<Array>, exact: bool) -> Self {
        Tensors { arrays, exact }
    }

    pub fn exact(&self) -> bool {
        self.exact
    }

    pub fn array(&self, index: usize) -> Result<Array> {
        self.arrays.get(index).cloned().ok_or_else(|| Error::internal("a planned tensor is missing"))
    }

    pub fn weight(&self, planned: &PlannedLinear) -> Result<Weight> {
        match *planned {
            PlannedLinear::Plain { weight } if self.exact => Weight::dense(self.array(weight)?),
            PlannedLinear::Plain { weight } => Weight::dense_for_speed(self.array(weight)?),
            PlannedLinear::Affine { weight, scales, biases, bits, group } => {
                Weight::affine(self.array(weight)?, self.array(scales)?, self.array(biases)?, group, bits)
            }
        }
    }

    pub fn linear(&self, planned: &PlannedLinear, bias: Option<usize>) -> Result<Linear> {
        Linear::new(self.weight(planned)?, bias.map(|bias| self.array(bias)).transpose()?)
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
