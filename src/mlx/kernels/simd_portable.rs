//! Arrays of sixteen float32 without any instruction set.

use half::{bf16, f16};

use super::sixteen::{LANES, Lanes};

/// What every processor has; also the oracle for the others.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

macro_rules! lanes {
    ($lane:ident => $value:expr) => {
        std::array::from_fn(
            #[inline(always)]
            |$lane| $value,
        )
    };
}

impl Lanes for Portable {
    type V = [f32; LANES];
    type W = [u32; LANES];

    const WIDE: bool = false;
    const REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    fn splat_word(self, value: u32) -> [u32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [f32; LANES] {
        *from
    }
    #[inline(always)]
    fn store(self, value: [f32; LANES], to: &mut [f32; LANES]) {
        *to = value;
    }
    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> [f32; LANES] {
        let numbers = from.as_chunks::<4>().0;
        lanes!(i => f32::from_le_bytes(numbers[i]))
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> [f32; LANES] {
        let numbers = from.as_chunks::<2>().0;
        lanes!(i => f16::from_le_bytes(numbers[i]).to_f32())
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> [f32; LANES] {
        let numbers = from.as_chunks::<2>().0;
        lanes!(i => bf16::from_le_bytes(numbers[i]).to_f32())
    }
    #[inline(always)]
    fn load_words(self, from: &[u8; 64]) -> [u32; LANES] {
        let words = from.as_chunks::<4>().0;
        lanes!(i => u32::from_le_bytes(words[i]))
    }

    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanes!(i => a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        lanes!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn select_less(
        self,
        a: [f32; LANES],
        b: [f32; LANES],
        yes: [f32; LANES],
        no: [f32; LANES],
    ) -> [f32; LANES] {
        lanes!(i => if a[i] < b[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn and(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes!(i => a[i] & b[i])
    }
    #[inline(always)]
    fn or(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes!(i => a[i] | b[i])
    }
    #[inline(always)]
    fn add_words(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes!(i => a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_words(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes!(i => a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn shl(self, a: [u32; LANES], count: u32) -> [u32; LANES] {
        a.map(|word| word.checked_shl(count).unwrap_or(0))
    }
    #[inline(always)]
    fn shr(self, a: [u32; LANES], count: u32) -> [u32; LANES] {
        a.map(|word| word.checked_shr(count).unwrap_or(0))
    }
    #[inline(always)]
    fn halve_signed(self, a: [u32; LANES]) -> [u32; LANES] {
        a.map(|word| (word.cast_signed() >> 1).cast_unsigned())
    }
    #[inline(always)]
    fn to_float(self, a: [u32; LANES]) -> [f32; LANES] {
        a.map(|word| word.cast_signed() as f32)
    }
    #[inline(always)]
    fn look_up<const N: usize>(self, table: &[f32; N], index: [u32; LANES]) -> [f32; LANES] {
        index.map(|index| table[index as usize % N])
    }
    #[inline(always)]
    fn with_bits(self, a: [u32; LANES]) -> [f32; LANES] {
        a.map(f32::from_bits)
    }
    #[inline(always)]
    fn bits(self, a: [f32; LANES]) -> [u32; LANES] {
        a.map(f32::to_bits)
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
    #[inline(always)]
    fn prefetch_to_write(self, _at: *const u8) {}
}
