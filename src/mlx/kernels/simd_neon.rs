//! Sixteen float32 in four registers: NEON.

use std::arch::aarch64::*;

use super::sixteen::{LANES, Lanes};

/// The instructions of NEON, which every aarch64 processor has.
#[derive(Clone, Copy, Debug)]
pub struct Neon;

/// An operation on each of the four registers, with its number.
/// Not a closure, which might be compiled without the instructions.
macro_rules! four {
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
            {
                let $i = 2;
                unsafe { $value }
            },
            {
                let $i = 3;
                unsafe { $value }
            },
        ]
    };
}

// SAFETY (of every block here): NEON belongs to the target; reads and writes are within the arrays, at any
// alignment.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl Lanes for Neon {
    type V = [float32x4_t; 4];
    type W = [uint32x4_t; 4];

    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> [float32x4_t; 4] {
        [unsafe { vdupq_n_f32(value) }; 4]
    }
    #[inline(always)]
    fn splat_word(self, value: u32) -> [uint32x4_t; 4] {
        [unsafe { vdupq_n_u32(value) }; 4]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [float32x4_t; 4] {
        four!(i => vld1q_f32(from.as_ptr().add(4 * i)))
    }
    #[inline(always)]
    fn store(self, value: [float32x4_t; 4], to: &mut [f32; LANES]) {
        four!(i => vst1q_f32(to.as_mut_ptr().add(4 * i), value[i]));
    }
    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> [float32x4_t; 4] {
        four!(i => vld1q_f32(from.as_ptr().add(16 * i).cast()))
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> [float32x4_t; 4] {
        four!(i => vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from.as_ptr().add(8 * i)))))
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> [float32x4_t; 4] {
        four!(i => vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(from.as_ptr().add(8 * i))))))
    }
    #[inline(always)]
    fn load_words(self, from: &[u8; 64]) -> [uint32x4_t; 4] {
        four!(i => vreinterpretq_u32_u8(vld1q_u8(from.as_ptr().add(16 * i))))
    }

    #[inline(always)]
    fn add(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vaddq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn sub(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vsubq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vmulq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn div(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vdivq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn fma(self, a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vfmaq_f32(c[i], a[i], b[i]))
    }
    #[inline(always)]
    fn max(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]))
    }
    #[inline(always)]
    fn min(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]))
    }
    #[inline(always)]
    fn select_less(
        self,
        a: [float32x4_t; 4],
        b: [float32x4_t; 4],
        yes: [float32x4_t; 4],
        no: [float32x4_t; 4],
    ) -> [float32x4_t; 4] {
        four!(i => vbslq_f32(vcltq_f32(a[i], b[i]), yes[i], no[i]))
    }

    #[inline(always)]
    fn and(self, a: [uint32x4_t; 4], b: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        four!(i => vandq_u32(a[i], b[i]))
    }
    #[inline(always)]
    fn or(self, a: [uint32x4_t; 4], b: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        four!(i => vorrq_u32(a[i], b[i]))
    }
    #[inline(always)]
    fn add_words(self, a: [uint32x4_t; 4], b: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        four!(i => vaddq_u32(a[i], b[i]))
    }
    #[inline(always)]
    fn sub_words(self, a: [uint32x4_t; 4], b: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        four!(i => vsubq_u32(a[i], b[i]))
    }
    #[inline(always)]
    fn shl(self, a: [uint32x4_t; 4], count: u32) -> [uint32x4_t; 4] {
        // The instruction reads eight bits of the count.
        four!(i => vshlq_u32(a[i], vdupq_n_s32(count.min(32).cast_signed())))
    }
    #[inline(always)]
    fn shr(self, a: [uint32x4_t; 4], count: u32) -> [uint32x4_t; 4] {
        four!(i => vshlq_u32(a[i], vdupq_n_s32(-count.min(32).cast_signed())))
    }
    #[inline(always)]
    fn halve_signed(self, a: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        four!(i => vreinterpretq_u32_s32(vshrq_n_s32::<1>(vreinterpretq_s32_u32(a[i]))))
    }
    #[inline(always)]
    fn to_float(self, a: [uint32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vcvtq_f32_s32(vreinterpretq_s32_u32(a[i])))
    }
    #[inline(always)]
    fn look_up<const N: usize>(self, table: &[f32; N], index: [uint32x4_t; 4]) -> [float32x4_t; 4] {
        let mut indices = [0; 16];
        for (i, index) in index.into_iter().enumerate() {
            unsafe { vst1q_u32(indices.as_mut_ptr().add(4 * i), index) }
        }
        let mut entries = [0.0; 16];
        for (entry, index) in entries.iter_mut().zip(indices) {
            *entry = table[index as usize % N];
        }
        four!(i => vld1q_f32(entries.as_ptr().add(4 * i)))
    }
    #[inline(always)]
    fn with_bits(self, a: [uint32x4_t; 4]) -> [float32x4_t; 4] {
        four!(i => vreinterpretq_f32_u32(a[i]))
    }
    #[inline(always)]
    fn bits(self, a: [float32x4_t; 4]) -> [uint32x4_t; 4] {
        four!(i => vreinterpretq_u32_f32(a[i]))
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
