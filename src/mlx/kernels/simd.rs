//! Vectors of float32 as the kernels see them, whatever the instruction set.

use half::{bf16, f16};

/// An instruction set, as a token: whoever holds one knows that the processor has the instructions.
///
/// All operations are exact to IEEE 754 with rounding to nearest and subnormal numbers, so that every
/// implementation gives the same bits (apart from the sign and payload of a NaN).
///
/// The loads and stores take any alignment.
pub trait Simd: Copy {
    /// Lanes of a vector.
    const LANES: usize;
    /// A vector of float32.
    type F: Copy;
    /// A vector of 32-bit words.
    type I: Copy;

    fn splat(self, value: f32) -> Self::F;
    fn splat_word(self, value: u32) -> Self::I;

    /// # Safety
    /// `LANES` floats can be read at `from`.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// `LANES` words can be read at `from`.
    unsafe fn load_words(self, from: *const u8) -> Self::I;
    /// # Safety
    /// `LANES` half-precision numbers can be read at `from`.
    unsafe fn load_f16(self, from: *const u8) -> Self::F;
    /// # Safety
    /// `LANES` bfloat16 numbers can be read at `from`.
    unsafe fn load_bf16(self, from: *const u8) -> Self::F;
    /// # Safety
    /// `LANES` floats can be written at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::F);

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` when one of them is NaN or both are zeros.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` when one of them is NaN or both are zeros.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `yes` where a < b, else `no`.
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;

    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    fn add_words(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_words(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts left; 0 for counts above 31.
    fn shl(self, a: Self::I, count: u32) -> Self::I;
    /// Shifts right, filling with zeros; 0 for counts above 31.
    fn shr(self, a: Self::I, count: u32) -> Self::I;
    /// Halves a signed word, rounding down.
    fn halve_signed(self, a: Self::I) -> Self::I;
    /// The value of a signed word.
    fn to_float(self, a: Self::I) -> Self::F;
    /// The value of the four lowest bits.
    #[inline(always)]
    fn low_nibble(self, a: Self::I) -> Self::F {
        self.to_float(self.and(a, self.splat_word(15)))
    }
    /// Entry `index mod N` of a table in each lane. N is a power of two.
    fn entry<const N: usize>(self, table: &[f32; N], index: Self::I) -> Self::F;
    fn with_bits(self, a: Self::I) -> Self::F;
    fn bits(self, a: Self::F) -> Self::I;

    /// Asks for the cache line at `at`, which need not exist.
    fn prefetch(self, at: *const u8);
    /// The same for a line that will be written.
    fn prefetch_to_write(self, at: *const u8);
}

/// What every processor has; also the oracle for the others.
#[derive(Clone, Copy, Debug)]
pub struct Portable<const LANES: usize>;

macro_rules! lanes {
    ($lane:ident => $value:expr) => {
        std::array::from_fn(
            #[inline(always)]
            |$lane| $value,
        )
    };
}

impl<const N: usize> Simd for Portable<N> {
    const LANES: usize = N;
    type F = [f32; N];
    type I = [u32; N];

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; N] {
        [value; N]
    }
    #[inline(always)]
    fn splat_word(self, value: u32) -> [u32; N] {
        [value; N]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> [u32; N] {
        // SAFETY: the caller's promise.
        let words = unsafe { from.cast::<[u32; N]>().read_unaligned() };
        words.map(u32::from_le)
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> [f32; N] {
        // SAFETY: the caller's promise.
        let halves = unsafe { from.cast::<[u16; N]>().read_unaligned() };
        lanes!(i => f16::from_bits(u16::from_le(halves[i])).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> [f32; N] {
        // SAFETY: the caller's promise.
        let halves = unsafe { from.cast::<[u16; N]>().read_unaligned() };
        lanes!(i => bf16::from_bits(u16::from_le(halves[i])).to_f32())
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; N]>().write_unaligned(value) }
    }

    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(i => a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        lanes!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn select_less(self, a: [f32; N], b: [f32; N], yes: [f32; N], no: [f32; N]) -> [f32; N] {
        lanes!(i => if a[i] < b[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn and(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        lanes!(i => a[i] & b[i])
    }
    #[inline(always)]
    fn or(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        lanes!(i => a[i] | b[i])
    }
    #[inline(always)]
    fn add_words(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        lanes!(i => a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_words(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        lanes!(i => a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn shl(self, a: [u32; N], count: u32) -> [u32; N] {
        a.map(|word| word.checked_shl(count).unwrap_or(0))
    }
    #[inline(always)]
    fn shr(self, a: [u32; N], count: u32) -> [u32; N] {
        a.map(|word| word.checked_shr(count).unwrap_or(0))
    }
    #[inline(always)]
    fn halve_signed(self, a: [u32; N]) -> [u32; N] {
        a.map(|word| (word.cast_signed() >> 1).cast_unsigned())
    }
    #[inline(always)]
    fn to_float(self, a: [u32; N]) -> [f32; N] {
        a.map(|word| word.cast_signed() as f32)
    }
    #[inline(always)]
    fn entry<const M: usize>(self, table: &[f32; M], index: [u32; N]) -> [f32; N] {
        lanes!(i => table[index[i] as usize % M])
    }
    #[inline(always)]
    fn with_bits(self, a: [u32; N]) -> [f32; N] {
        a.map(f32::from_bits)
    }
    #[inline(always)]
    fn bits(self, a: [f32; N]) -> [u32; N] {
        a.map(f32::to_bits)
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
    #[inline(always)]
    fn prefetch_to_write(self, _at: *const u8) {}
}
