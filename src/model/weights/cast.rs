//! Between bytes of a float type and float32 values.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::types::ElementType;

/// Values converted at once: fits the first-level cache.
const CHUNK: usize = 512;

/// Little-endian elements of the float type `from` as float32.
pub(crate) fn decode(from: ElementType, bytes: &[u8], values: &mut [f32]) {
    match from {
        ElementType::F32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        ElementType::Bf16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        ElementType::F16 => {
            for (values, bytes) in values.chunks_mut(CHUNK).zip(bytes.chunks(2 * CHUNK)) {
                let mut bits = [0u16; CHUNK];
                for (bits, bytes) in bits.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *bits = u16::from_le_bytes(*bytes);
                }
                bits[..values.len()].reinterpret_cast::<f16>().convert_to_f32_slice(values);
            }
        }
        _ => debug_assert!(false, "{} is no float type", from.name()),
    }
}

/// float32 values as little-endian elements of the float type `to`, rounded to nearest even.
pub(crate) fn encode(to: ElementType, values: &[f32], bytes: &mut [u8]) {
    match to {
        ElementType::F32 => {
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *bytes = value.to_le_bytes();
            }
        }
        ElementType::Bf16 => {
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *bytes = to_bf16(*value).to_le_bytes();
            }
        }
        ElementType::F16 => {
            for (values, bytes) in values.chunks(CHUNK).zip(bytes.chunks_mut(2 * CHUNK)) {
                let mut halves = [f16::ZERO; CHUNK];
                let halves = &mut halves[..values.len()];
                halves.convert_from_f32_slice(values);
                for (half, bytes) in halves.iter().zip(bytes.as_chunks_mut::<2>().0) {
                    *bytes = half.to_le_bytes();
                }
            }
        }
        _ => debug_assert!(false, "{} is no float type", to.name()),
    }
}

/// The bits of a bfloat16, without branches, so that loops become vector code.
#[inline]
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // NaN stays one, and becomes a quiet one.
    let kept = if value.is_nan() { bits | 1 << 22 } else { rounded };
    (kept >> 16) as u16
}

/// Elements of one float type as elements of another.
pub(crate) fn cast(from: ElementType, input: &[u8], to: ElementType, output: &mut [u8]) {
    let mut values = [0f32; CHUNK];
    for (input, output) in input.chunks(CHUNK * from.size()).zip(output.chunks_mut(CHUNK * to.size())) {
        let values = &mut values[..input.len() / from.size()];
        decode(from, input, values);
        encode(to, values, output);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [ElementType; 3] = [ElementType::F16, ElementType::Bf16, ElementType::F32];

    fn cast_value(from: ElementType, bits: u32, to: ElementType) -> u32 {
        let mut input = bits.to_le_bytes()[..from.size()].to_vec();
        // More than a chunk, so that every path is taken.
        input = input.repeat(CHUNK + 3);
        let mut output = vec![0xaa; (CHUNK + 3) * to.size()];
        cast(from, &input, to, &mut output);
        let first = output[..to.size()].to_vec();
        assert!(output.chunks(to.size()).all(|element| element == first));
        let mut bits = [0; 4];
        bits[..to.size()].copy_from_slice(&first);
        u32::from_le_bytes(bits)
    }

    #[test]
    fn known_values_and_roundings() {
        use ElementType::{Bf16, F16, F32};
        assert_eq!(cast_value(F16, 0x3c00, F32), 1f32.to_bits());
        // Smallest subnormal, largest finite, negative zero, infinity.
        assert_eq!(cast_value(F16, 0x0001, F32), (2f32.powi(-24)).to_bits());
        assert_eq!(cast_value(F16, 0x7bff, F32), 65504f32.to_bits());
        assert_eq!(cast_value(F16, 0x8000, F32), (-0f32).to_bits());
        assert_eq!(cast_value(F16, 0x7c00, F32), f32::INFINITY.to_bits());
        assert_eq!(cast_value(Bf16, 0x3f80, F32), 1f32.to_bits());
        // Ties go to even: 1 + 2^-8 lies between the bfloat16 values 1 and 1 + 2^-7.
        assert_eq!(cast_value(F32, (1.0 + 2f32.powi(-8)).to_bits(), Bf16), 0x3f80);
        assert_eq!(cast_value(F32, (1.0 + 3.0 * 2f32.powi(-8)).to_bits(), Bf16), 0x3f82);
        assert_eq!(cast_value(F32, (1.0 + 2f32.powi(-11)).to_bits(), F16), 0x3c00);
        assert_eq!(cast_value(F32, (1.0 + 3.0 * 2f32.powi(-11)).to_bits(), F16), 0x3c02);
        assert_eq!(cast_value(F32, 1e6f32.to_bits(), F16), 0x7c00);
        assert_eq!(cast_value(F16, 0x0001, Bf16), 0x3380);
    }

    #[test]
    fn bfloat16_is_rounded_as_half_does_it() {
        let mut bits = 0u32;
        loop {
            let value = f32::from_bits(bits);
            assert_eq!(to_bf16(value), half::bf16::from_f32(value).to_bits(), "{bits:#x}");
            // Every upper half comes up, with lower halves on, beside and far from the ties.
            let Some(next) = bits.checked_add(0x3fff) else { break };
            bits = next;
        }
        for bits in [0x3f80_8000u32, 0x3f81_8000, 0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001, 0xffff_ffff, 1] {
            let value = f32::from_bits(bits);
            assert_eq!(to_bf16(value), half::bf16::from_f32(value).to_bits(), "{bits:#x}");
        }
    }

    #[test]
    fn wider_types_hold_every_narrower_value() {
        for narrow in [ElementType::F16, ElementType::Bf16] {
            let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let mut wide = vec![0; all.len() * 2];
            cast(narrow, &all, ElementType::F32, &mut wide);
            let mut back = vec![0; all.len()];
            cast(ElementType::F32, &wide, narrow, &mut back);
            for (index, (before, after)) in all.chunks(2).zip(back.chunks(2)).enumerate() {
                let value = f32::from_le_bytes(wide[4 * index..4 * index + 4].try_into().unwrap());
                assert!(before == after || value.is_nan(), "{narrow:?} {index:#x}");
            }
        }
        for same in FLOATS {
            assert_eq!(cast_value(same, 0x3c01, same), 0x3c01);
        }
    }
}
