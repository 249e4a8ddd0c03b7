//! What this processor can do.

use std::sync::OnceLock;

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
}
