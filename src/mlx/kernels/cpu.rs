//! What this processor can do, and how a kernel is compiled once for each instruction set.

use std::sync::OnceLock;

use super::simd::{Portable, Simd};
#[cfg(target_arch = "aarch64")]
use super::simd_neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::{simd_avx2::Avx2, simd_avx512::Avx512};

/// A set of instructions that kernels are compiled for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// What every processor of the target has.
    Portable,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, VL, BW and DQ, with those of AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON, which every aarch64 processor has.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Path {
    /// The fastest path of this processor.
    pub fn best() -> Path {
        static BEST: OnceLock<Path> = OnceLock::new();
        *BEST.get_or_init(|| Path::all().pop().unwrap_or(Path::Portable))
    }

    /// The paths that this processor can take, the fastest last.
    pub fn all() -> Vec<Path> {
        #[allow(unused_mut)]
        let mut paths = vec![Path::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                paths.push(Path::Avx2);
                if has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512dq") {
                    paths.push(Path::Avx512);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        paths.push(Path::Neon);
        paths
    }

    /// Vector registers.
    pub fn registers(self) -> usize {
        match self {
            Path::Portable => 16,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => 16,
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => 32,
            #[cfg(target_arch = "aarch64")]
            Path::Neon => 32,
        }
    }

    /// Runs `work` compiled for these instructions. Panics where the processor lacks them.
    pub fn run<W: Work>(self, work: W) -> W::Output {
        match self {
            Path::Portable => work.run(Portable::<8>),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => {
                assert!(Path::best() != Path::Portable, "this processor has no AVX2");
                // SAFETY: the processor has the instructions: `best` is this path or one that includes it.
                unsafe { work.run_avx2(Avx2::new()) }
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => {
                assert!(Path::best() == Path::Avx512, "this processor has no AVX-512");
                // SAFETY: the processor has the instructions.
                unsafe { work.run_avx512(Avx512::new()) }
            }
            #[cfg(target_arch = "aarch64")]
            Path::Neon => work.run(Neon),
        }
    }
}

/// Work that [`Path::run`] compiles for an instruction set.
///
/// `run`, and all that it calls with the token, must be `#[inline(always)]`: what is not inlined is
/// compiled without the instructions, and is slow.
pub trait Work: Sized {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;

    /// # Safety
    /// The processor has the instructions of [`Path::Avx2`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn run_avx2(self, simd: Avx2) -> Self::Output {
        self.run(simd)
    }

    /// # Safety
    /// The processor has the instructions of [`Path::Avx512`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq")]
    unsafe fn run_avx512(self, simd: Avx512) -> Self::Output {
        self.run(simd)
    }
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    /// Who runs the tests for certain paths says which: valgrind hides AVX-512, which it does not know.
    #[test]
    fn the_paths_are_those_that_the_run_is_for() {
        if let Ok(expected) = std::env::var("MLXGEN_KERNEL_PATHS") {
            assert_eq!(format!("{:?}", Path::all()), expected);
        }
    }

    /// Sixteen floats, of which the first is given back.
    struct Reading<'a>(&'a [f32]);

    impl Work for Reading<'_> {
        type Output = f32;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            let mut out = [0.0; 16];
            for start in (0..16).step_by(S::LANES) {
                // SAFETY: the lanes divide sixteen, and the test says when there are not as many floats.
                unsafe { s.store(out.as_mut_ptr().add(start), s.load(self.0.as_ptr().add(start))) };
            }
            out[0]
        }
    }

    /// Reads one float too many where the run asks for that, to see that its tool finds it.
    #[test]
    fn memory_is_read_to_its_end() {
        let missing = usize::from(std::env::var_os("MLXGEN_KERNEL_FAULT").is_some());
        for path in Path::all() {
            let floats = vec![1.0; 16 - missing].into_boxed_slice();
            assert_eq!(path.run(Reading(&floats)), 1.0);
        }
    }
}
