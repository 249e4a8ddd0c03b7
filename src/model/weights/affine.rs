//! MLX's affine quantisation, back to float values.
//!
//! Numbers of `bits` bits follow each other from the lowest bit on; eight of them fill `bits`
//! bytes, whatever the width.

use super::cast::{decode, encode};
use super::types::ElementType;
use crate::model::config::Affine;

/// Groups at once; bounds the values on the stack.
const GROUP_LIMIT: usize = 128;

/// Groups as elements of the float type `to`: `scale * q + bias`, computed in float32 as MLX does
/// it with float32 scales (product and sum are rounded one after the other).
pub(crate) fn dequantize(
    affine: Affine,
    [packed, scales, biases]: [&[u8]; 3],
    scale_type: ElementType,
    to: ElementType,
    output: &mut [u8],
) {
    match affine.bits {
        2 => groups::<2>(affine, [packed, scales, biases], scale_type, to, output),
        3 => groups::<3>(affine, [packed, scales, biases], scale_type, to, output),
        4 => groups::<4>(affine, [packed, scales, biases], scale_type, to, output),
        5 => groups::<5>(affine, [packed, scales, biases], scale_type, to, output),
        6 => groups::<6>(affine, [packed, scales, biases], scale_type, to, output),
        8 => groups::<8>(affine, [packed, scales, biases], scale_type, to, output),
        other => debug_assert!(false, "{other} bits"),
    }
}

fn groups<const BITS: usize>(
    affine: Affine,
    [packed, scales, biases]: [&[u8]; 3],
    scale_type: ElementType,
    to: ElementType,
    output: &mut [u8],
) {
    let group = (affine.group as usize).min(GROUP_LIMIT);
    let width = scale_type.size();
    let parameters = scales.chunks_exact(width).zip(biases.chunks_exact(width));
    let targets = output.chunks_exact_mut(group * to.size());
    for ((packed, (scale, bias)), out) in packed.chunks_exact(group * BITS / 8).zip(parameters).zip(targets) {
        let (mut scale_value, mut bias_value) = ([0.0], [0.0]);
        decode(scale_type, scale, &mut scale_value);
        decode(scale_type, bias, &mut bias_value);
        let mut values = [0f32; GROUP_LIMIT];
        for (eight, bytes) in values.as_chunks_mut::<8>().0.iter_mut().zip(packed.as_chunks::<BITS>().0) {
            let mut word = [0; 8];
            word[..BITS].copy_from_slice(bytes);
            let word = u64::from_le_bytes(word);
            for (index, value) in eight.iter_mut().enumerate() {
                let number = (word >> (index * BITS)) as u8 & (0xff >> (8 - BITS));
                *value = scale_value[0] * f32::from(number) + bias_value[0];
            }
        }
        encode(to, &values[..group], out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Noise, floats, to_floats};
    use super::*;

    #[test]
    fn numbers_are_unpacked_from_the_lowest_bit_on() {
        for bits in [2u32, 3, 4, 5, 6, 8] {
            for group in [32u32, 64, 128] {
                let count = 3 * group as usize;
                let mut noise = Noise(u64::from(bits * group));
                let numbers: Vec<u64> = (0..count).map(|_| noise.next() & ((1 << bits) - 1)).collect();
                let mut packed = vec![0u8; count * bits as usize / 8];
                for (index, number) in numbers.iter().enumerate() {
                    for bit in 0..bits as usize {
                        let place = index * bits as usize + bit;
                        packed[place / 8] |= ((number >> bit & 1) as u8) << (place % 8);
                    }
                }
                let (scales, biases) = ([0.5, -3.0, 1e-3], [1.0, 0.25, -7.0]);
                let mut output = vec![0; 4 * count];
                dequantize(
                    Affine { bits, group },
                    [&packed, &floats(&scales), &floats(&biases)],
                    ElementType::F32,
                    ElementType::F32,
                    &mut output,
                );
                for (index, value) in to_floats(&output).into_iter().enumerate() {
                    let of = index / group as usize;
                    assert_eq!(
                        value,
                        scales[of] * numbers[index] as f32 + biases[of],
                        "{bits} {group} {index}"
                    );
                }
            }
        }
    }
}
