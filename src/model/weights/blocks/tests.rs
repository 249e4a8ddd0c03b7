//! Blocks of 32 elements by hand; whole tensors are compared with other implementations in `fixture_tests`.

use half::f16;

use super::*;
use crate::model::weights::testing::to_floats;

const ELEMENTS: usize = 32;

const HALF_ONE: [u8; 2] = [0x00, 0x3c];
const HALF_TWO: [u8; 2] = [0x00, 0x40];

fn values(format: BlockFormat, block: &[u8]) -> Vec<f32> {
    let mut output = vec![0; 4 * ELEMENTS];
    dequantize(format, block, ElementType::F32, &mut output);
    to_floats(&output)
}

/// Packed numbers, scale and bias.
fn triple(format: BlockFormat, block: &[u8]) -> (Vec<u8>, [u8; 2], [u8; 2]) {
    let (mut packed, mut scale, mut bias) = (vec![0; 4 * format.affine().bits as usize], [0; 2], [0; 2]);
    repack(format, block, ElementType::F16, [&mut packed, &mut scale, &mut bias]);
    (packed, scale, bias)
}

#[test]
fn low_halves_come_before_high_halves() {
    let numbers: [u8; 16] = std::array::from_fn(|index| index as u8 | (15 - index as u8) << 4);
    let block = [&HALF_TWO[..], &numbers].concat();
    let expected: Vec<f32> = (0..16).chain((0..16).rev()).map(|number| 2.0 * (number as f32 - 8.0)).collect();
    assert_eq!(values(BlockFormat::Q4_0, &block), expected);
    let (packed, scale, bias) = triple(BlockFormat::Q4_0, &block);
    assert_eq!(packed[..4], [0x10, 0x32, 0x54, 0x76]);
    assert_eq!(packed[8..12], [0xef, 0xcd, 0xab, 0x89]);
    assert_eq!((scale, f16::from_le_bytes(bias)), (HALF_TWO, f16::from_f32(-16.0)));

    let block = [&HALF_TWO[..], &HALF_ONE, &numbers].concat();
    let expected: Vec<f32> = (0..16).chain((0..16).rev()).map(|number| 2.0 * number as f32 + 1.0).collect();
    assert_eq!(values(BlockFormat::Q4_1, &block), expected);
    let (q4_1_packed, scale, bias) = triple(BlockFormat::Q4_1, &block);
    assert_eq!((q4_1_packed, scale, bias), (packed, HALF_TWO, HALF_ONE));
}

#[test]
fn signed_bytes_become_unsigned_ones() {
    let numbers: [u8; 32] = std::array::from_fn(|index| if index == 0 { 0x80 } else { index as u8 });
    let block = [&HALF_TWO[..], &numbers].concat();
    let found = values(BlockFormat::Q8_0, &block);
    assert_eq!((found[0], found[1], found[31]), (-256.0, 2.0, 62.0));
    let (packed, scale, bias) = triple(BlockFormat::Q8_0, &block);
    assert_eq!((packed[0], packed[1], packed[31]), (0, 129, 159));
    assert_eq!((scale, f16::from_le_bytes(bias)), (HALF_TWO, f16::from_f32(-256.0)));
}

#[test]
fn narrower_types_are_rounded_from_float32() {
    let block = [&0x3555u16.to_le_bytes()[..], &[7; 32]].concat();
    let exact = values(BlockFormat::Q8_0, &block)[0];
    for (to, expected) in [
        (ElementType::F16, f16::from_f32(exact).to_le_bytes()),
        (ElementType::Bf16, half::bf16::from_f32(exact).to_le_bytes()),
    ] {
        let mut output = vec![0; 2 * ELEMENTS];
        dequantize(BlockFormat::Q8_0, &block, to, &mut output);
        assert_eq!(output, expected.repeat(ELEMENTS));
    }
}
