//! Conversions of weights, as functions from byte streams to byte streams.

use super::types::{BlockFormat, ElementType};
use super::{affine, blocks, cast};
use crate::model::config::Affine;

/// A conversion. It works on groups of `elements` neighbours; a group takes a fixed number of
/// bytes of each stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kernel {
    /// Bytes as they are.
    Copy { size: usize },
    /// One float type to another.
    Cast { from: ElementType, to: ElementType },
    /// GGUF blocks to floats.
    Blocks { format: BlockFormat, to: ElementType },
    /// GGUF blocks to packed numbers, scales and biases.
    Repack { format: BlockFormat, float: ElementType },
    /// Packed numbers, scales and biases to floats.
    Affine { affine: Affine, scales: ElementType, to: ElementType },
}

/// Bytes of a group in each stream; 0 where there is no such stream.
pub(crate) type StreamBytes = [usize; 3];

impl Kernel {
    /// Elements of a group.
    pub(crate) fn elements(self) -> usize {
        match self {
            Kernel::Copy { .. } | Kernel::Cast { .. } => 1,
            Kernel::Blocks { .. } | Kernel::Repack { .. } => BlockFormat::ELEMENTS,
            Kernel::Affine { affine, .. } => affine.group as usize,
        }
    }

    pub(crate) fn input_bytes(self) -> StreamBytes {
        match self {
            Kernel::Copy { size } => [size, 0, 0],
            Kernel::Cast { from, .. } => [from.size(), 0, 0],
            Kernel::Blocks { format, .. } | Kernel::Repack { format, .. } => [format.bytes(), 0, 0],
            Kernel::Affine { affine, scales, .. } => {
                [(affine.bits * affine.group / 8) as usize, scales.size(), scales.size()]
            }
        }
    }

    pub(crate) fn output_bytes(self) -> StreamBytes {
        match self {
            Kernel::Copy { size } => [size, 0, 0],
            Kernel::Cast { to, .. } => [to.size(), 0, 0],
            Kernel::Blocks { to, .. } => [BlockFormat::ELEMENTS * to.size(), 0, 0],
            Kernel::Repack { format, float } => {
                [BlockFormat::ELEMENTS * format.bits() as usize / 8, float.size(), float.size()]
            }
            Kernel::Affine { affine, to, .. } => [affine.group as usize * to.size(), 0, 0],
        }
    }

    /// Converts whole groups. The streams hold equally many.
    pub(crate) fn run(self, inputs: [&[u8]; 3], [first, second, third]: [&mut [u8]; 3]) {
        match self {
            Kernel::Copy { .. } => first.copy_from_slice(inputs[0]),
            Kernel::Cast { from, to } => cast::cast(from, inputs[0], to, first),
            Kernel::Blocks { format, to } => blocks::dequantize(format, inputs[0], to, first),
            Kernel::Repack { format, float } => {
                blocks::repack(format, inputs[0], float, [first, second, third]);
            }
            Kernel::Affine { affine, scales, to } => affine::dequantize(affine, inputs, scales, to, first),
        }
    }
}
