//! Vectors of four float32: NEON.

use std::arch::aarch64::*;

use super::simd::Simd;

/// The instructions of NEON, which every aarch64 processor has.
#[derive(Clone, Copy, Debug)]
pub struct Neon;

// SAFETY (of every block here): NEON belongs to the target; reads and writes are within what the
// caller of the trait's unsafe methods promises.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl Simd for Neon {
    const LANES: usize = 4;
    type F = float32x4_t;
    type I = uint32x4_t;

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(value) }
    }
    #[inline(always)]
    fn splat_word(self, value: u32) -> uint32x4_t {
        unsafe { vdupq_n_u32(value) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> uint32x4_t {
        unsafe { vreinterpretq_u32_u8(vld1q_u8(from)) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> float32x4_t {
        unsafe { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(from)))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: float32x4_t) {
        unsafe { vst1q_f32(to, value) }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn select_less(self, a: float32x4_t, b: float32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), yes, no) }
    }

    #[inline(always)]
    fn and(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        unsafe { vandq_u32(a, b) }
    }
    #[inline(always)]
    fn or(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        unsafe { vorrq_u32(a, b) }
    }
    #[inline(always)]
    fn add_words(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        unsafe { vaddq_u32(a, b) }
    }
    #[inline(always)]
    fn sub_words(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        unsafe { vsubq_u32(a, b) }
    }
    #[inline(always)]
    fn shl(self, a: uint32x4_t, count: u32) -> uint32x4_t {
        // The instruction reads eight bits of the count.
        unsafe { vshlq_u32(a, vdupq_n_s32(count.min(32).cast_signed())) }
    }
    #[inline(always)]
    fn shr(self, a: uint32x4_t, count: u32) -> uint32x4_t {
        unsafe { vshlq_u32(a, vdupq_n_s32(-count.min(32).cast_signed())) }
    }
    #[inline(always)]
    fn halve_signed(self, a: uint32x4_t) -> uint32x4_t {
        unsafe { vreinterpretq_u32_s32(vshrq_n_s32::<1>(vreinterpretq_s32_u32(a))) }
    }
    #[inline(always)]
    fn to_float(self, a: uint32x4_t) -> float32x4_t {
        unsafe { vcvtq_f32_s32(vreinterpretq_s32_u32(a)) }
    }
    #[inline(always)]
    fn entry<const N: usize>(self, table: &[f32; N], index: uint32x4_t) -> float32x4_t {
        let mut indices = [0; 4];
        unsafe { vst1q_u32(indices.as_mut_ptr(), index) }
        let entries = indices.map(|index| table[index as usize % N]);
        unsafe { vld1q_f32(entries.as_ptr()) }
    }
    #[inline(always)]
    fn with_bits(self, a: uint32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(a) }
    }
    #[inline(always)]
    fn bits(self, a: float32x4_t) -> uint32x4_t {
        unsafe { vreinterpretq_u32_f32(a) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // A hint that reads and writes nothing and cannot fault.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
        }
    }
    #[inline(always)]
    fn prefetch_to_write(self, at: *const u8) {
        // As above.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
        }
    }
}
