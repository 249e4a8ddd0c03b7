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
                #[target_feature(enable = "avx2,fma,f16c")]
                fn compiled<W: Work>(work: W, simd: Avx2) -> W::Output {
                    work.run(simd)
                }
                assert!(Path::best() != Path::Portable, "this processor has no AVX2");
                // SAFETY: the processor has the instructions: `best` is this path or one that includes it.
                unsafe { compiled(work, Avx2::new()) }
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => {
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq")]
                fn compiled<W: Work>(work: W, simd: Avx512) -> W::Output {
                    work.run(simd)
                }
                assert!(Path::best() == Path::Avx512, "this processor has no AVX-512");
                // SAFETY: the processor has the instructions.
                unsafe { compiled(work, Avx512::new()) }
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
pub trait Work {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}
