//! Vectors of eight float32: AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::simd::Simd;

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

// SAFETY (of every block here): a token exists only where the processor has the instructions, see
// `new`; reads and writes are within what the caller of the trait's unsafe methods promises.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    const LANES: usize = 8;
    type F = __m256;
    type I = __m256i;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    fn splat_word(self, value: u32) -> __m256i {
        unsafe { _mm256_set1_epi32(value.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m256 {
        unsafe {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m256) {
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn select_less(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    fn add_words(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    fn sub_words(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi32(a, b) }
    }
    #[inline(always)]
    fn shl(self, a: __m256i, count: u32) -> __m256i {
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(count.cast_signed())) }
    }
    #[inline(always)]
    fn shr(self, a: __m256i, count: u32) -> __m256i {
        unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(count.cast_signed())) }
    }
    #[inline(always)]
    fn halve_signed(self, a: __m256i) -> __m256i {
        unsafe { _mm256_srai_epi32::<1>(a) }
    }
    #[inline(always)]
    fn to_float(self, a: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    #[inline(always)]
    fn entry<const N: usize>(self, table: &[f32; N], index: __m256i) -> __m256 {
        assert!(N.is_power_of_two());
        // A look-up reads three bits of the index; the others take the index modulo the table.
        unsafe {
            if N <= 8 {
                let mut repeated = [0.0; 8];
                for (i, entry) in repeated.iter_mut().enumerate() {
                    *entry = table[i % N];
                }
                _mm256_permutevar8x32_ps(_mm256_loadu_ps(repeated.as_ptr()), index)
            } else if N == 16 {
                let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), index);
                let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), index);
                // The blend reads the sign.
                _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
            } else {
                let index = _mm256_and_si256(index, self.splat_word(N as u32 - 1));
                _mm256_i32gather_ps::<4>(table.as_ptr(), index)
            }
        }
    }
    #[inline(always)]
    fn with_bits(self, a: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(a) }
    }
    #[inline(always)]
    fn bits(self, a: __m256) -> __m256i {
        unsafe { _mm256_castps_si256(a) }
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
