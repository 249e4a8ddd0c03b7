//! What a weight file says of a tensor.

use super::blocks::BlockFormat;
use crate::base::{Error, Result};

/// Element types that an MLX array can have and that weight files use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
}

impl ElementType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            ElementType::Bool | ElementType::U8 | ElementType::I8 => 1,
            ElementType::U16 | ElementType::I16 | ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::U32 | ElementType::I32 | ElementType::F32 => 4,
            ElementType::U64 | ElementType::I64 => 8,
        }
    }

    pub const fn is_float(self) -> bool {
        matches!(self, ElementType::F16 | ElementType::Bf16 | ElementType::F32)
    }

    /// Such as `bfloat16`.
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::Bool => "bool",
            ElementType::U8 => "uint8",
            ElementType::I8 => "int8",
            ElementType::U16 => "uint16",
            ElementType::I16 => "int16",
            ElementType::U32 => "uint32",
            ElementType::I32 => "int32",
            ElementType::U64 => "uint64",
            ElementType::I64 => "int64",
            ElementType::F16 => "float16",
            ElementType::Bf16 => "bfloat16",
            ElementType::F32 => "float32",
        }
    }
}

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    Plain(ElementType),
    Block(BlockFormat),
    /// A known format that cannot be used yet, such as `IQ4_XS` or `F8_E4M3`.
    Other(&'static str),
}

impl Encoding {
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::Plain(element) => element.name(),
            Encoding::Block(format) => format.name(),
            Encoding::Other(name) => name,
        }
    }
}

/// In which order the rows (first axis) of a stored matrix stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    Natural,
    /// Llama's q and k in GGUF: within a head the two halves that RoPE pairs are interleaved.
    InterleavedHalves {
        head_dim: usize,
    },
}

impl RowOrder {
    /// The stored row that holds row `row` of the model.
    pub(crate) fn stored_row(self, row: usize) -> usize {
        match self {
            RowOrder::Natural => row,
            RowOrder::InterleavedHalves { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let (half, index) = (within / (head_dim / 2), within % (head_dim / 2));
                head * head_dim + 2 * index + half
            }
        }
    }
}

/// A tensor of a weight file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The name that model families use, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The file's own name where it differs.
    pub(crate) stored_name: Option<String>,
    pub encoding: Encoding,
    /// Outermost axis first; elements, not blocks.
    pub shape: Vec<usize>,
    /// Index in the list of files.
    pub file: usize,
    /// Where its bytes begin in the file.
    pub offset: u64,
    pub bytes: u64,
    pub(crate) rows: RowOrder,
}

impl Tensor {
    /// The file's own name.
    pub fn stored_name(&self) -> &str {
        self.stored_name.as_deref().unwrap_or(&self.name)
    }

    /// Number of elements. Fits, because it was checked when the header was read.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// UNSUPPORTED naming the tensor and its format, unless its elements are plain or in blocks
    /// that can be converted.
    pub(crate) fn check_usable(&self) -> Result<()> {
        match self.encoding {
            Encoding::Plain(_) | Encoding::Block(_) => Ok(()),
            Encoding::Other(name) => Err(Error::unsupported(format!(
                "tensor {} is stored as {name}, which is not supported",
                crate::base::quote::name(self.stored_name())
            ))
            .tensor(self.stored_name())),
        }
    }
}

/// Elements of a shape, if their number fits.
pub(crate) fn checked_elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_halves_come_back_in_order() {
        // Two heads of six rows. The converter of GGUF files stores row (head, half, index) at
        // (head, index, half).
        let order = RowOrder::InterleavedHalves { head_dim: 6 };
        let stored: Vec<usize> = (0..12).map(|row| order.stored_row(row)).collect();
        assert_eq!(stored, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        assert_eq!(RowOrder::Natural.stored_row(7), 7);
    }

    #[test]
    fn products_that_do_not_fit_are_none() {
        assert_eq!(checked_elements(&[]), Some(1));
        assert_eq!(checked_elements(&[3, 0, 5]), Some(0));
        assert_eq!(checked_elements(&[1 << 32, 1 << 32]), None);
    }
}
