//! MLX's modes with small floats and 8-bit scales: to float values, and to affine triples.
//!
//! Twice an E2M1 element is a whole number from -12 to 12. So a group of them is exactly an affine one: q is that
//! number plus 12, the scale half of the group's, the bias -12 times that; all have few digits and fit a
//! bfloat16. (With an E8M0 scale above 2^124 products and bias would not, but then not all elements are finite.)
//! E4M3 elements are no whole numbers of few bits, but times an E8M0 scale they fit a bfloat16.

use super::cast::encode;
use super::types::ElementType;
use crate::model::config::{Affine, Microscaled};

/// The largest group.
const GROUP_LIMIT: usize = 32;
/// Twice the E2M1 elements of either sign, by their bits; and 12 more.
const TWICE: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
/// What is added to twice an element.
const ZERO: f32 = 12.0;

/// The type of scales and biases of the affine triple, and of values that are no affine ones.
pub(crate) const PARAMETERS: ElementType = ElementType::Bf16;

/// The affine form that says the same, if there is one: of groups of 16 the kernels take those that fill whole words.
pub(crate) fn affine_form(mode: Microscaled) -> Option<Affine> {
    match mode {
        Microscaled::Mxfp4 => Some(Affine { bits: 5, group: 32 }),
        Microscaled::Nvfp4 => Some(Affine { bits: 6, group: 16 }),
        Microscaled::Mxfp8 => None,
    }
}

/// Groups as elements of the float type `to`, as MLX makes them.
pub(crate) fn dequantize(
    mode: Microscaled,
    [packed, scales]: [&[u8]; 2],
    to: ElementType,
    output: &mut [u8],
) {
    let group = mode.group() as usize;
    let targets = output.chunks_exact_mut(group * to.size());
    for ((packed, scale), out) in
        packed.chunks_exact(group * mode.bits() as usize / 8).zip(scales).zip(targets)
    {
        let scale = scale_of(mode, *scale);
        let mut values = [0f32; GROUP_LIMIT];
        let values = &mut values[..group];
        match mode {
            Microscaled::Mxfp4 | Microscaled::Nvfp4 => {
                for (pair, byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
                    *pair = [e2m1(byte & 0x0f) * scale, e2m1(byte >> 4) * scale];
                }
            }
            Microscaled::Mxfp8 => {
                for (value, byte) in values.iter_mut().zip(packed) {
                    *value = e4m3(*byte) * scale;
                }
            }
        }
        encode(to, values, out);
    }
}

/// Groups of E2M1 elements as affine triples with the parameters of [`affine_form`].
pub(crate) fn repack(
    mode: Microscaled,
    [packed, scales]: [&[u8]; 2],
    [numbers, half_scales, biases]: [&mut [u8]; 3],
) {
    match mode {
        Microscaled::Mxfp4 => triples::<16, 20>(mode, [packed, scales], [numbers, half_scales, biases]),
        Microscaled::Nvfp4 => triples::<8, 12>(mode, [packed, scales], [numbers, half_scales, biases]),
        Microscaled::Mxfp8 => debug_assert!(false, "{} is not affine", mode.name()),
    }
}

/// `IN` and `OUT`: bytes of a group's elements before and after.
#[inline]
fn triples<const IN: usize, const OUT: usize>(
    mode: Microscaled,
    [packed, scales]: [&[u8]; 2],
    [numbers, half_scales, biases]: [&mut [u8]; 3],
) {
    // Bits of a number, and bytes of eight.
    let width = 4 * OUT / IN;
    let parameters = half_scales.as_chunks_mut::<2>().0.iter_mut().zip(biases.as_chunks_mut::<2>().0);
    let groups = packed.as_chunks::<IN>().0.iter().zip(numbers.as_chunks_mut::<OUT>().0);
    for (((packed, numbers), scale), (half_scale, bias)) in groups.zip(scales).zip(parameters) {
        for (eight, out) in packed.as_chunks::<4>().0.iter().zip(numbers.chunks_exact_mut(width)) {
            let mut word = 0u64;
            for (index, byte) in eight.iter().enumerate() {
                let pair = u64::from(TWICE[usize::from(byte & 0x0f)])
                    | u64::from(TWICE[usize::from(byte >> 4)]) << width;
                word |= pair << (2 * width * index);
            }
            out.copy_from_slice(&word.to_le_bytes()[..width]);
        }
        let half = scale_of(mode, *scale) * 0.5;
        encode(PARAMETERS, &[half], half_scale);
        encode(PARAMETERS, &[-ZERO * half], bias);
    }
}

/// The scale of a group.
#[inline]
fn scale_of(mode: Microscaled, bits: u8) -> f32 {
    match mode {
        Microscaled::Mxfp4 | Microscaled::Mxfp8 => e8m0(bits),
        Microscaled::Nvfp4 => e4m3(bits),
    }
}

/// A power of two: the exponent of a float32, whose zero stands for 2^-127.
#[inline]
fn e8m0(bits: u8) -> f32 {
    f32::from_bits(if bits == 0 { 1 << 22 } else { u32::from(bits) << 23 })
}

/// The digits and the exponent of a float32 whose exponent counts from 120 less; without infinities and NaN.
#[inline]
fn e4m3(bits: u8) -> f32 {
    const TO_THE_120TH: f32 = f32::from_bits((127 + 120) << 23);
    let (sign, magnitude) = (u32::from(bits & 0x80) << 24, u32::from(bits & 0x7f) << 20);
    f32::from_bits(sign | magnitude) * TO_THE_120TH
}

/// An element of 4 bits.
#[inline]
fn e2m1(bits: u8) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDES[usize::from(bits & 7)];
    if bits & 8 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::super::affine;
    use super::super::testing::{Noise, to_floats};
    use super::*;

    #[test]
    fn affine_triples_hold_the_same_values() {
        for mode in [Microscaled::Mxfp4, Microscaled::Nvfp4] {
            let form = affine_form(mode).unwrap();
            let group = mode.group() as usize;
            // Every scale of which all elements are finite.
            let scales: Vec<u8> = if mode == Microscaled::Mxfp4 { 0..=251 } else { 0..=255 }.collect();
            let count = scales.len();
            let packed = Noise(7).bytes(count * group / 2);
            let mut expected = vec![0; 4 * count * group];
            dequantize(mode, [&packed, &scales], ElementType::F32, &mut expected);
            let mut numbers = vec![0; count * group * form.bits as usize / 8];
            let (mut half_scales, mut biases) = (vec![0; 2 * count], vec![0; 2 * count]);
            repack(mode, [&packed, &scales], [&mut numbers, &mut half_scales, &mut biases]);
            let mut found = vec![0; expected.len()];
            let triple = [&numbers[..], &half_scales, &biases];
            affine::dequantize(form, triple, PARAMETERS, ElementType::F32, &mut found);
            for (index, (found, expected)) in to_floats(&found).iter().zip(to_floats(&expected)).enumerate() {
                assert_eq!(*found, expected, "{} {index}", mode.name());
            }
        }
    }

    #[test]
    fn products_of_small_floats_fit_a_bfloat16() {
        let packed: Vec<u8> = (0..=255).collect();
        // From where the least product is no subnormal float32 on.
        for scale in 10..=250 {
            let (mut exact, mut rounded) = (vec![0; 1024], vec![0; 512]);
            let inputs = [&packed[..], &[scale; 8]];
            dequantize(Microscaled::Mxfp8, inputs, ElementType::F32, &mut exact);
            dequantize(Microscaled::Mxfp8, inputs, ElementType::Bf16, &mut rounded);
            for (exact, rounded) in exact.as_chunks::<4>().0.iter().zip(rounded.as_chunks::<2>().0) {
                assert_eq!(exact, &[0, 0, rounded[0], rounded[1]]);
            }
        }
    }
}
