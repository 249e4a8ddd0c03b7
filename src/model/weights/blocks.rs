//! GGUF's block formats: to float values, and to MLX's affine triples.
//!
//! A block holds 32 neighbours of a row. In the 4-bit formats byte `j` holds element `j` in its
//! low half and element `j + 16` in its high half; MLX packs neighbours into one byte, the
//! earlier one low. An affine element is `scale * q + bias` with q unsigned.

use half::f16;

use super::cast::encode;
use super::types::{BlockFormat, ElementType};

const ELEMENTS: usize = BlockFormat::ELEMENTS;

/// Blocks as elements of the float type `to`.
pub(crate) fn dequantize(format: BlockFormat, blocks: &[u8], to: ElementType, output: &mut [u8]) {
    let step = ELEMENTS * to.size();
    // A loop of its own for each format and type: the inner loops become straight vector code.
    match (format, to) {
        (BlockFormat::Q4_0, ElementType::F32) => each(blocks, output, |block, out| store(q4_0(block), out)),
        (BlockFormat::Q4_1, ElementType::F32) => each(blocks, output, |block, out| store(q4_1(block), out)),
        (BlockFormat::Q8_0, ElementType::F32) => each(blocks, output, |block, out| store(q8_0(block), out)),
        (BlockFormat::Q4_0, _) => {
            for (block, out) in blocks.as_chunks().0.iter().zip(output.chunks_exact_mut(step)) {
                encode(to, &q4_0(block), out);
            }
        }
        (BlockFormat::Q4_1, _) => {
            for (block, out) in blocks.as_chunks().0.iter().zip(output.chunks_exact_mut(step)) {
                encode(to, &q4_1(block), out);
            }
        }
        (BlockFormat::Q8_0, _) => {
            for (block, out) in blocks.as_chunks().0.iter().zip(output.chunks_exact_mut(step)) {
                encode(to, &q8_0(block), out);
            }
        }
    }
}

fn each<const BLOCK: usize>(
    blocks: &[u8],
    output: &mut [u8],
    convert: impl Fn(&[u8; BLOCK], &mut [u8; 4 * ELEMENTS]),
) {
    for (block, out) in blocks.as_chunks::<BLOCK>().0.iter().zip(output.as_chunks_mut().0) {
        convert(block, out);
    }
}

#[inline]
fn store(values: [f32; ELEMENTS], out: &mut [u8; 4 * ELEMENTS]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut::<4>().0) {
        *out = value.to_le_bytes();
    }
}

#[inline]
fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

/// The 4-bit numbers of 16 bytes in the order of their elements.
#[inline]
fn nibbles(packed: &[u8]) -> [u8; ELEMENTS] {
    let mut numbers = [0; ELEMENTS];
    for (index, byte) in packed.iter().enumerate().take(ELEMENTS / 2) {
        numbers[index] = byte & 0x0f;
        numbers[index + ELEMENTS / 2] = byte >> 4;
    }
    numbers
}

#[inline]
fn q4_0(block: &[u8; 18]) -> [f32; ELEMENTS] {
    let scale = half_at(block, 0);
    nibbles(&block[2..]).map(|number| scale * f32::from(number as i8 - 8))
}

#[inline]
fn q4_1(block: &[u8; 20]) -> [f32; ELEMENTS] {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    nibbles(&block[4..]).map(|number| scale * f32::from(number) + minimum)
}

#[inline]
fn q8_0(block: &[u8; 34]) -> [f32; ELEMENTS] {
    let scale = half_at(block, 0);
    let mut values = [0.0; ELEMENTS];
    for (value, number) in values.iter_mut().zip(&block[2..]) {
        *value = scale * f32::from(*number as i8);
    }
    values
}

/// Blocks as affine triples, element for element as MLX's own GGUF reader makes them: packed
/// numbers (as bytes of little-endian u32), scales and biases. MLX gives scales and biases in
/// float16; they are converted from there to `float`.
pub(crate) fn repack(
    format: BlockFormat,
    blocks: &[u8],
    float: ElementType,
    [packed, scales, biases]: [&mut [u8]; 3],
) {
    let packed_step = ELEMENTS * format.bits() as usize / 8;
    let targets = packed
        .chunks_exact_mut(packed_step)
        .zip(scales.chunks_exact_mut(float.size()).zip(biases.chunks_exact_mut(float.size())));
    for (block, (packed, (scale_out, bias_out))) in blocks.chunks_exact(format.bytes()).zip(targets) {
        let scale = f16::from_le_bytes([block[0], block[1]]);
        let bias = match format {
            BlockFormat::Q4_0 => {
                pack_nibbles(&block[2..], packed);
                f16::from_f32(-8.0 * scale.to_f32())
            }
            BlockFormat::Q4_1 => {
                pack_nibbles(&block[4..], packed);
                f16::from_le_bytes([block[2], block[3]])
            }
            BlockFormat::Q8_0 => {
                for (packed, number) in packed.iter_mut().zip(&block[2..]) {
                    // Two's complement plus 128.
                    *packed = number ^ 0x80;
                }
                f16::from_f32(-128.0 * scale.to_f32())
            }
        };
        put_half(scale, float, scale_out);
        put_half(bias, float, bias_out);
    }
}

#[inline]
fn pack_nibbles(numbers: &[u8], packed: &mut [u8]) {
    let (low, high) = packed.split_at_mut(ELEMENTS / 4);
    let pairs = numbers.as_chunks::<2>().0;
    for (([first, second], low), high) in pairs.iter().zip(low).zip(high) {
        *low = (first & 0x0f) | (second << 4);
        *high = (first >> 4) | (second & 0xf0);
    }
}

#[inline]
fn put_half(value: f16, to: ElementType, out: &mut [u8]) {
    match to {
        // The bits, whatever they say: no conversion in between.
        ElementType::F16 => out.copy_from_slice(&value.to_le_bytes()),
        _ => encode(to, &[value.to_f32()], out),
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
