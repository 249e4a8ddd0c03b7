//! Sixteen float32 in two registers: AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::sixteen::{LANES, Lanes};

/// The instructions of AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor has the instructions of [`super::cpu::Path::Avx2`].
    #[inline(always)]
    pub unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

/// An operation on each of both registers, with its number.
/// Not a closure, which might be compiled without the instructions.
macro_rules! pair {
    ($i:ident => $value:expr) => {
        [
            {
                let $i = 0;
                unsafe { $value }
            },
            {
                let $i = 1;
                unsafe { $value }
            },
        ]
    };
}

// SAFETY (of every block here): a token exists only where the processor has the instructions, see
// `new`; reads and writes are within the arrays, at any alignment.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx2 {
    type V = [__m256; 2];
    type W = [__m256i; 2];

    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> [__m256; 2] {
        [unsafe { _mm256_set1_ps(value) }; 2]
    }
    #[inline(always)]
    fn splat_word(self, value: u32) -> [__m256i; 2] {
        [unsafe { _mm256_set1_epi32(value.cast_signed()) }; 2]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [__m256; 2] {
        pair!(i => _mm256_loadu_ps(from.as_ptr().add(8 * i)))
    }
    #[inline(always)]
    fn store(self, value: [__m256; 2], to: &mut [f32; LANES]) {
        pair!(i => _mm256_storeu_ps(to.as_mut_ptr().add(8 * i), value[i]));
    }
    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> [__m256; 2] {
        pair!(i => _mm256_loadu_ps(from.as_ptr().add(32 * i).cast()))
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> [__m256; 2] {
        pair!(i => _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(16 * i).cast())))
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> [__m256; 2] {
        pair!(i => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(16 * i).cast())))))
    }
    #[inline(always)]
    fn load_words(self, from: &[u8; 64]) -> [__m256i; 2] {
        pair!(i => _mm256_loadu_si256(from.as_ptr().add(32 * i).cast()))
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        pair!(i => _mm256_add_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn sub(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        pair!(i => _mm256_sub_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        pair!(i => _mm256_mul_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn div(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        pair!(i => _mm256_div_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn fma(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        pair!(i => _mm256_fmadd_ps(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        pair!(i => _mm256_max_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn min(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        pair!(i => _mm256_min_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn select_less(self, a: [__m256; 2], b: [__m256; 2], yes: [__m256; 2], no: [__m256; 2]) -> [__m256; 2] {
        pair!(i => _mm256_blendv_ps(no[i], yes[i], _mm256_cmp_ps::<_CMP_LT_OQ>(a[i], b[i])))
    }

    #[inline(always)]
    fn and(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        pair!(i => _mm256_and_si256(a[i], b[i]))
    }
    #[inline(always)]
    fn or(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        pair!(i => _mm256_or_si256(a[i], b[i]))
    }
    #[inline(always)]
    fn add_words(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        pair!(i => _mm256_add_epi32(a[i], b[i]))
    }
    #[inline(always)]
    fn sub_words(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        pair!(i => _mm256_sub_epi32(a[i], b[i]))
    }
    #[inline(always)]
    fn shl(self, a: [__m256i; 2], count: u32) -> [__m256i; 2] {
        pair!(i => _mm256_sll_epi32(a[i], _mm_cvtsi32_si128(count.cast_signed())))
    }
    #[inline(always)]
    fn shr(self, a: [__m256i; 2], count: u32) -> [__m256i; 2] {
        pair!(i => _mm256_srl_epi32(a[i], _mm_cvtsi32_si128(count.cast_signed())))
    }
    #[inline(always)]
    fn halve_signed(self, a: [__m256i; 2]) -> [__m256i; 2] {
        pair!(i => _mm256_srai_epi32::<1>(a[i]))
    }
    #[inline(always)]
    fn to_float(self, a: [__m256i; 2]) -> [__m256; 2] {
        pair!(i => _mm256_cvtepi32_ps(a[i]))
    }
    #[inline(always)]
    fn look_up<const N: usize>(self, table: &[f32; N], index: [__m256i; 2]) -> [__m256; 2] {
        assert!(N.is_power_of_two());
        // A look-up reads three bits of the index; the others take the index modulo the table.
        if N <= 8 {
            let mut repeated = [0.0; 8];
            for (i, entry) in repeated.iter_mut().enumerate() {
                *entry = table[i % N];
            }
            pair!(i => _mm256_permutevar8x32_ps(_mm256_loadu_ps(repeated.as_ptr()), index[i]))
        } else if N == 16 {
            let low = pair!(i => _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), index[i]));
            let high = pair!(i => _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), index[i]));
            // The blend reads the sign.
            pair!(i => _mm256_blendv_ps(low[i], high[i], _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index[i]))))
        } else {
            let index = self.and(index, self.splat_word(N as u32 - 1));
            pair!(i => _mm256_i32gather_ps::<4>(table.as_ptr(), index[i]))
        }
    }
    #[inline(always)]
    fn with_bits(self, a: [__m256i; 2]) -> [__m256; 2] {
        pair!(i => _mm256_castsi256_ps(a[i]))
    }
    #[inline(always)]
    fn bits(self, a: [__m256; 2]) -> [__m256i; 2] {
        pair!(i => _mm256_castps_si256(a[i]))
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn prefetch_to_write(self, at: *const u8) {
        // The intrinsic becomes a prefetch to read. Processors without this one take it as nothing.
        unsafe {
            std::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
        }
    }
}
