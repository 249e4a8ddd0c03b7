//! Sixteen float32 at a time, whatever the width of the registers.
//!
//! Where the number of lanes is part of the arithmetic (partial sums, interleaved keys), it is sixteen on every
//! processor: one AVX-512 register, two of AVX2, four of NEON. So all paths give the same bits.

use super::cpu::Path;
use super::exp::exp;
#[cfg(target_arch = "aarch64")]
use super::simd_neon::Neon;
use super::simd_portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::{simd_avx2::Avx2, simd_avx512::Avx512};

/// Values in a [`Lanes::V`].
pub const LANES: usize = 16;

/// An instruction set, as a token: whoever holds one knows that the processor has the instructions.
///
/// All operations are exact to IEEE 754 with rounding to nearest and subnormal numbers, so that every implementation
/// gives the same bits (apart from the sign and payload of a NaN).
pub trait Lanes: Copy {
    /// Sixteen values.
    type V: Copy;
    /// Sixteen 32-bit words.
    type W: Copy;

    /// Whether sixteen lanes are one register: kernels then block for 32 registers of that size.
    const WIDE: bool;
    /// Whether values are in registers; code for arrays in memory is best left small.
    const REGISTERS: bool = true;

    fn splat(self, value: f32) -> Self::V;
    fn splat_word(self, value: u32) -> Self::W;

    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, value: Self::V, to: &mut [f32; LANES]);
    /// Little-endian numbers at any alignment.
    fn load_f32(self, from: &[u8; 64]) -> Self::V;
    fn load_f16(self, from: &[u8; 32]) -> Self::V;
    fn load_bf16(self, from: &[u8; 32]) -> Self::V;
    fn load_words(self, from: &[u8; 64]) -> Self::W;

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; `b` when one of them is NaN or both are zeros.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` when one of them is NaN or both are zeros.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `yes` where a < b, else `no`.
    fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;

    fn and(self, a: Self::W, b: Self::W) -> Self::W;
    fn or(self, a: Self::W, b: Self::W) -> Self::W;
    fn add_words(self, a: Self::W, b: Self::W) -> Self::W;
    fn sub_words(self, a: Self::W, b: Self::W) -> Self::W;
    /// Shifts left; 0 for counts above 31.
    fn shl(self, a: Self::W, count: u32) -> Self::W;
    /// Shifts right, filling with zeros; 0 for counts above 31.
    fn shr(self, a: Self::W, count: u32) -> Self::W;
    /// Halves a signed word, rounding down.
    fn halve_signed(self, a: Self::W) -> Self::W;
    /// The value of a signed word.
    fn to_float(self, a: Self::W) -> Self::V;
    /// Entry `index mod N` of a table in each lane. N is a power of two.
    fn look_up<const N: usize>(self, table: &[f32; N], index: Self::W) -> Self::V;
    fn with_bits(self, a: Self::W) -> Self::V;
    fn bits(self, a: Self::V) -> Self::W;

    /// Asks for the cache line at `at`, which need not exist.
    fn prefetch(self, at: *const u8);
    /// The same for a line that will be written.
    fn prefetch_to_write(self, at: *const u8);

    /// `(word >> shift) & mask` as a number; below 2^24, so that it is exact.
    #[inline(always)]
    fn field(self, words: Self::W, shift: u32, mask: u32) -> Self::V {
        self.to_float(self.and(self.shr(words, shift), self.splat_word(mask)))
    }
    /// The 32 bits from bit `shift` on of `low` followed by `high`, for a shift from 1 to 31.
    #[inline(always)]
    fn joined(self, low: Self::W, high: Self::W, shift: u32) -> Self::W {
        self.or(self.shr(low, shift), self.shl(high, 32 - shift))
    }
    /// Entry `(word >> shift) mod N` of a table; N is a power of two.
    #[inline(always)]
    fn entry<const N: usize>(self, words: Self::W, shift: u32, table: &[f32; N]) -> Self::V {
        self.look_up(table, self.shr(words, shift))
    }
    /// The value of the four lowest bits.
    #[inline(always)]
    fn low_nibble(self, words: Self::W) -> Self::V {
        self.to_float(self.and(words, self.splat_word(15)))
    }
    /// e^x in each lane, see [`exp`].
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        exp(self, x)
    }
}

/// A computation over sixteen lanes that is compiled once for each instruction set. Its `run`, and all in it that
/// touches lanes, must be `#[inline(always)]`: what is not inlined is compiled without the instructions, and is slow.
/// That includes closures, which take the attribute too.
pub trait Task: Sized {
    type Output;
    fn run<S: Lanes>(self, lanes: S) -> Self::Output;

    /// # Safety
    /// The processor has the instructions of [`Path::Avx2`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn run_avx2(self, lanes: Avx2) -> Self::Output {
        self.run(lanes)
    }

    /// # Safety
    /// The processor has the instructions of [`Path::Avx512`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq")]
    unsafe fn run_avx512(self, lanes: Avx512) -> Self::Output {
        self.run(lanes)
    }
}

/// Runs a task with the instructions of `path`. Panics where the processor lacks them.
pub fn run<T: Task>(path: Path, task: T) -> T::Output {
    match path {
        Path::Portable => task.run(Portable),
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => {
            assert!(Path::best() != Path::Portable, "this processor has no AVX2");
            // SAFETY: the processor has the instructions: `best` is this path or one that includes it.
            unsafe { task.run_avx2(Avx2::new()) }
        }
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => {
            assert!(Path::best() == Path::Avx512, "this processor has no AVX-512");
            // SAFETY: the processor has the instructions.
            unsafe { task.run_avx512(Avx512::new()) }
        }
        #[cfg(target_arch = "aarch64")]
        Path::Neon => task.run(Neon),
    }
}

/// tanh, within 4 units in the last place; ±1 far out, NaN for NaN.
#[inline(always)]
pub fn tanh<S: Lanes>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let size = s.max(x, s.sub(zero, x));
    // Near 0: x + x³ P(x²), because the other form would cancel.
    let square = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.fma(p, square, s.splat(coefficient));
    }
    let near = s.fma(s.mul(square, x), p, x);
    let e = s.exp(s.mul(size, s.splat(-2.0)));
    let far = s.div(s.sub(s.splat(1.0), e), s.add(s.splat(1.0), e));
    let far = s.select_less(x, zero, s.sub(zero, far), far);
    // The comparison is false for NaN, and `far` is NaN then.
    s.select_less(size, s.splat(0.625), near, far)
}

/// The sum of all lanes by a fixed tree: lane i + lane i+8, then +4, +2, +1.
#[inline(always)]
pub fn sum_of_lanes<S: Lanes>(s: S, value: S::V) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(value, &mut lanes);
    tree(lanes)
}

/// The sum of sixteen numbers by the same tree.
#[inline(always)]
pub fn tree(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// The largest of lanes that are not NaN.
#[inline(always)]
pub fn largest_lane<S: Lanes>(s: S, value: S::V) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(value, &mut lanes);
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] { lanes[i + width] } else { lanes[i] };
        }
    }
    lanes[0]
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    /// The first of sixteen floats that are read.
    struct Reading<'a>(&'a [f32]);

    impl Task for Reading<'_> {
        type Output = f32;

        #[inline(always)]
        fn run<S: Lanes>(self, s: S) -> f32 {
            let mut out = [0.0; LANES];
            // SAFETY: the test says when there are not as many.
            s.store(s.load(unsafe { &*self.0.as_ptr().cast() }), &mut out);
            out[0]
        }
    }

    /// Reads one float too many where the run asks for that, to see that its tool finds it.
    #[test]
    fn memory_is_read_to_its_end() {
        let missing = usize::from(std::env::var_os("MLXGEN_KERNEL_FAULT").is_some());
        for path in Path::all() {
            let floats = vec![1.0; LANES - missing].into_boxed_slice();
            assert_eq!(run(path, Reading(&floats)), 1.0);
        }
    }
}
