//! The CPU's own kernels: what MLX computes one number at a time on x86-64, computed as fast as the machine can.
//!
//! A kernel is a pure function of slices; `primitive` makes operations of MLX's from kernels. Only `ops` calls these.
//! Activations and accumulation are float32 whatever the form of the weights. A row's result depends on that row's
//! inputs alone: not on the number of rows or threads, nor on which of the paths ran. Each output is one chain of
//! fused operations in a fixed order, and the lanes of a vector are different outputs, so that all instruction sets
//! give the same bits.

pub(crate) mod activation;
pub(crate) mod arena;
pub(crate) mod attention;
pub(crate) mod bytes;
#[cfg(feature = "mlx")]
pub(crate) mod chain;
mod cpu;
mod exp;
pub(crate) mod float;
#[cfg(feature = "mlx")]
pub(crate) mod kernel;
#[cfg(feature = "mlx")]
pub(crate) mod kv;
pub(crate) mod linear;
pub(crate) mod mapping;
pub(crate) mod norm;
pub(crate) mod pointwise;
mod pool;
#[cfg(cpu_kernels)]
mod primitive;
#[cfg(all(feature = "mlx", not(cpu_kernels)))]
#[path = "primitive_absent.rs"]
mod primitive;
#[cfg(all(test, cpu_kernels))]
mod primitive_tests;
pub(crate) mod rope;
mod routine;
pub(crate) mod rows;
pub(crate) mod scratch;
#[cfg(target_arch = "x86_64")]
mod simd_avx2;
#[cfg(target_arch = "x86_64")]
mod simd_avx512;
#[cfg(target_arch = "aarch64")]
mod simd_neon;
mod simd_portable;
mod sixteen;
#[cfg(feature = "mlx")]
pub(crate) mod threads;
pub(crate) mod vocabulary;

/// Whether this build can run kernels of ours: on Linux.
pub(crate) const AVAILABLE: bool = cfg!(cpu_kernels);
