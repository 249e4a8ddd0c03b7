//! Sixteen float32 in a register: AVX-512.

use std::arch::x86_64::*;

use super::sixteen::{LANES, Lanes};

/// The instructions of AVX-512 F, VL, BW and DQ.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor has the instructions of [`super::cpu::Path::Avx512`].
    #[inline(always)]
    pub unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

// SAFETY (of every block here): a token exists only where the processor has the instructions, see
// `new`; reads and writes are within the arrays, at any alignment.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx512 {
    type V = __m512;
    type W = __m512i;

    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn splat_word(self, value: u32) -> __m512i {
        unsafe { _mm512_set1_epi32(value.cast_signed()) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, value: __m512, to: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
    }
    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> __m512 {
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> __m512 {
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                from.as_ptr().cast(),
            ))))
        }
    }
    #[inline(always)]
    fn load_words(self, from: &[u8; 64]) -> __m512i {
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn select_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn add_words(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn sub_words(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    fn shl(self, a: __m512i, count: u32) -> __m512i {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(count.cast_signed())) }
    }
    #[inline(always)]
    fn shr(self, a: __m512i, count: u32) -> __m512i {
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(count.cast_signed())) }
    }
    #[inline(always)]
    fn halve_signed(self, a: __m512i) -> __m512i {
        unsafe { _mm512_srai_epi32::<1>(a) }
    }
    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    fn low_nibble(self, a: __m512i) -> __m512 {
        // A look-up reads four bits of the index: one operation instead of two.
        unsafe {
            let values = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
            );
            _mm512_permutexvar_ps(a, values)
        }
    }
    #[inline(always)]
    fn look_up<const N: usize>(self, table: &[f32; N], index: __m512i) -> __m512 {
        assert!(N.is_power_of_two());
        // Look-ups read as many bits of the index as they need; the others take the index modulo the table.
        unsafe {
            if N <= 16 {
                let mut repeated = [0.0; 16];
                for (i, entry) in repeated.iter_mut().enumerate() {
                    *entry = table[i % N];
                }
                _mm512_permutexvar_ps(index, _mm512_loadu_ps(repeated.as_ptr()))
            } else if N == 32 {
                let (low, high) = (_mm512_loadu_ps(table.as_ptr()), _mm512_loadu_ps(table.as_ptr().add(16)));
                _mm512_permutex2var_ps(low, index, high)
            } else {
                let index = _mm512_and_si512(index, self.splat_word(N as u32 - 1));
                _mm512_i32gather_ps::<4>(index, table.as_ptr())
            }
        }
    }
    #[inline(always)]
    fn with_bits(self, a: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(a) }
    }
    #[inline(always)]
    fn bits(self, a: __m512) -> __m512i {
        unsafe { _mm512_castps_si512(a) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // Into the second level: these processors wait for fewer lines at once in the first.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    fn prefetch_to_write(self, at: *const u8) {
        // The intrinsic becomes a prefetch to read. Processors without this one take it as nothing.
        unsafe {
            std::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
        }
    }
}
