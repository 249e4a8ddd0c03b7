//! Conversions of weights, as functions from byte streams to byte streams.

use super::blocks::BlockFormat;
use super::types::ElementType;
use super::{affine, blocks, cast, microscaled};
use crate::model::config::{Affine, Microscaled};

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
    /// Small floats and their scales to floats.
    Microscaled { mode: Microscaled, to: ElementType },
    /// Small floats and their scales to packed numbers, scales and biases with these parameters.
    RepackMicroscaled { mode: Microscaled, affine: Affine },
}

/// Bytes of a group in each stream; 0 where there is no such stream.
pub(crate) type StreamBytes = [usize; 3];

impl Kernel {
    /// Elements of a group.
    pub(crate) fn elements(self) -> usize {
        match self {
            Kernel::Copy { .. } | Kernel::Cast { .. } => 1,
            Kernel::Blocks { format, .. } | Kernel::Repack { format, .. } => format.elements(),
            Kernel::Affine { affine, .. } => affine.group as usize,
            Kernel::Microscaled { mode, .. } | Kernel::RepackMicroscaled { mode, .. } => {
                mode.group() as usize
            }
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
            Kernel::Microscaled { mode, .. } | Kernel::RepackMicroscaled { mode, .. } => {
                [(mode.bits() * mode.group() / 8) as usize, 1, 0]
            }
        }
    }

    pub(crate) fn output_bytes(self) -> StreamBytes {
        match self {
            Kernel::Copy { size } => [size, 0, 0],
            Kernel::Cast { to, .. } => [to.size(), 0, 0],
            Kernel::Blocks { format, to } => [format.elements() * to.size(), 0, 0],
            Kernel::Repack { format, float } => {
                let Affine { bits, group } = format.affine();
                let groups = format.elements() / group as usize;
                [format.elements() * bits as usize / 8, groups * float.size(), groups * float.size()]
            }
            Kernel::Affine { affine, to, .. } => [affine.group as usize * to.size(), 0, 0],
            Kernel::Microscaled { mode, to } => [mode.group() as usize * to.size(), 0, 0],
            Kernel::RepackMicroscaled { affine: Affine { bits, group }, .. } => {
                let size = microscaled::PARAMETERS.size();
                [(bits * group / 8) as usize, size, size]
            }
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
            Kernel::Microscaled { mode, to } => {
                microscaled::dequantize(mode, [inputs[0], inputs[1]], to, first)
            }
            Kernel::RepackMicroscaled { mode, .. } => {
                microscaled::repack(mode, [inputs[0], inputs[1]], [first, second, third]);
            }
        }
    }
}
