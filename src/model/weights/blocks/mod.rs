//! GGUF's block formats: to float values, and to affine triples.
//!
//! A block holds neighbours of a row, and is decoded in the order of its elements. An affine element is
//! `scale * q + bias` with q unsigned.

mod format;
mod numbers;
mod super_blocks;
mod thirty_two;

pub use format::BlockFormat;

use super::types::ElementType;

/// Blocks as elements of the float type `to`: as float32 bit for bit what the `gguf` package's
/// `dequantize` makes of them, and rounded from there.
pub(crate) fn dequantize(format: BlockFormat, blocks: &[u8], to: ElementType, output: &mut [u8]) {
    match format {
        BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q8_0 => {
            thirty_two::dequantize(format, blocks, to, output)
        }
        BlockFormat::Q2K | BlockFormat::Q3K | BlockFormat::Q4K | BlockFormat::Q5K | BlockFormat::Q6K => {
            super_blocks::dequantize(format, blocks, to, output);
        }
    }
}

/// Blocks as affine triples: packed numbers (as bytes of little-endian u32), scales and biases, both in
/// the type `float`. In the format's own [`BlockFormat::parameters`] they are exact.
pub(crate) fn repack(format: BlockFormat, blocks: &[u8], float: ElementType, outputs: [&mut [u8]; 3]) {
    match format {
        BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q8_0 => {
            thirty_two::repack(format, blocks, float, outputs)
        }
        BlockFormat::Q2K | BlockFormat::Q3K | BlockFormat::Q4K | BlockFormat::Q5K | BlockFormat::Q6K => {
            super_blocks::repack(format, blocks, float, outputs);
        }
    }
}

#[cfg(test)]
mod tests;
