//! Blocks of 32 elements with one scale.
//!
//! In the 4-bit formats byte `j` holds element `j` in its low half and element `j + 16` in its high half; MLX
//! packs neighbours into one byte, the earlier one low. The fifth bits of the 5-bit formats stand together
//! in a word, that of element `j` at bit `j`.

use half::f16;

use super::BlockFormat;
use super::numbers::{pack, squeeze};
use crate::model::weights::cast::{cast, decode, encode};
use crate::model::weights::types::ElementType;

const ELEMENTS: usize = 32;

/// Blocks as elements of the float type `to`.
pub(super) fn dequantize(format: BlockFormat, blocks: &[u8], to: ElementType, output: &mut [u8]) {
    match format {
        BlockFormat::Q4_0 => convert(q4_0, blocks, to, output),
        BlockFormat::Q4_1 => convert(q4_1, blocks, to, output),
        BlockFormat::Q5_0 => convert(q5_0, blocks, to, output),
        BlockFormat::Q5_1 => convert(q5_1, blocks, to, output),
        BlockFormat::Q8_0 => convert(q8_0, blocks, to, output),
        other => debug_assert!(false, "{} has other blocks", other.name()),
    }
}

/// `values` of each block. Inlined for each format, so that the inner loops become straight vector code.
#[inline]
fn convert<const BLOCK: usize>(
    values: impl Fn(&[u8; BLOCK]) -> [f32; ELEMENTS],
    blocks: &[u8],
    to: ElementType,
    output: &mut [u8],
) {
    if to == ElementType::F32 {
        each(blocks, output, |block, out| store(values(block), out));
        return;
    }
    let step = ELEMENTS * to.size();
    for (block, out) in blocks.as_chunks().0.iter().zip(output.chunks_exact_mut(step)) {
        encode(to, &values(block), out);
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

/// The 5-bit numbers of a word of fifth bits and 16 bytes.
#[inline]
fn fives(fifths: &[u8], packed: &[u8]) -> [u8; ELEMENTS] {
    let mut numbers = nibbles(packed);
    for (index, number) in numbers.iter_mut().enumerate() {
        *number |= (fifths[index / 8] >> (index % 8) & 1) << 4;
    }
    numbers
}

#[inline]
fn q5_0(block: &[u8; 22]) -> [f32; ELEMENTS] {
    let scale = half_at(block, 0);
    fives(&block[2..6], &block[6..]).map(|number| scale * f32::from(number as i8 - 16))
}

#[inline]
fn q5_1(block: &[u8; 24]) -> [f32; ELEMENTS] {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    fives(&block[4..8], &block[8..]).map(|number| scale * f32::from(number) + minimum)
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

/// Blocks whose scales are converted at once.
const BATCH: usize = 256;

/// Blocks as affine triples, element for element as MLX's own GGUF reader makes those that it knows. MLX gives
/// scales and biases in float16; they are converted from there to `float`.
pub(super) fn repack(
    format: BlockFormat,
    blocks: &[u8],
    float: ElementType,
    [packed, scales, biases]: [&mut [u8]; 3],
) {
    let packed_step = ELEMENTS * format.affine().bits as usize / 8;
    let targets = packed
        .chunks_mut(BATCH * packed_step)
        .zip(scales.chunks_mut(BATCH * float.size()).zip(biases.chunks_mut(BATCH * float.size())));
    for (blocks, (packed, (scales, biases))) in blocks.chunks(BATCH * format.bytes()).zip(targets) {
        let mut parameters = Parameters::default();
        match format {
            BlockFormat::Q4_0 => {
                for (index, (block, packed)) in batch::<18, 16>(blocks, packed) {
                    let [low, high, numbers @ ..] = block;
                    parameters.scales[index] = [*low, *high];
                    *packed = pack_nibbles(numbers);
                }
                parameters.scaled_biases(-8.0);
            }
            BlockFormat::Q4_1 => {
                for (index, (block, packed)) in batch::<20, 16>(blocks, packed) {
                    let [scale_low, scale_high, bias_low, bias_high, numbers @ ..] = block;
                    parameters.scales[index] = [*scale_low, *scale_high];
                    parameters.biases[index] = [*bias_low, *bias_high];
                    *packed = pack_nibbles(numbers);
                }
            }
            BlockFormat::Q5_0 => {
                for (index, (block, packed)) in batch::<22, 20>(blocks, packed) {
                    parameters.scales[index] = [block[0], block[1]];
                    pack::<5>(&fives(&block[2..6], &block[6..]), packed);
                }
                parameters.scaled_biases(-16.0);
            }
            BlockFormat::Q5_1 => {
                for (index, (block, packed)) in batch::<24, 20>(blocks, packed) {
                    parameters.scales[index] = [block[0], block[1]];
                    parameters.biases[index] = [block[2], block[3]];
                    pack::<5>(&fives(&block[4..8], &block[8..]), packed);
                }
            }
            BlockFormat::Q8_0 => {
                for (index, (block, packed)) in batch::<34, 32>(blocks, packed) {
                    let [low, high, numbers @ ..] = block;
                    parameters.scales[index] = [*low, *high];
                    // Two's complement plus 128.
                    *packed = numbers.map(|number| number ^ 0x80);
                }
                parameters.scaled_biases(-128.0);
            }
            other => debug_assert!(false, "{} has other blocks", other.name()),
        }
        let count = blocks.len() / format.bytes();
        put_halves(&parameters.scales[..count], float, scales);
        put_halves(&parameters.biases[..count], float, biases);
    }
}

/// Scales and biases of a batch: float16, as bytes.
struct Parameters {
    scales: [[u8; 2]; BATCH],
    biases: [[u8; 2]; BATCH],
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { scales: [[0; 2]; BATCH], biases: [[0; 2]; BATCH] }
    }
}

impl Parameters {
    /// `bias = factor * scale`, rounded to float16 once.
    fn scaled_biases(&mut self, factor: f32) {
        let mut values = [0f32; BATCH];
        decode(ElementType::F16, self.scales.as_flattened(), &mut values);
        for value in &mut values {
            *value *= factor;
        }
        encode(ElementType::F16, &values, self.biases.as_flattened_mut());
    }
}

/// Blocks with their packed numbers, counted.
fn batch<'a, const BLOCK: usize, const PACKED: usize>(
    blocks: &'a [u8],
    packed: &'a mut [u8],
) -> impl Iterator<Item = (usize, (&'a [u8; BLOCK], &'a mut [u8; PACKED]))> {
    blocks.as_chunks().0.iter().zip(packed.as_chunks_mut().0).enumerate()
}

/// Brings the numbers of 16 bytes from GGUF's order into MLX's.
#[inline]
fn pack_nibbles(numbers: &[u8; 16]) -> [u8; 16] {
    let numbers = u128::from_le_bytes(*numbers);
    let half = |numbers: u128| squeeze::<4>(numbers as u64) | squeeze::<4>((numbers >> 64) as u64) << 32;
    (u128::from(half(numbers)) | u128::from(half(numbers >> 4)) << 64).to_le_bytes()
}

fn put_halves(halves: &[[u8; 2]], to: ElementType, out: &mut [u8]) {
    match to {
        // The bits, whatever they say: no conversion in between.
        ElementType::F16 => out.copy_from_slice(halves.as_flattened()),
        _ => cast(ElementType::F16, halves.as_flattened(), to, out),
    }
}
